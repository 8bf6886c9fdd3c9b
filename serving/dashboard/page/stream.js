// The server's events over fetch, which can carry a key; comes back by itself when the connection is lost.

const KEY = "penstock-key";

/** A key in the link's fragment is kept for this tab and taken out of the address; whether there was one. */
export function takeKey() {
  const found = new URLSearchParams(location.hash.slice(1)).get("key");
  if (found) {
    sessionStorage.setItem(KEY, found);
    history.replaceState(null, "", location.pathname);
  }
  return Boolean(found);
}

export const hasKey = () => Boolean(sessionStorage.getItem(KEY));
export const setKey = key => sessionStorage.setItem(KEY, key);

/** Asks the server; throws an Error with its message, and `status`, when it says no. */
export async function ask(path, method = "GET", body = undefined) {
  const answer = await fetch(path, { method, headers: headers(body), body: body && JSON.stringify(body), cache: "no-store" });
  if (!answer.ok) throw await refusal(answer);
  return answer.json();
}

/** Calls `on.event(name, data)` for ever; `on.state(text, isLive)` says how the connection is, `on.locked(message)` that
 * a key is needed, and returns when there is one. */
export async function follow(on) {
  let pause = 0.5;
  for (;;) {
    try {
      const answer = await fetch("/dashboard/stream", { headers: headers(), cache: "no-store" });
      if (answer.status === 401 || answer.status === 403) {
        await on.locked(hasKey() ? (await refusal(answer)).message : "");
        continue;
      }
      if (!answer.ok) throw await refusal(answer);
      on.state("live", true);
      pause = 0.5;
      await read(answer.body, on.event);
    } catch (error) {
      console.info("penstock: the stream ended:", error.message);
    }
    on.state("no connection; trying again", false);
    await new Promise(done => setTimeout(done, pause * 1000));
    pause = Math.min(pause * 2, 5);
  }
}

async function read(body, onEvent) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const fields = Object.fromEntries(part.split("\n").map(line => {
        const colon = line.indexOf(": ");
        return [line.slice(0, colon), line.slice(colon + 2)];
      }));
      if (fields.data) onEvent(fields.event, JSON.parse(fields.data));
    }
  }
}

function headers(body) {
  const key = sessionStorage.getItem(KEY);
  return { ...(body && { "content-type": "application/json" }), ...(key && { authorization: `Bearer ${key}` }) };
}

async function refusal(answer) {
  let message = `${answer.status} ${answer.statusText}`;
  try { message = (await answer.json()).error.message; } catch { /* no JSON: the status must do */ }
  return Object.assign(new Error(message), { status: answer.status });
}
