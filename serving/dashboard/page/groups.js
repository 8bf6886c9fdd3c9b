// Groups as they lie on the nodes: stages below each other, the devices of a stage beside each other.
import { byId, make, setText } from "./dom.js";
import { bytes, clock, count, percent, shape } from "./format.js";

const MOST_MODELS = 8;
let shown = "";

export function update(history) {
  const { now } = history;
  const plan = now.plan, facts = `Plan since ${clock(plan.at)}: ${plan.why}${plan.changing ? "; groups change now" : ""}.`;
  setText(byId("plan-facts"), facts);
  const state = JSON.stringify([now.nodes, now.devices.map(one => [one.kind, one.owner]), now.groups.map(one => [one.name, one.state,
    one.deaths, one.kind, Object.entries(one.models).map(([name, m]) => [name, m.ready, m.parked, m.error])])]);
  if (state !== shown) { shown = state; rebuild(now); }
  const shares = Object.fromEntries(now.groups.map(group => [group.name, busy(group)]));
  for (const place of document.querySelectorAll("#nodes [data-busy]")) setText(place, shares[place.dataset.busy]);
}

function rebuild(now) {
  const open = new Set([...document.querySelectorAll("#nodes details[open]")].map(one => one.dataset.group));
  byId("nodes").replaceChildren(...now.nodes.map((node, place) => nodeCard(now, node, place, open)));
}

function nodeCard(now, node, place, open) {
  const devices = now.devices.filter(one => one.node === place), names = new Set(devices.map(one => one.name));
  const groups = now.groups.filter(group => group.devices.some(name => names.has(name)));
  const planned = new Set(now.groups.flatMap(group => group.devices));
  const free = devices.filter(one => !planned.has(one.name));
  return make("div", { class: "node" },
    make("h3", { text: `${node.name}: ${count(devices.length, "device")} (${node.kind}, ${bytes(node.memory)} each)` }),
    make("div", { class: "inside" }, ...groups.map(group => groupCard(now, group, names, open.has(group.name))),
      ...(free.length ? [make("div", { class: "group" }, make("p", { text: "In no group" }), make("div", { class: "stages" }, ...free.map(one => chip(one))))] : [])));
}

/** What of a group is on a node: of one that spans several, the devices `here`. */
function groupCard(now, group, here, isOpen) {
  const owners = Object.fromEntries(now.devices.map(one => [one.name, one]));
  const kind = group.kind && group.kind !== "real" ? ` (${group.kind})` : "";
  const models = Object.entries(group.models).map(([name, one]) => make("li", {
    class: one.error ? "broken" : one.ready && !one.parked ? undefined : "off", title: one.error ?? undefined,
    text: name + (one.error ? ": not loaded" : one.parked ? " (parked)" : one.ready ? "" : " (not ready)") }));
  const stages = make("div", { class: "stages", style: `grid-template-columns: repeat(${group.tp}, max-content)` },
    ...group.devices.map((name, index) => here.has(name) && chip(owners[name], group.pp > 1 ? `stage ${Math.floor(index / group.tp)} ` : ""))
      .filter(Boolean));
  const spans = group.devices.every(name => here.has(name)) ? "" : ", on several nodes";
  return make("div", { class: `group ${group.state}` },
    make("p", {}, make("b", { text: group.name }), ` ${shape(group)}, ${group.state}${kind}${spans}`
      + (group.deaths ? `, lost ${count(group.deaths, "time")}` : ""), make("span", { "data-busy": group.name, text: busy(group) })),
    stages, make("ul", { class: "tags" }, ...models.slice(0, MOST_MODELS)),
    ...(models.length > MOST_MODELS ? [make("details", { "data-group": group.name, open: isOpen },
      make("summary", { text: `and ${models.length - MOST_MODELS} more` }), make("ul", { class: "tags" }, ...models.slice(MOST_MODELS)))] : []));
}

const busy = group => group.state === "serving" && group.busy !== null ? `, ${percent(group.busy)} busy` : "";

function chip(device, stage = "") {
  const who = device.kind === "job" ? ` → ${device.owner}` : device.kind === "group" ? "" : ` (${device.kind})`;
  return make("span", { class: `chip ${device.kind}-chip`, text: `${stage}${device.name}${who}` });
}
