// The JSON API, and a lane that keeps one question on its way and, of those behind it, only the latest.

async function answered(response) {
  const body = await response.json().catch(() => ({ detail: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(body.detail);
  return body;
}

async function call(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer. Is nvdp serve still running?");
  }
  return answered(response);
}

export const models = () => call("api/models");

export const post = (path, question) =>
  call(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(question),
  });

// A longer answer has waited behind other visitors' questions. Resting then makes everybody's answers come sooner, and
// not fewer: the server computes all the time anyway.
const CROWDED_MS = 100;
const RESTS = 3; // times as long as the answer took
const MOST_REST_MS = 600;
const rest = (milliseconds) => new Promise((wake) => setTimeout(wake, milliseconds));

export class Lane {
  constructor(path, show, tell) {
    Object.assign(this, { path, show, tell, busy: false, next: null, troubled: null });
  }

  // `extra` comes back beside the answer: what was asked, and when the hand moved.
  async ask(question, extra) {
    if (this.busy) {
      this.next = [question, { ...extra, since: this.next?.[1].since ?? extra.since }];
      return;
    }
    this.busy = true;
    const began = performance.now();
    try {
      const answer = await post(this.path, question);
      if (this.troubled) this.tell(null, this.troubled); // what others told stays
      this.troubled = null;
      this.show(answer, extra);
    } catch (error) {
      this.troubled = error.message;
      this.tell(error.message);
    }
    const taken = performance.now() - began;
    if (taken > CROWDED_MS) await rest(Math.min(RESTS * taken, MOST_REST_MS));
    this.busy = false;
    if (this.next) {
      const [question, extra] = this.next;
      this.next = null;
      this.ask(question, extra);
    }
  }
}

// When the picture that answers a movement has been painted, the time since then is a User Timing measure.
export function measurePainted(name, since) {
  if (since === undefined) return;
  requestAnimationFrame(() =>
    setTimeout(() => {
      if (performance.getEntriesByName(name).length > 500) performance.clearMeasures(name);
      performance.measure(name, { start: since, end: performance.now() });
    })
  );
}
