// The table of models, and how the chosen one went.
import { byId, keep, list, make, setClass, setText, table } from "./dom.js";
import { clock, goal, number, percent, seconds } from "./format.js";
import { show } from "./dialog.js";
import { plot } from "./plots.js";
import { ask } from "./stream.js";

const body = byId("models-table").tBodies[0];
const MOST_GROUPS = 4;
let chosen = null, known = null;

byId("model-refusals").addEventListener("click", async () => {
  const found = await ask("/dashboard/explain/refusals");
  const mine = found.refusals.filter(one => one.model === chosen).toReversed().slice(0, 50);
  show(`Requests for ${chosen} that were not served`, mine.length ? [table(["at", "reason", "why", "come back after", "waiting"],
    mine.map(one => [clock(one.at), one.reason, one.message, one.retry_after_s === null ? "never" : seconds(one.retry_after_s), one.waiting]))]
    : [make("p", { text: "None of the last 256 requests that were not served was for this model." })]);
});

export function choose(name) {
  chosen = name;
  if (known) { update(known, true); byId("model-detail").scrollIntoView({ block: "nearest" }); }
}

export function update(history, isNew) {
  known = history;
  const { models, troubles } = history.now;
  if (!models.some(one => one.name === chosen)) {
    chosen = troubles[0]?.model ?? models.find(one => one.rate)?.name ?? models[0]?.name;
    isNew = true;
  }
  keep(body, models, one => one.name, row, fill);
  if (isNew) detail(history, models.find(one => one.name === chosen));
}

function row(model) {
  const cells = ["", "number", "number wide", "number", "number", "number", "number", "", "wide"];
  return make("tr", {}, make("th", { scope: "row" }, make("button", { type: "button", class: "plain", text: model.name,
    onclick: () => choose(model.name) })), ...cells.map((kind, place) => place ? make("td", { class: kind })
    : make("td", {}, make("span"))));
}

function fill(element, model) {
  const [, inTime, rate, cv, ttft, tpot, latency, queue, unserved, groups] = element.cells;
  setClass(element, model.name === chosen ? "chosen" : "");
  element.cells[0].firstChild.setAttribute("aria-pressed", model.name === chosen);
  const isBad = model.in_time !== null ? model.in_time < model.target : Boolean(model.reason);
  setText(inTime.firstChild, model.in_time === null ? (model.reason ? "cannot be served" : "no requests")
    : `${percent(model.in_time)} ${isBad ? "of" : "≥"} ${percent(model.target)}`);
  setClass(inTime.firstChild, `badge ${isBad ? "bad" : model.in_time === null ? "" : "good"}`);
  setText(rate, number(model.rate));
  setText(cv, number(model.cv));
  const times = values => values.some(one => one !== null) ? values.map(seconds).join(" / ") : "–";
  setText(ttft, times([model.ttft[0], model.ttft[2]]));
  setText(tpot, times([model.tpot[0], model.tpot[2]]));
  setText(latency, times(model.latency));
  setText(queue, `${model.waiting} / ${model.running}`);
  setText(unserved, Object.entries(model.refusals).map(([reason, n]) => `${n} ${reason}`).join(", ") || "–");
  const more = model.groups.length - MOST_GROUPS;
  setText(groups, (model.groups.slice(0, MOST_GROUPS).join(" ") || model.state) + (more > 0 ? ` and ${more} more` : ""));
}

function detail(history, model) {
  byId("model-detail").hidden = !model;
  if (!model) return;
  setText(byId("model-name"), model.name);
  setText(byId("model-facts"), `Goal ${goal(model.goal)} for ${percent(model.target)} of requests; planned for ${number(model.planned)} requests a `
    + `second; ${model.requests} requests so far, ${model.met} of ${model.judged} in time, ${model.refused} not served; ${model.state}`
    + (model.reason ? `: ${model.reason}` : "."));
  const line = (series, name, colour, more = {}) => ({ type: "scatter", mode: "lines", name, ...history.series(model.name, series),
    line: { color: colour, width: 2 }, connectgaps: false, ...more });
  const ends = [history.bins[0], history.bins.at(-1)].map(bin => bin && new Date(bin.at * 1000));
  const xaxis = history.bins.length > 1 ? { range: ends } : {};
  plot("plot-rate", [line("rate", "requests/s", "--group"), line("refused", "refused/s", "--refused")], { xaxis, yaxis: { rangemode: "tozero" } });
  plot("plot-in-time", [line("in_time", "in time", "--job", { mode: "lines+markers", marker: { size: 4 } })],
    { xaxis, yaxis: { tickformat: ".0%", range: [-0.02, 1.04] }, shapes: [level(model.target)] });
  plot("plot-latency", [line("latency_p50", "latency p50", "--group-2"), line("latency_p99", "latency p99", "--group"),
    ...(model.generates ? [line("ttft_p99", "TTFT p99", "--job"), line("tpot_p99", "TPOT p99", "--dead")] : [])],
  { xaxis, yaxis: { rangemode: "tozero" } });
  plot("plot-queue", [line("waiting", "waiting", "--dead"), line("running", "running", "--group")], { xaxis, yaxis: { rangemode: "tozero" } });
}

const level = y => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { dash: "dot", width: 1, color: "--faint" } });
