"""The frame of a report: one HTML file with style, tables, and figures as plotly's JSON; it loads nothing."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from loadgen.errors import TrafficError

Figure = dict[str, Any]
"""plotly's `data` and `layout`."""

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --faint: #5b6570; --line: #d5dae0; --card: #f5f7f9; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ec; --faint: #9aa4af; --line: #39424c; --card: #1d232a;
  --paper: #14181d; } }
body { margin: 0; background: var(--paper); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 20px 64px; }
h1 { font-size: 26px; } h2 { font-size: 18px; margin: 36px 0 8px; }
p { color: var(--faint); max-width: 75ch; } p.bad { color: #d55e00; font-weight: 600; }
pre { background: var(--card); border: 1px solid var(--line); padding: 10px 12px; white-space: pre-wrap; }
.facts { display: flex; flex-wrap: wrap; gap: 12px; }
.facts div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 16px; }
.facts b { display: block; font-size: 21px; } .facts span { color: var(--faint); font-size: 13px; }
.scroll { overflow: auto; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { padding: 5px 10px; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
"""
_SCRIPT = """
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function draw() {
  const style = getComputedStyle(document.documentElement), colour = name => style.getPropertyValue(name).trim();
  for (const [name, figure] of Object.entries(figures)) {
    const layout = structuredClone(figure.layout);
    Object.assign(layout, { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true });
    layout.font = { color: colour("--text"), family: "system-ui, sans-serif", size: 13 };
    for (const axis of ["xaxis", "yaxis"]) {
      Object.assign(layout[axis], { gridcolor: colour("--line"), zerolinecolor: colour("--line"), automargin: true });
    }
    Plotly.react(name, structuredClone(figure.data), layout, { responsive: true, displaylogo: false });
  }
}
draw();
dark.addEventListener("change", draw);
"""


@dataclass
class Page:
    """Sections are added in order; `write` makes the file."""

    title: str
    _parts: list[str] = field(default_factory=list)
    _figures: dict[str, Figure] = field(default_factory=dict)

    def heading(self, text: str, explanation: str = "") -> None:
        self._parts.append(f"<h2>{escaped(text)}</h2>" + (f"<p>{escaped(explanation)}</p>" if explanation else ""))

    def warning(self, text: str) -> None:
        self._parts.append(f'<p class="bad">{escaped(text)}</p>')

    def command(self, text: str) -> None:
        self._parts.append(f"<pre>{escaped(text)}</pre>")

    def facts(self, facts: Sequence[tuple[str, str]]) -> None:
        cards = "".join(f"<div><b>{escaped(value)}</b><span>{escaped(name)}</span></div>" for name, value in facts)
        self._parts.append(f'<div class="facts">{cards}</div>')

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """The first row is the header."""
        head = "".join(f"<th>{escaped(cell)}</th>" for cell in rows[0])
        body = "".join("<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        self._parts.append(f'<div class="scroll">{table}</div>')

    def figure(self, figure: Figure, height: int = 360) -> None:
        name = f"figure-{len(self._figures)}"
        self._figures[name] = figure
        self._parts.append(f'<div id="{name}" style="height:{height}px"></div>')

    def html(self) -> str:
        from plotly.offline import get_plotlyjs

        # Inside a script, "</" would end it.
        figures = msgspec.json.encode(self._figures).decode().replace("</", "<\\/")
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
            f'<meta name="viewport" content="width=device-width"><title>{escaped(self.title)}</title>'
            f"<style>{_STYLE}</style></head><body><main><h1>{escaped(self.title)}</h1>{''.join(self._parts)}</main>"
            f'<script type="application/json" id="figures">{figures}</script>'
            f"<script>{get_plotlyjs()}</script><script>{_SCRIPT}</script></body></html>\n"
        )

    def write(self, path: Path) -> None:
        try:
            path.write_text(self.html(), encoding="utf-8")
        except OSError as error:
            raise TrafficError(f"{path}: cannot be written ({error.strerror}); give another path") from None


def escaped(text: str) -> str:
    return html.escape(text)
