// What the planner would change, what that would bring, and the button that does it.
import { byId, make, setText, table } from "./dom.js";
import { clock, percent } from "./format.js";
import { KEEP, show } from "./dialog.js";
import { ask, hasKey, setKey } from "./stream.js";

let known = null, shown = "";

byId("ask-planner").addEventListener("click", () => act("Asking the planner; a search takes some seconds.",
  async () => `The planner says: ${(await ask("/admin/suggest", "POST", {})).why}.`));
byId("apply").addEventListener("click", () => {
  const found = known.planner.suggestion;
  show("Apply this plan?", [make("p", { text: effect(found) }), steps(found),
    make("p", { class: "faint", text: "Requests that are open end where they are; no request is dropped." })],
  { text: "Apply", run: () => act("Applying the plan; it is in force when its models are loaded.", async () => {
    const { suggested } = await ask("/admin/explain/plan");
    if (!suggested) throw new Error("the planner has taken its suggestion back meanwhile");
    await ask("/admin/plan", "PUT", { version: 1, ...suggested.plan });
    return "The plan is in force.";
  }) });
});
byId("explain-plan").addEventListener("click", async () => {
  const found = await ask("/dashboard/explain/plan"), expected = found.predicted;
  const models = Object.entries(found.inputs).map(([name, one]) => [name, one.planned_rate_per_s, percent(one.target),
    Object.entries(one.slo).map(([key, value]) => `${key} ${value} s`).join(", "), one.sources.join(", ")]);
  show("Why the plan is so", [make("p", { text: `${found.why} (${clock(found.at)}).` }),
    ...(expected.attainment === undefined ? [] : [make("p", { text: `Expected: ${percent(expected.attainment)} in time; worst model `
      + `${expected.worst_model[0]} with ${percent(expected.worst_model[1])}; no plan exceeds ${percent(expected.upper_bound)}.` })]),
    table(["model", "planned requests/s", "target", "goal", "profile"], models),
    ...(found.alternatives.length ? [make("h3", { text: "Weighed instead" }), table(["groups", "in time", "worst model"],
      found.alternatives.map(one => [one.groups.map(g => `tp${g.tp} x pp${g.pp}: ${g.models.join(", ")}`).join("; "), percent(one.attainment),
        `${one.worst_model[0]}: ${percent(one.worst_model[1])}`]))] : [])]);
});

export function update(history) {
  known = history.now;
  const { planner } = known, found = planner.suggestion;
  const says = found ? "" : planner.looking ? "The planner looks at the traffic now." : planner.looked
    ? `At ${clock(planner.looked.at)}: ${planner.looked.why}.`
    : planner.mode === "off" ? "The planner looks only when it is asked (replan: off)." : "The planner has not looked at the traffic yet.";
  setText(byId("planner-says"), says);
  byId("planner-says").hidden = !says;
  byId("apply").hidden = !found;
  const state = JSON.stringify(found);
  if (state === shown) return;
  shown = state;
  byId("suggestion").replaceChildren(...(found ? [make("p", {}, make("b", { text: "A better plan was found. " }), effect(found)), steps(found)] : []));
}

function effect(found) {
  return `Judged on the last ${found.requests} requests (at ${clock(found.at)}): ${percent(found.now.attainment)} in time now, `
    + `${percent(found.then.attainment)} with this plan; models below target by ${percent(found.now.shortfall)} on average now, `
    + `${percent(found.then.shortfall)} then.`;
}

function steps(found) {
  const words = { stop: "stops", change: "changes", start: "starts" };
  return table(["", "group", "devices", "shape", "models that come", "models that go", "also"], found.steps.map(one => [words[one.what],
    one.group || "new", one.devices.join(" "), one.shape, one.adds.join(", "), one.drops.join(", "), one.also.join(", ")]));
}

/** Does something that needs the admin key, and says how it went; asks for the key where it is needed, and tries again. */
async function act(doing, work) {
  const say = byId("planner-result"), buttons = [byId("ask-planner"), byId("apply")];
  say.textContent = doing;
  buttons.forEach(one => { one.disabled = true; });
  try { say.textContent = await work(); } catch (error) {
    if (error.status !== 401 && error.status !== 403) { say.textContent = `Not done: ${error.message}`; return null; }
    say.textContent = "The admin key is needed.";
    askKey(() => act(doing, work));
    return KEEP;
  } finally { buttons.forEach(one => { one.disabled = false; }); }
  return null;
}

function askKey(again) {
  const input = make("input", { type: "password", autocomplete: "off", id: "act-key" });
  const wrong = hasKey() ? [make("p", { role: "alert", text: "The key that this page has is not the admin key." })] : [];
  show("Admin key", [make("p", {}, "What changes the server needs its admin key. ", make("code", { text: "penstock dashboard" }),
    " on the server's machine prints a link that carries it."), ...wrong, make("label", { for: "act-key" }, "Key "), input],
  { text: "Use this key", run: () => { setKey(input.value.trim()); return again(); } });
  input.focus();
}
