// Server-Sent Events (HTML, section 9.2) over fetch, which sends headers where EventSource cannot.
import { ProtocolError, parsed } from "./errors.js";
import { fromActivity } from "./line.js";
import { since, sinceAfter } from "./smart.js";
import { sleep } from "./session.js";

/** Longest silence of a stream, in milliseconds. towpath sends a comment every 25 seconds. */
const SILENCE = 70_000;
/** Wait before the next connection, unless the server names one. */
const RETRY = 2000;
const MAX_RETRY = 300_000;
/** Largest event, in characters. */
const MAX_EVENT = 64 << 20;

/** @typedef {{ id: string | undefined, event: string, data: string | undefined }} ServerEvent */

/** Takes a stream apart, in pieces of any size. */
export class EventParser {
  #text = "";
  #decoder = new TextDecoder();
  #data = /** @type {string[]} */ ([]);
  #event = "";
  /** @type {string | undefined} */
  #told;
  /** @type {string | undefined} */
  id;
  /** @type {number | undefined} */
  retry;

  /** Returns the events that a piece completes; without `data` one only moves the id. @param {Uint8Array} chunk @returns {ServerEvent[]} */
  push(chunk) {
    const known = this.#text.length;
    this.#text += this.#decoder.decode(chunk, { stream: true });
    if (this.#text.length > MAX_EVENT) throw new ProtocolError(`an event is longer than ${MAX_EVENT} characters`);
    /** @type {ServerEvent[]} */
    const events = [];
    const ends = /\r\n|\n|\r(?!$)/g;
    let from = 0;
    // What was searched before has no line end, but for a carriage return at its end.
    ends.lastIndex = Math.max(0, known - 1);
    for (let end = ends.exec(this.#text); end; end = ends.exec(this.#text)) {
      this.#line(this.#text.slice(from, end.index), events);
      from = ends.lastIndex;
    }
    this.#text = this.#text.slice(from);
    return events;
  }

  /** @param {string} line @param {ServerEvent[]} events */
  #line(line, events) {
    if (line === "") {
      const data = this.#data.length > 0 ? this.#data.join("\n") : undefined;
      if (data !== undefined || this.id !== this.#told)
        events.push({ id: this.id, event: this.#event || "message", data });
      this.#told = this.id;
      this.#data = [];
      this.#event = "";
      return;
    }
    const [, name, value] = /** @type {string[]} */ (/^([^:]*)(?:: ?)?([^]*)$/.exec(line));
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#event = value;
    else if (name === "id" && !value.includes("\0")) this.id = value;
    else if (name === "retry" && /^\d+$/.test(value)) this.retry = Math.min(Number(value), MAX_RETRY);
  }
}

/** @param {ServerEvent} event @param {import("./name.js").FeedName} feed @param {import("./session.js").Answer} answer */
function change({ id, event, data = "" }, feed, answer) {
  const value = parsed(() => JSON.parse(data), "not JSON", answer.url);
  if (value?.op === "reset") return feed.on(value, answer);
  // A line, of which `as=line` asks; or an object of Activity Streams.
  if (typeof value?.op === "string" && typeof value.id === "string") return feed.on(value, answer);
  if (value?.id === undefined) throw answer.wrong("an event has no id");
  return { ...fromActivity(value, feed.of(answer), id), ...(event === "delete" || event === "patch" ? { op: event } : {}) };
}

/**
 * Pages of changes without end; each is what one piece of the stream completed.
 * @param {import("./session.js").Session} session @param {URL} url @param {{ since?: string }} state
 * @param {{ from?: import("../types/index.js").From, feed: import("./name.js").FeedName }} options `from` without a stored state
 * @returns {AsyncGenerator<import("./follow.js").Page, void, void>}
 */
export async function* events(session, url, state, { from, feed }) {
  const stream = new URL(url);
  stream.searchParams.set("as", "line");
  if (from === "beginning") from = new Date(0);
  if (from instanceof Date) stream.searchParams.set("since", `time:${from.toISOString()}`);
  else if (typeof from === "object") stream.searchParams.set("last", String(from.last));
  else if (from !== undefined && from !== "now") state = { since: since(from) };
  let wait = RETRY;
  for (;;) {
    try {
      /** @type {Record<string, string>} */
      const headers = { accept: "text/event-stream" };
      if (state.since?.startsWith("cursor:")) headers["last-event-id"] = state.since.slice(7);
      else if (state.since !== undefined) stream.searchParams.set("since", state.since);
      const answer = await session.send(stream, { headers, patience: Math.max(SILENCE, session.patience) });
      // 204 is the server's way to end a stream (HTML, section 9.2.3).
      if (answer.status === 204) return;
      if (answer.status !== 200) throw await answer.error();
      if (!answer.type.startsWith("text/event-stream"))
        throw answer.wrong(`${answer.type || "no type"} instead of an event stream`);
      const parser = new EventParser();
      for await (const chunk of answer.chunks()) {
        const told = parser.push(chunk);
        if (parser.retry !== undefined) wait = parser.retry;
        if (told.length === 0) continue;
        session.ok();
        const changes = [];
        const after = /** @type {any[]} */ ([]);
        for (const event of told) {
          // The feed was removed: the next request gets that as its answer.
          if (event.event === "gone") continue;
          if (event.data !== undefined) changes.push(change(event, feed, answer));
          if (event.id !== undefined) state = { since: event.id === "" ? undefined : since(event.id) };
          else if (event.data !== undefined) state = { since: sinceAfter(changes.at(-1), state.since) };
          if (event.data !== undefined) after.push(state);
        }
        yield { changes, states: (at) => after[at], state };
      }
      await sleep(wait * (1 + Math.random() / 2), session.signal);
    } catch (error) {
      await session.retry(error, wait / 2);
    }
  }
}
