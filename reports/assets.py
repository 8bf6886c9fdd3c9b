"""Style and script of the pages: plain CSS and JavaScript, readable in light and dark, usable without a network."""

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --faint: #5b6570; --line: #d5dae0; --paper: #ffffff;
  --card: #f5f7f9; --grid: #e4e8ec; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ec; --faint: #9aa4af; --line: #39424c;
  --paper: #14181d; --card: #1d232a; --grid: #2c343d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 20px 64px; }
h1 { font-size: 26px; margin: 8px 0 16px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 36px 0 8px; }
p { margin: 6px 0 12px; color: var(--faint); max-width: 75ch; overflow-wrap: anywhere; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 10px 12px;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px; }
.facts { display: flex; flex-wrap: wrap; gap: 12px; margin: 12px 0; }
.facts div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 16px;
  max-width: 100%; }
.facts b { display: block; font-size: 21px; font-weight: 600; overflow-wrap: anywhere; }
.facts span { color: var(--faint); font-size: 13px; overflow-wrap: anywhere; }
p.bad { color: #d55e00; font-weight: 600; }
.table, .data { position: relative; margin: 8px 0 16px; }
.table button, .data button { position: absolute; right: 0; top: -34px; font: inherit; font-size: 13px;
  padding: 2px 10px; color: var(--text); background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  cursor: pointer; }
.scroll { overflow: auto; max-height: 560px; border: 1px solid var(--line); border-radius: 6px; }
.picture { padding: 12px; max-height: none; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { padding: 5px 10px; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
td.long { white-space: normal; min-width: 260px; overflow-wrap: anywhere; }
tbody tr:last-child td { border-bottom: none; }
thead th { position: sticky; top: 0; background: var(--card); font-weight: 600; }
td.number { font-variant-numeric: tabular-nums; }
.figure { width: 100%; }
svg text { fill: var(--text); font-family: system-ui, sans-serif; }
svg .faint { fill: var(--faint); }
svg .node { fill: var(--card); stroke: var(--line); }
svg .idle { fill: none; stroke: var(--line); stroke-dasharray: 4 3; }
"""

SCRIPT = """
"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
function draw() {
  for (const [name, figure] of Object.entries(figures)) {
    const layout = structuredClone(figure.layout);
    Object.assign(layout, { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true });
    layout.font = { color: colour("--text"), family: "system-ui, sans-serif", size: 13 };
    layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: colour("--faint"), activecolor: colour("--text") };
    layout.hoverlabel = { bgcolor: colour("--card"), bordercolor: colour("--line"),
      font: { color: colour("--text") } };
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis/.test(key)) {
        Object.assign(layout[key], { gridcolor: colour("--grid"), zerolinecolor: colour("--line"),
          linecolor: colour("--line"), automargin: true });
      }
    }
    Plotly.react(name, structuredClone(figure.data), layout, { responsive: true, displaylogo: false });
  }
}
if (Object.keys(figures).length) { draw(); dark.addEventListener("change", draw); }
function copyText(text) {
  if (navigator.clipboard && window.isSecureContext) { return navigator.clipboard.writeText(text); }
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done ? Promise.resolve() : Promise.reject(new Error("copy was refused"));
}
function tableText(button) {
  return [...button.parentElement.querySelectorAll("tr")].map(row => [...row.cells].map(cell => cell.textContent));
}
function figureText(button) {
  return figures[button.dataset.figure].data.flatMap((trace, place) => {
    const name = trace.name ?? `${trace.type ?? "scatter"} ${place}`;
    if (trace.z) { return trace.z.map((row, y) => [name, trace.y?.[y] ?? y, ...row]); }
    const base = trace.base ? { base: trace.base } : {}, columns = { x: trace.x, y: trace.y, ...base };
    const row = at => Object.values(columns).map(column => column?.[at] ?? at);
    const rows = (trace.y ?? trace.x).map((_, at) => [name, ...row(at)]);
    return [["", ...Object.keys(columns)], ...rows];
  });
}
for (const button of document.querySelectorAll(".table button, .data button")) {
  const label = button.textContent;
  button.addEventListener("click", async () => {
    const rows = button.dataset.figure ? figureText(button) : tableText(button);
    const text = rows.map(row => row.join("\\t")).join("\\n");
    try { await copyText(text); button.textContent = "Copied"; } catch { button.textContent = "Not copied"; }
    setTimeout(() => { button.textContent = label; }, 1500);
  });
}
"""
