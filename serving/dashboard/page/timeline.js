// Devices and their owners over time. Drawn on a canvas: sixty rows of plots would take the browser longer than a frame.
import { byId, keep, list, make, setText } from "./dom.js";
import { clock, count, span } from "./format.js";
import { show, showMark, showMarks } from "./dialog.js";

const REFUSED = 18, AXIS = 20, GAP = 2, MOST_HAPPENED = 200, NEAR = 24, LEAST_S = 60;
const SIGNS = { plan: "P", loan: "L", death: "✕", refusal: "R", other: "·" };
const KINDS = { group: "serving", job: "training", idle: "idle", dead: "dead" };
const canvas = byId("strip"), chosen = byId("span"), kindChosen = byId("happened-kind");
let known = null, happenedShown = "";

// One stop for the Tab key, however long the list; the arrow keys go through it.
byId("happened").addEventListener("keydown", event => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const all = [...byId("happened").querySelectorAll("button")];
  all[Math.min(Math.max(all.indexOf(document.activeElement) + step, 0), all.length - 1)]?.focus();
  event.preventDefault();
});
canvas.addEventListener("click", event => {
  const hit = at(event);
  if (!hit) return;
  const { device, owner, until } = hit;
  show(device, [list([["who", said(owner)], ["from", clock(owner.from)], ["until", until ? clock(until) : "now"],
    ["for", span((until ?? known.now.at) - owner.from)]])]);
});
canvas.addEventListener("mousemove", event => {
  const hit = at(event);
  canvas.title = hit ? `${hit.device}: ${said(hit.owner)} since ${clock(hit.owner.from)}` : "";
});
for (const select of [chosen, kindChosen]) select.addEventListener("change", () => known && update(known));

export function update(history) {
  known = history;
  const { now } = history, rows = rowHeight(now.devices.length);
  names(now.devices, rows);
  draw(history, rows);
  marks(history);
  happened(history);
}

export function said(owner) {
  if (owner.kind === "idle") return "idle";
  return `${KINDS[owner.kind]}: ${owner.name}`;
}

const rowHeight = devices => devices <= 4 ? 34 : devices <= 16 ? 24 : 15;

function names(devices, rows) {
  keep(byId("device-names"), devices, one => one.name,
    one => make("li", { style: `height:${rows}px` }, make("b", { text: one.name }), make("span")),
    (element, one) => {
      const lent = one.lent_by && one.kind !== "group" ? `, of ${one.lent_by}` : "";
      const text = one.kind === "idle" ? `idle${lent}` : `${one.owner}${one.kind === "dead" ? " (dead)" : ""}${lent}`;
      setText(element.lastChild, text);
    });
}

function frame(history) {
  const until = history.now.at, lived = until - history.began;
  const seconds = Math.min(Number(chosen.value), Math.max(lived * 1.05, LEAST_S));  // what was before the server is nothing
  return { seconds, until, from: until - seconds, width: canvas.clientWidth };
}

