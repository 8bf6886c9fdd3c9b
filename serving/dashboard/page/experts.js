// How often each expert is chosen, and how many replicas it has, of models whose experts the plan places.
import { byId, keep, make, setText } from "./dom.js";
import { count } from "./format.js";
import { plot } from "./plots.js";
import { ask } from "./stream.js";

const EVERY_MS = 10000;
let asked = 0, none = null;

export async function update() {
  if (Date.now() - asked < EVERY_MS) return;
  asked = Date.now();
  let experts;
  try { ({ experts } = await ask("/dashboard/experts")); } catch { return; }
  none ??= byId("experts").insertBefore(make("p", { class: "faint", text: "No group holds a model whose experts the plan has placed on several "
    + "devices, or nothing has been counted yet." }), byId("expert-maps"));
  none.hidden = experts.length > 0;
  keep(byId("expert-maps"), experts, one => `${one.model} ${one.group}`, card, fill);
}

const id = (one, what) => `experts-${what}-${one.model}-${one.group}`.replace(/[^\w-]/g, "_");

function card(one) {
  return make("div", { class: "detail" }, make("h3", { text: `${one.model} on ${one.group}` }), make("p", { class: "faint" }), make("div", { class: "plots" },
    make("figure", {}, make("figcaption", { text: "Choices over the layer's mean" }), make("div", { class: "plot", id: id(one, "load") })),
    make("figure", {}, make("figcaption", { text: "Replicas" }), make("div", { class: "plot", id: id(one, "replicas") }))));
}

function fill(element, one) {
  setText(element.children[1], `Moved ${count(one.moves, "time")}${one.reason ? `; ${one.reason}` : ""}.`);
  const axes = { xaxis: { title: { text: "expert" } }, yaxis: { title: { text: "layer" }, autorange: "reversed" }, hovermode: "closest" };
  queueMicrotask(() => {
    plot(id(one, "load"), [{ type: "heatmap", z: one.load, colorscale: "Viridis", hovertemplate: "layer %{y}, expert %{x}: %{z}<extra></extra>" }], axes);
    plot(id(one, "replicas"), [{ type: "heatmap", z: one.replicas, zmin: 0, colorscale: "Viridis",
      hovertemplate: "layer %{y}, expert %{x}: %{z} replicas<extra></extra>" }], axes);
  });
}
