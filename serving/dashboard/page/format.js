// Numbers and times as people read them.

export const clock = at => new Date(at * 1000).toLocaleTimeString([], { hour12: false });

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.0995) return `${Number((value * 1000).toPrecision(2))} ms`;
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  return value < 99.5 ? `${Number(value.toPrecision(3))} s` : span(value);
}

/** A longer time. */
export function span(value) {
  if (value < 60) return `${Math.round(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  return `${Math.floor(value / 3600)} h ${Math.round(value % 3600 / 60)} min`;
}

/** Never rounded up to all of it. */
export const percent = share => share === null || share === undefined ? "–"
  : `${(Math.floor(share * 1000 + 1e-6) / 10).toFixed(1)}%`;

export const number = value => value === null || value === undefined ? "–" : String(Number(value.toPrecision(3)));

export const bytes = value => value >= 2 ** 30 ? `${number(value / 2 ** 30)} GiB` : `${number(value / 2 ** 20)} MiB`;

export const count = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;

export const shape = group => `tp${group.tp} x pp${group.pp}`;

/** A goal as text: {ttft, tpot} or {end_to_end}. */
export function goal(slo) {
  const names = { end_to_end: "", ttft: "TTFT ", tpot: "TPOT " };
  return Object.entries(slo).map(([name, value]) => `${names[name] ?? name}${seconds(value)}`).join(", ");
}
