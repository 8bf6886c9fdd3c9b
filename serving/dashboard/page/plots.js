// plotly with the page's colours. A plot that nobody can see is drawn when it comes into view.

const TIME = { tickformat: "%H:%M:%S", hoverformat: "%H:%M:%S", nticks: 6 };
const drawn = new Map();
const style = getComputedStyle(document.documentElement);
const seen = new IntersectionObserver(entries => {
  for (const entry of entries) {
    const one = drawn.get(entry.target.id);
    if (one) { one.isVisible = entry.isIntersecting; if (one.isVisible && one.isStale) draw(entry.target.id, one); }
  }
});

/** plotly's data and layout; colours may be names of the page's (--group). */
export function plot(id, data, layout) {
  const one = drawn.get(id) ?? { isVisible: false };
  Object.assign(one, { data, layout, isStale: true, isTime: data[0]?.x?.[0] instanceof Date });
  if (!drawn.has(id)) { drawn.set(id, one); seen.observe(document.getElementById(id)); }
  if (one.isVisible) draw(id, one);
}

/** After the colours have changed. */
export function redraw() {
  for (const [id, one] of drawn) { one.isStale = true; if (one.isVisible) draw(id, one); }
}

function draw(id, one) {
  if (!window.Plotly) { setTimeout(() => one.isVisible && draw(id, one), 50); return; }
  one.isStale = false;
  const axis = { gridcolor: colour("--grid"), zerolinecolor: colour("--line"), linecolor: colour("--line"), automargin: true };
  const { xaxis, yaxis, ...rest } = coloured(one.layout);
  const layout = { margin: { l: 44, r: 8, t: 6, b: 28 }, autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--text"), family: "system-ui, sans-serif", size: 11 }, legend: { orientation: "h", y: 1.2, x: 0 },
    showlegend: one.data.length > 1, hovermode: "x unified", hoverlabel: { bgcolor: colour("--card") },
    xaxis: { ...axis, ...(one.isTime && TIME), ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest };
  Plotly.react(id, coloured(one.data), layout, { responsive: true, displayModeBar: false });
}

const colour = name => style.getPropertyValue(name).trim();

function coloured(value) {
  if (typeof value === "string") return value.startsWith("--") ? colour(value) : value;
  if (Array.isArray(value)) return value.length && typeof value[0] !== "object" ? value : value.map(coloured);
  if (value && typeof value === "object" && !(value instanceof Date)) {
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, coloured(one)]));
  }
  return value;
}
