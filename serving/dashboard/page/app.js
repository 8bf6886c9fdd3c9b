// Puts the page together: listens to the server, keeps what it says, and brings each section up to date.
import { byId, keep, make, setText } from "./dom.js";
import * as experts from "./experts.js";
import { count, number, percent } from "./format.js";
import * as groups from "./groups.js";
import { History } from "./history.js";
import * as models from "./models.js";
import * as planner from "./planner.js";
import { redraw } from "./plots.js";
import { follow, setKey, takeKey } from "./stream.js";
import * as timeline from "./timeline.js";
import * as training from "./training.js";

const MOST_TROUBLES = 4;
const history = new History();
/** Milliseconds of script of the last updates, for those who measure. */
const updates = window.penstockUpdates = [];

function render(isNew) {
  const began = performance.now();
  glance(history.now);
  timeline.update(history);
  models.update(history, isNew);
  planner.update(history);
  groups.update(history);
  training.update(history);
  experts.update();
  updates.push(performance.now() - began);
  if (updates.length > 200) updates.shift();
}

function glance(now) {
  const box = byId("troubles"), asked = now.models.some(one => one.ended), names = now.troubles.map(one => one.model).sort();
  setText(byId("verdict"), names.length ? `${count(names.length, "model")} in trouble: ${names.join(", ")}.` : "No model is in trouble.");
  const shown = now.troubles.slice(0, MOST_TROUBLES), more = now.troubles.slice(MOST_TROUBLES);
  keep(box, shown.length ? [...shown, ...(more.length ? [{ model: " ", more }] : [])] : [null], one => one?.model ?? "", one => one ? make("div", { class: "trouble" },
    make("b"), " ", make("button", { type: "button", class: "plain", text: "show", onclick: () => models.choose(one.model),
      "aria-label": `Show ${one.model}` }), make("ul")) : make("div", { class: "well" }), (element, one) => {
    if (!one) {
      setText(element, asked ? "Every model meets its goal." : "No requests came in the last minute; every model can be served.");
      return;
    }
    if (one.more) {
      setText(element.children[0], `And ${count(one.more.length, "model")} more: ${one.more.map(other => other.model).join(", ")}.`);
      element.children[1].hidden = true;
      return;
    }
    setText(element.children[0], one.in_time === null ? `${one.model} cannot be served.`
      : `${one.model} misses its goal: ${percent(one.in_time)} in time in the last minute, ${percent(one.target)} wanted.`);
    keep(element.children[2], one.why.map((why, place) => [place, why]), ([place]) => place, () => make("li"), (item, [, why]) => setText(item, why));
  });
  const held = kind => now.devices.filter(one => one.kind === kind).length;
  const ended = now.models.reduce((sum, one) => sum + one.ended, 0);
  const met = now.models.reduce((sum, one) => sum + (one.in_time ?? 0) * one.ended, 0);
  const facts = [["devices serving", `${held("group")} of ${now.devices.length}`], ["training", held("job")], ["idle", held("idle")],
    ...(held("dead") ? [["dead", held("dead")]] : []), ["requests/s, last minute", number(now.models.reduce((sum, one) => sum + one.rate, 0))],
    ["in time, last minute", ended ? percent(met / ended) : "–"], ["waiting", now.queue.waiting], ["running", now.queue.running]];
  keep(byId("facts"), facts, ([name]) => name, ([name]) => make("div", {}, make("dt", { text: name }), make("dd")),
    (element, [, value]) => setText(element.lastChild, String(value)));
  const title = now.troubles.length ? `(${now.troubles.length}) Penstock: ${count(now.troubles.length, "model")} in trouble` : "Penstock";
  if (document.title !== title) document.title = title;
}

function onEvent(name, data) {
  if (name === "history") { history.reset(data); render(true); } else render(history.add(data));
  byId("content").hidden = false;
}

/** Asks for the key; done when one was given. */
function locked(message) {
  const form = byId("key-form");
  form.hidden = false;
  byId("content").hidden = true;
  byId("key-wrong").textContent = message;
  setText(byId("connection"), "the admin key is needed");
  byId("key").focus();
  return new Promise(done => {
    form.onsubmit = event => {
      event.preventDefault();
      setKey(byId("key").value.trim());
      form.hidden = true;
      done();
    };
  });
}

function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  localStorage.setItem("penstock-theme", name);
  redraw();
  if (history.now) timeline.update(history);
}

const chosen = localStorage.getItem("penstock-theme") ?? "auto";
byId("theme").value = chosen;
theme(chosen);
byId("theme").addEventListener("change", event => theme(event.target.value));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(byId("theme").value));
addEventListener("resize", () => history.now && timeline.update(history));
takeKey();
addEventListener("hashchange", () => { if (takeKey()) location.reload(); });  // the link was opened where the page was
follow({ event: onEvent, locked, state: (text, isLive) => { setText(byId("connection"), text); byId("connection").classList.toggle("live", isLive); } });
