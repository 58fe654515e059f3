// Smart Feeds by pull and long poll ("Updates/Synchronization via Pull").
import { UsageError, parsed } from "./errors.js";
import { fromActivity } from "./line.js";
import { sleep } from "./session.js";

/** Items per request. */
const PAGE = 1000;
/** Longest time that the server may hold a request, in seconds (the text's default). */
const HOLD = 55;
/** Interval between requests to a server that does not hold them, in milliseconds. */
const IDLE = 30_000;
/** Repetitions of a cursor until it is a circle. A server that lost its cursors causes one. */
const MAX_RETURNS = 8;
/** Cursors that are remembered: a feed that never rests may bring new ones for months. */
const MAX_SEEN = 10_000;

/** @typedef {import("./follow.js").Page} Page */
/** @typedef {{ protocol: string, url: string, since?: string }} SmartState */

/** The base URL in the order by modification, in which every change appears. @param {URL} url */
function baseUrl(url) {
  const base = new URL(url);
  const { searchParams } = base;
  for (const name of ["since", "until", "max", "timeout", "callback"]) {
    if (searchParams.has(name))
      throw new UsageError(`has the parameter ${name}`, url);
  }
  if (/^(-?(created|modified))?$/.test(searchParams.get("order") ?? "")) searchParams.set("order", "modified");
  searchParams.delete("as");
  return base;
}

/** The value of `since` after a position, which is a cursor, with its type or without. @param {string} position */
export const since = (position) => (/^(cursor|id|time):/.test(position) ? position : `cursor:${position}`);

/** @param {any} change @param {string | undefined} before @returns {string | undefined} */
export const sinceAfter = ({ op, position }, before) =>
  position ? since(position) : op === "reset" ? undefined : before;

/**
 * A page of changes, in lines or as a collection of Activity Streams.
 * @param {import("./session.js").Session} session @param {URL} base @param {Record<string, any>} query
 * @param {import("./name.js").FeedName} feed
 */
async function pull(session, base, query, feed) {
  const url = new URL(base);
  // Servers but towpath do not know `as`, and say in the type what they sent.
  for (const [name, value] of Object.entries({ as: "line", ...query }))
    if (value !== undefined) url.searchParams.set(name, value);
  const headers = { accept: "application/x-ndjson, application/json;q=0.9" };
  const answer = await session.send(url, { headers, patience: session.patience + (query.timeout ?? 0) * 1000 });
  if (answer.status !== 200) throw await answer.error();
  const reset = answer.headers.has("towpath-reset");
  const name = feed.of(answer);
  const text = await answer.text();
  if (answer.type.includes("ndjson")) {
    const lines = text.split("\n").filter(Boolean);
    const changes = parsed(() => lines.map((line) => feed.on(JSON.parse(line), answer)), "not JSON", answer.url);
    return { changes, cursor: changes.at(-1)?.position, reset: false, answer };
  }
  const page = await answer.json(text);
  const items = page?.items ?? (page?.url && []);
  if (!Array.isArray(items)) throw answer.wrong("neither lines nor items");
  if (items.some((item) => !["string", "number"].includes(typeof item?.id))) throw answer.wrong("an item has no id");
  const cursor = String(page.last_cursor ?? "") || undefined;
  if (items.length && !cursor) throw answer.wrong("items, but no last_cursor");
  /** @type {any[]} */
  const changes = items.map((item, at) =>
    fromActivity(item, name, at === items.length - 1 ? cursor : item.towpath?.cursor),
  );
  if (reset) changes.unshift({ feed: name, op: "reset" });
  return { changes, cursor, reset, answer };
}

/**
 * Where to begin, as a value of `since`.
 * @param {import("./session.js").Session} session @param {URL} base @param {import("../types/index.js").From} from
 * @param {import("./name.js").FeedName} feed
 */
async function start(session, base, from, feed) {
  if (from === "beginning") return undefined;
  if (from instanceof Date) return `time:${from.toISOString()}`;
  if (typeof from === "string" && from !== "now") return since(from);
  const last = typeof from === "object" ? from.last : 0;
  const newestFirst = new URL(base);
  newestFirst.searchParams.set("order", "-modified");
  const { changes, cursor } = await pull(session, newestFirst, { max: last + 1 }, feed);
  // A cursor holds in both directions: after the item before the last ones come just those.
  return changes.length > last && cursor ? since(cursor) : undefined;
}

/** @param {URL} url @returns {SmartState} */
export const smartState = (url) => ({ protocol: "smart", url: baseUrl(url).href });

/**
 * Pages of changes without end, or to the present with `once`.
 * @param {import("./session.js").Session} session @param {SmartState} state
 * @param {{ from?: import("../types/index.js").From, once: boolean, feed: import("./name.js").FeedName }} options `from` without a stored state
 * @returns {AsyncGenerator<Page, void, void>}
 */
export async function* smart(session, state, { from, once, feed }) {
  const base = new URL(state.url);
  let idle = 0;
  /** @type {Map<string, number>} */
  const seen = new Map();
  for (;;) {
    const begun = Date.now();
    let page;
    try {
      if (from !== undefined) {
        state = { ...state, since: await start(session, base, from, feed) };
        from = undefined;
        yield { changes: [], states: () => state, state };
      }
      page = await pull(session, base, { since: state.since, max: PAGE, timeout: once ? 0 : HOLD }, feed);
      const after = page.cursor === undefined ? undefined : since(page.cursor);
      const visits = (seen.get(after ?? "") ?? 0) + 1;
      const isSame = after === state.since || after === undefined;
      // Otherwise the same items would come for ever, as fast as the server answers.
      if (isSame ? page.changes.some(({ op }) => op !== "reset") : visits > MAX_RETURNS) {
        throw page.answer.wrong(`items after the cursor ${JSON.stringify(page.cursor)} lead back to it`);
      }
      if (seen.size > MAX_SEEN) seen.clear();
      if (after !== undefined) seen.set(after, visits);
      session.ok();
    } catch (error) {
      await session.retry(error);
      continue;
    }
    const { changes } = page;
    if (changes.length > 0) {
      const before = state;
      /** Items of other publishers have no positions: then the last one before counts. @param {number} at */
      const states = (at) => ({
        ...before,
        since: changes.slice(0, at + 1).reduce((value, change) => sinceAfter(change, value), before.since),
      });
      state = states(changes.length);
      yield { changes, states, state };
      idle = 0;
      continue;
    }
    seen.clear();
    if (once) return;
    // An answer at once: the server holds no requests, or is about to stop.
    if (Date.now() - begun < 1000)
      await sleep(Math.min(IDLE, 2000 * 2 ** idle++) * (0.5 + Math.random() / 2), session.signal);
    else idle = 0;
  }
}