function draw(history, rows) {
  const { seconds, until, from, width } = frame(history), devices = history.now.devices;
  const height = REFUSED + 4 + rows * devices.length + AXIS, scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
  }
  const style = getComputedStyle(document.documentElement), colour = name => style.getPropertyValue(name).trim();
  const context = canvas.getContext("2d"), x = at => (at - from) / seconds * width;
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  refusals(context, history, x, colour("--refused"));
  const fill = { group: [colour("--group"), colour("--group-2")], job: [colour("--job")], idle: [colour("--idle")], dead: [colour("--dead")] };
  const ink = { group: colour("--on-group"), job: colour("--on-job"), idle: colour("--on-idle"), dead: colour("--on-dead") };
  context.font = `${Math.min(12, rows - 3)}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  devices.forEach((device, place) => {
    const owners = history.owners.get(device.name) ?? [], top = REFUSED + 4 + place * rows;
    owners.forEach((owner, index) => {
      const left = Math.max(x(owner.from), 0), right = x(owners[index + 1]?.from ?? until);
      if (right < 0) return;
      const shades = fill[owner.kind], digits = Number(owner.name.replace(/\D/g, "")) || 0;
      context.fillStyle = shades[digits % shades.length];
      context.fillRect(left, top, Math.max(right - left - 0.5, 1), rows - GAP);
      const text = owner.kind === "idle" ? "" : owner.name;
      if (text && right - left > 12 + 7 * text.length) {
        context.fillStyle = ink[owner.kind];
        context.fillText(text, left + 6, top + (rows - GAP) / 2 + 0.5);
      }
    });
  });
  axis(context, { seconds, until, from, width }, height, x, colour);
  const held = kind => devices.filter(one => one.kind === kind).length;
  canvas.setAttribute("aria-label", `Owners of ${count(devices.length, "device")} over ${span(seconds)}: now ${held("group")} serving, `
    + `${held("job")} training, ${held("idle")} idle, ${held("dead")} dead. The list What happened has it in words.`);
}

function refusals(context, history, x, colour) {
  const place = history.place.refused;
  const rates = history.bins.map(bin => Object.values(bin.models).reduce((sum, row) => sum + (row[place] ?? 0), 0));
  const most = Math.max(1, ...rates);
  context.fillStyle = colour;
  history.bins.forEach((bin, index) => {
    if (!rates[index]) return;
    const right = x(bin.at), left = x(bin.at - history.binSeconds), height = Math.max(2, REFUSED * rates[index] / most);
    if (right > 0) context.fillRect(left, REFUSED - height, Math.max(right - left - 0.5, 1), height);
  });
}

function axis(context, { seconds, until, from, width }, height, x, colour) {
  const steps = [10, 15, 30, 60, 120, 300, 600], step = steps.find(one => one / seconds * width > 70) ?? 600;
  context.fillStyle = colour("--faint");
  context.font = "11px system-ui, sans-serif";
  for (let at = Math.ceil(from / step) * step; at < until; at += step) {
    const left = x(at);
    if (left > width - 30 || left < 20) continue;
    const text = step % 60 ? clock(at) : clock(at).slice(0, 5);
    context.fillRect(left, height - AXIS, 1, 4);
    context.fillText(text, left - context.measureText(text).width / 2, height - 7);
  }
}

function at(event) {
  if (!known) return null;
  const { seconds, from, width } = frame(known), box = canvas.getBoundingClientRect();
  const when = from + (event.clientX - box.left) / width * seconds;
  const row = Math.floor((event.clientY - box.top - REFUSED - 4) / rowHeight(known.now.devices.length));
  const device = known.now.devices[row]?.name, owners = device && known.owners.get(device);
  if (!owners) return null;
  const place = owners.findLastIndex(owner => owner.from <= when);
  return place < 0 ? null : { device, owner: owners[place], until: owners[place + 1]?.from };
}

// Marks that would lie on each other become one with their number.
function marks(history) {
  const { seconds, from, width } = frame(history), clusters = [];
  for (const mark of history.marks) {
    if (mark.at < from || mark.kind === "other") continue;
    const x = (mark.at - from) / seconds * width, last = clusters.at(-1);
    if (last && x - last.x < NEAR) last.marks.push(mark);
    else clusters.push({ x, marks: [mark] });
  }
  keep(byId("marks"), clusters, one => one.marks[0].at, () => {
    const button = make("button", { type: "button", tabindex: -1 });
    button.addEventListener("click", () => showMarks(button._marks));
    return button;
  }, (button, one) => {
    const worst = ["death", "plan", "loan", "refusal"].find(kind => one.marks.some(mark => mark.kind === kind));
    button._marks = one.marks;
    button.className = worst;
    button.style.left = `${Math.min(Math.max(one.x, 11), width - 11)}px`;
    setText(button, one.marks.length > 1 ? `${SIGNS[worst]}${one.marks.length}` : SIGNS[worst]);
    const label = one.marks.map(mark => mark.title).join("; ");
    if (button.title !== label) { button.title = label; button.setAttribute("aria-label", label); }
  });
}

function happened(history) {
  const kind = kindChosen.value, shown = history.marks.filter(mark => !kind || mark.kind === kind).slice(-MOST_HAPPENED);
  const loans = history.marks.filter(mark => mark.at > history.now.at - 600 && mark.kind === "loan");
  const lent = loans.filter(mark => mark.facts.devices), back = loans.filter(mark => mark.facts.took_s !== undefined);
  const which = [...new Set(lent.flatMap(mark => mark.facts.devices))].sort().join(", ");
  setText(byId("lent-summary"), lent.length + back.length
    ? `In the last ten minutes: ${count(lent.length, "loan")}${which && ` (${which})`}, ${count(back.length, "return")}.`
    : "In the last ten minutes nothing was lent or taken back.");
  const state = `${kind} ${shown.length} ${shown.at(-1)?.at} ${shown[0]?.at}`;
  if (state === happenedShown) return;
  happenedShown = state;
  keep(byId("happened"), shown.toReversed(), mark => `${mark.at} ${mark.title}`, mark => make("li", {}, make("i", { class: mark.kind }),
    make("time", { text: clock(mark.at), datetime: new Date(mark.at * 1000).toISOString() }),
    make("button", { type: "button", class: "plain", tabindex: -1, text: mark.title, onclick: () => showMark(mark) }),
    make("span", { class: "why", text: brief(mark) })), () => {});
  if (!shown.length) byId("happened").replaceChildren(make("li", { text: "Nothing yet." }));
  else byId("happened").querySelectorAll("li:not(:has(time))").forEach(one => one.remove());
}

function brief(mark) {
  const facts = mark.facts;
  if (facts.took_s !== undefined) return `after ${facts.took_s} s`;
  if (facts.devices) return facts.devices.join(", ");
  return facts.why ?? facts.reason_text ?? facts.message ?? facts.reason ?? "";
}
