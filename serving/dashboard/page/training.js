// The queue of training jobs, and how the chosen one goes.
import { byId, keep, make, setClass, setText } from "./dom.js";
import { clock, count, number, span } from "./format.js";
import { plot } from "./plots.js";
import { ask } from "./stream.js";

const EVERY_MS = 5000;
const body = byId("jobs-table").tBodies[0];
let chosen = null, asked = 0, known = null;

export function update(history) {
  known = history.now;
  const { jobs, loans } = known;
  const lent = loans.loans.filter(one => one.state === "lent").flatMap(one => one.devices);
  setText(byId("loan-facts"), known.training ? `Lending: ${loans.mode}. ${lent.length ? `${lent.join(", ")} lent now` : "Nothing is lent now"}; `
    + `${span(loans.lent_device_s)} of devices' time lent so far, called back ${count(loans.recalls, "time")}. Last decision: ${loans.why}.`
    : "The configuration has no training queue.");
  byId("no-jobs").hidden = !known.training || jobs.length > 0;
  byId("jobs-table").parentElement.hidden = !jobs.length;
  if (!jobs.some(one => one.id === chosen)) chosen = (jobs.find(one => one.state === "running" && one.steps) ?? jobs.find(one => one.steps))?.id ?? null;
  keep(body, jobs, one => one.id, row, fill);
  if (chosen && Date.now() - asked > EVERY_MS) detail();
}

function row(job) {
  const choose = () => { chosen = job.id; detail(); if (known) keep(body, known.jobs, one => one.id, row, fill); };
  return make("tr", {}, make("th", { scope: "row" }, make("button", { type: "button", class: "plain", text: job.id, onclick: choose })),
    make("td"), make("td"), make("td", {}, make("progress", { max: 1, "aria-label": `Progress of ${job.id}` }), " ", make("span")),
    make("td", { class: "number" }), make("td"), make("td", { class: "wide long" }));
}

function fill(element, job) {
  const [, state, devices, progress, loss, done, why] = element.cells;
  setClass(element, job.id === chosen ? "chosen" : "");
  setText(state, job.state);
  setText(devices, job.devices.join(" ") || `wants ${job.workers[0] === job.workers[1] ? job.workers[0] : job.workers.join(" to ")}`);
  progress.firstChild.hidden = job.share === null;
  if (job.share !== null) progress.firstChild.value = job.share;
  setText(progress.lastChild, job.steps ? `step ${job.step ?? 0} of ${job.steps}` : job.share === null ? "not known" : `${Math.round(job.share * 100)}%`);
  setText(loss, job.loss === null ? "–" : number(job.loss));
  setText(done, job.ended ? `ended ${clock(job.ended)}` : job.expected ? `${clock(job.expected)} (in ${span(Math.max(job.expected - known.at, 0))})` : "–");
  setText(why, job.why);
}

async function detail() {
  asked = Date.now();
  let found;
  try { found = await ask(`/dashboard/jobs/${encodeURIComponent(chosen)}`); } catch { return; }
  const { curve } = found;
  byId("job-detail").hidden = !curve?.step.length;
  if (!curve?.step.length || found.id !== chosen) return;
  setText(byId("job-name"), found.id);
  plot("plot-loss", [{ type: "scatter", mode: "lines", name: "loss", x: curve.step, y: curve.loss, line: { color: "--job" } }], {});
  plot("plot-workers", [{ type: "scatter", mode: "lines", name: "workers", x: curve.at.map(at => new Date(at * 1000)), y: curve.workers,
    line: { color: "--group", shape: "hv" } }], { yaxis: { rangemode: "tozero", dtick: 1 } });
}
