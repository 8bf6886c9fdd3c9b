"""One HTML page with all it needs inside: style, script, figures as plotly's JSON. Knows nothing of plans.

Everything that came from a user's file passes through `escaped` (HTML, and the small HTML that plotly reads
in labels) or `_embedded` (JSON inside a script). A policy in the page's head forbids it to load anything.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from placement.files import replace_file
from placement.report.assets import SCRIPT, STYLE
from placement.text import percent as plain_percent

Figure = dict[str, Any]
"""plotly's `data` and `layout`; colours of text and grid are the page's."""

MOST_ROWS = 2000
LONG_CELL = 40
"""Letters from which a cell may break into lines."""


@dataclass
class Page:
    """Sections are added in order; `write` makes the file."""

    title: str
    _parts: list[str] = field(default_factory=list)
    _figures: dict[str, Figure] = field(default_factory=dict)

    def heading(self, text: str, explanation: str = "") -> None:
        self._parts.append(f"<h2>{escaped(text)}</h2>")
        if explanation:
            self.paragraph(explanation)

    def paragraph(self, text: str) -> None:
        self._parts.append(f"<p>{escaped(text)}</p>")

    def command(self, command: str) -> None:
        self._parts.append(f"<pre>{escaped(command)}</pre>")

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
        name = f"figure-{len(self._figures)}"
        self._figures[name] = figure
        self._parts.append(f'<div class="figure" id="{name}" style="height:{height}px"></div>')

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

    def write(self, path: Path) -> None:
        replace_file(path, self.html().encode())


def escaped(text: object) -> str:
    # Half a surrogate pair (an argument that is no UTF-8, say) can stand in a str and in no file.
    return html.escape(str(text).encode("utf-8", "replace").decode())


def shortened(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: max(letters - 1, 1)] + "…"


def percent(share: float | None) -> str:
    return "" if share is None or share != share else plain_percent(share)


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
