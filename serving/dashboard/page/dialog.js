// One dialog for every explanation.
import { byId, list, make, table } from "./dom.js";
import { clock, percent, seconds } from "./format.js";

export const KEEP = "keep";
const dialog = byId("dialog");
byId("dialog-close").addEventListener("click", () => dialog.close());

/** `act`: {text, run} of a button that does something; when `run` returns the dialog closes, unless it says `KEEP`. */
export function show(title, parts, act = null) {
  byId("dialog-title").textContent = title;
  byId("dialog-body").replaceChildren(...parts);
  const button = byId("dialog-act");
  button.hidden = !act;
  if (act) {
    button.textContent = act.text;
    button.disabled = false;
    button.onclick = async () => {
      button.disabled = true;
      try { if (await act.run() !== KEEP) dialog.close(); } catch (error) {
        byId("dialog-body").append(make("p", { role: "alert", text: error.message }));
        button.disabled = false;
      }
    };
  }
  if (!dialog.open) dialog.showModal();
  (act ? button : byId("dialog-close")).focus();
}

/** What is known of a mark. */
export function showMark(mark) { show(mark.title, explained(mark)); }

export function showMarks(marks) {
  if (marks.length === 1) showMark(marks[0]);
  else show(`${marks.length} things that happened`, marks.flatMap(mark => [make("h3", { text: mark.title }), ...explained(mark)]));
}

function explained(mark) {
  const facts = [["when", clock(mark.at)]], tables = [];
  for (const [name, value] of Object.entries(mark.facts)) {
    if (value === null || value === "" || (Array.isArray(value) && !value.length)) continue;
    if (name === "weighed") tables.push(make("h3", { text: "What was weighed" }), rungs(value));
    else if (name === "alternatives") tables.push(make("h3", { text: "Groups that hold the model" }),
      table(["group", "free at"], value.map(one => [one.group, one.free_at === null ? "not known" : clock(one.free_at)])));
    else if (["at", "deadline", "predicted"].includes(name)) { if (name !== "at") facts.push([name, clock(value)]); }
    else facts.push([WORDS[name] ?? name.replaceAll("_", " "), said(name, value)]);
  }
  return [list(facts), ...tables];
}

const WORDS = { why: "why", reason: "reason", took_s: "took", retry_after_s: "told to come back after", from: "from rung", to: "to rung",
  again_in_s: "tried again in" };

function said(name, value) {
  if (name.endsWith("_s") && typeof value === "number") return seconds(value);
  if (Array.isArray(value)) return value.map(one => Array.isArray(one) ? one.join(" ") : one).join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function rungs(options) {
  return table(["without the plan's groups", "demand", "safe for", "can be lent", "why"], options.map(one => [one.drained.map(place => `number ${place}`).join(", ") || "none",
    percent(one.load), one.safe_for_s === null ? "–" : seconds(one.safe_for_s), one.open ? "yes" : "no", one.why]));
}
