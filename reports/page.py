"""One HTML page with all it needs inside: style, script, figures as plotly's JSON.

Everything that came from a user's file passes through `escaped` (HTML, and the small HTML that plotly reads
in labels) or `_embedded` (JSON inside a script). A policy in the page's head forbids it to load anything.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from reports.assets import SCRIPT, STYLE

Figure = dict[str, Any]
"""plotly's `data` and `layout`; colours of text and grid are the page's."""

# Okabe and Ito's colours, which the colour-blind can tell apart; readable on white and on black.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#999999")
MOST_ROWS = 2000
LONG_CELL = 40
"""Letters from which a cell may break into lines."""


@dataclass
class Page:
    """Sections are added in order; `html` and `png` make files of them."""

    title: str
    _parts: list[str] = field(default_factory=list)
    _figures: dict[str, Figure] = field(default_factory=dict)
    _titles: dict[str, str] = field(default_factory=dict)
    """Of the figures: the headings above them."""
    _heading: str = ""

    def heading(self, text: str, explanation: str = "") -> None:
        self._heading = text
        self._parts.append(f"<h2>{escaped(text)}</h2>")
        if explanation:
            self.paragraph(explanation)

    def paragraph(self, text: str) -> None:
        self._parts.append(f"<p>{escaped(text)}</p>")

    def warning(self, text: str) -> None:
        self._parts.append(f'<p class="bad">{escaped(text)}</p>')

    def made_by(self, command: str, inputs: Sequence[tuple[str, object]]) -> None:
        """The end of every page: how anybody can make it again."""
        self.heading("How this was made")
        self._parts.append(f"<pre>{escaped(command)}</pre>")
        self.heading("Inputs")
        self.table(["input", "value"], inputs)

    def facts(self, facts: Sequence[tuple[str, str]]) -> None:
        """Large figures with what they mean below."""
        cards = "".join(f"<div><b>{escaped(value)}</b><span>{escaped(name)}</span></div>" for name, value in facts)
        self._parts.append(f'<div class="facts">{cards}</div>')

    def table(self, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A button copies it, with tabs between the cells."""
        shown = rows[:MOST_ROWS]
        head = "".join(f"<th>{escaped(cell)}</th>" for cell in header)
        body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in shown)
        self._parts.append(
            f'<div class="table"><button type="button">Copy</button><div class="scroll"><table>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>"
        )
        if len(rows) > len(shown):
            self.paragraph(f"The first {len(shown)} of {len(rows)} rows.")

    def picture(self, svg: str) -> None:
        """An SVG whose texts are escaped already."""
        self._parts.append(f'<div class="scroll picture">{svg}</div>')

    def figure(self, figure: Figure, height: int = 360) -> None:
        """A button copies the data behind it."""
        name = f"figure-{len(self._figures)}"
        self._figures[name] = figure
        self._titles[name] = self._heading
        label = f"Copy the data of: {self._heading}" if self._heading else "Copy the data"
        self._parts.append(
            f'<div class="data"><button type="button" data-figure="{name}" aria-label="{escaped(label)}">Copy data'
            "</button>"
            f'<div class="figure" id="{name}" style="height:{height}px"></div></div>'
        )

    def html(self) -> str:
        from plotly.offline import get_plotlyjs

        policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
        plotly = f"<script>{get_plotlyjs()}</script>" if self._figures else ""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escaped(self.title)}</title><style>{STYLE}</style></head>\n"
            f"<body><main><h1>{escaped(self.title)}</h1>\n" + "\n".join(self._parts) + "\n</main>"
            f'<script type="application/json" id="figures">{_embedded(self._figures)}</script>\n'
            f"{plotly}<script>{SCRIPT}</script></body></html>\n"
        )

    def png(self) -> bytes:
        """Its figures, each under the heading it stands below."""
        from reports.png import draw_png

        counted: dict[str, Figure] = {}
        for name, figure in self._figures.items():
            title = self._titles[name]
            counted[title if title not in counted else f"{title} ({len(counted)})"] = figure
        return draw_png(counted)


def escaped(text: object) -> str:
    # Half a surrogate pair (an argument that is no UTF-8, say) can stand in a str and in no file.
    return html.escape(str(text).encode("utf-8", "replace").decode())


def shortened(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: max(letters - 1, 1)] + "…"


def percent(share: float | None) -> str:
    """ "98.76%"; never rounded up to all of it."""
    return "" if share is None or share != share else f"{int(share * 10_000 + 1e-6) / 100:.2f}%"


def seconds(value: float | None) -> str:
    """To three digits, in ms below one second."""
    if value is None or value != value:
        return ""
    if value == float("inf"):
        return "none"
    return f"{1000 * value:.3g} ms" if value < 0.9995 else f"{value:.4g} s"


def _cell(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    kind = "number" if text[:1].isdigit() else "long" if len(text) > LONG_CELL else ""
    return f'<td class="{kind}">{escaped(text)}</td>' if kind else f"<td>{escaped(text)}</td>"


def _embedded(value: object) -> str:
    """JSON that can neither end the script it stands in nor begin another."""
    text = msgspec.json.encode(value).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
