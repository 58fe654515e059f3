// DiffDelta: head, latest document, and the archive for what was missed. Every cursor is recomputed.
import { canonical, pythonCanonical, sha256 } from "./canonical.js";
import { GapError, ProtocolError, TowpathError, UsageError, parsed, shown } from "./errors.js";
import { fromDelta, isRepeat, time } from "./line.js";
import { ZERO, has, plan, readIndex } from "./archive.js";
import { indexUrl, locate, sourceOf } from "./locate.js";
import { sleep } from "./session.js";

/** Poll interval where the publisher states none, and bounds of what it may state, in seconds. */
const TTL = 300;
const MIN_TTL = 15;
const MAX_TTL = 86_400;
const SHORT = "the index does not reach it";
/** Buckets in the order of delivery. */
const BUCKETS = ["new", "updated", "items", "flagged", "removed"];

/**
 * @typedef {{ cursor?: string, generated_at?: string, partial?: { cursor: string, delivered: number }, since?: string,
 *   validator?: { etag: string, cursor: string }, verified?: boolean }} DiffDeltaState
 * @typedef {{ url: string, text: string, value: any }} Document
 * @typedef {import("./follow.js").Page} Page
 */

/** @param {string} position a cursor, or a cursor and the number of a change @returns {DiffDeltaState} */
function after(position) {
  const [, cursor, number] = /^(sha256:[0-9a-f]{64})(?:\/(\d+))?$/.exec(position) ?? [];
  if (!cursor) throw new UsageError(`${JSON.stringify(position)} is no position of a DiffDelta feed`);
  return number ? { partial: { cursor, delivered: Number(number) } } : { cursor };
}

/** Follower of one feed; `state` is what was delivered. */
export class DiffDelta {
  #session;
  #options;
  /** @type {{ manifest?: string, head?: string, latest?: string }} */
  #urls;
  /** @type {any} */
  #head;
  #ttl = TTL;
  #hasNoIndex = false;
  /** Since when documents lag, in milliseconds. */
  #lagged = 0;
  #warned = new Set();

  /**
   * @param {import("./session.js").Session} session @param {URL} url @param {DiffDeltaState} state
   * @param {{ from?: import("../types/index.js").From, once: boolean, gap: (error: GapError) => void }} options `from` without a stored state
   */
  constructor(session, url, state, options) {
    const { from } = options;
    this.#session = session;
    this.#urls = locate(url);
    this.#options = options;
    if (from instanceof Date) state = { since: from.toISOString() };
    else if (typeof from === "string" && from !== "now" && from !== "beginning") state = after(from);
    else if (typeof from === "object") throw new UsageError("DiffDelta has no last items");
    this.state = state;
    this.isNew = from === "now";
  }

  /** @param {string} url @param {string} text */
  #warn(url, text) {
    if (!this.#warned.has(text)) this.#session.log.warn(`towpath: ${shown(url)}: ${text}`);
    this.#warned.add(text);
  }

  /** Pages of changes without end, or of what is published now with `once`. @returns {AsyncGenerator<Page, void, void>} */
  async *pages() {
    for (;;) {
      try {
        yield* this.#pass();
        this.#session.ok();
        this.#lagged = 0;
      } catch (error) {
        await this.#session.retry(error, this.#session.worked && !this.#options.once ? this.#ttl * 1000 : 2000);
        continue;
      }
      if (this.#options.once) return;
      // Up to a tenth more, so that followers that started together do not poll together.
      await sleep(this.#ttl * 1000 * (1 + Math.random() / 10), this.#session.signal);
    }
  }

  /**
   * Requests a document; without `value` it is missing, or unchanged.
   * @param {string} url @param {boolean} [polls]
   */
  async #get(url, polls = false) {
    const { validator, cursor } = this.state;
    /** @type {Record<string, string>} */
    const headers = { accept: "application/json" };
    // After a failed pass the validator is newer than what was delivered, and a 304 would hide the rest.
    if (polls && validator && validator.cursor === cursor) headers["if-none-match"] = validator.etag;
    const answer = await this.#session.send(url, { headers });
    const { status } = answer;
    const error = status === 200 ? undefined : await answer.error();
    // Some sites answer 403 for missing files.
    if (error && ![304, 404, 410, polls ? 0 : 403].includes(status)) throw error;
    return { status, answer, error };
  }

  /** @param {import("./session.js").Answer} answer @param {string} cursor */
  #keepValidator(answer, cursor) {
    const etag = answer.headers.get("etag");
    this.state = { ...this.state, validator: etag ? { etag, cursor } : undefined };
  }

  /** @param {any} ttl */
  #keepTtl(ttl) {
    if (ttl > 0) this.#ttl = Math.min(Math.max(ttl, MIN_TTL), MAX_TTL);
  }

  /** One poll, and what it leads to. @returns {AsyncGenerator<Page, void, void>} */
  async *#pass() {
    const urls = this.#urls;
    if (urls.manifest) {
      const { answer, error } = await this.#get(urls.manifest);
      if (error) throw error;
      const latest = (await answer.json())?.endpoints?.diff_latest;
      this.#urls = locate(new URL(answer.link(latest ?? "/")));
      if (this.#urls.manifest) throw answer.wrong("endpoints.diff_latest names no feed");
      return yield* this.#pass();
    }
    if (urls.head && !(await this.#pollHead(urls.head))) return yield this.#page();
    const { status, answer, error } = await this.#get(/** @type {string} */ (this.#urls.latest), !urls.head);
    if (status === 304) return;
    if (error) throw error;
    const text = await answer.text();
    const value = await this.#read(answer, text);
    const latest = { url: answer.url, text, value };
    this.#keepTtl(value.ttl_sec);
    if (!this.#urls.head) this.#keepValidator(answer, value.cursor);
    const { cursor } = this.state;
    if (value.cursor === cursor) return yield this.#page();
    if (this.isNew || (value.cursor === ZERO && cursor === undefined)) return yield this.#moveTo(value.cursor);
    if (value.cursor === ZERO) throw answer.wrong("the cursor became zero");
    if (this.#follows(value) && this.#isCertain(value)) return yield* this.#deliver(latest, true);
    yield* this.#walk(latest);
  }

  /** Asks for the head; true if the latest document is wanted. @param {string} url */
  async #pollHead(url) {
    const { status, answer, error } = await this.#get(url, true);
    if (status === 304) return false;
    // Section 1 has no head for the global feed.
    if (error) {
      this.#urls = { latest: this.#urls.latest };
      this.#head = undefined;
      return true;
    }
    const head = await answer.json();
    if (typeof head?.cursor !== "string" && head?.cursor !== null) throw answer.wrong("no cursor");
    const cursor = head.cursor || ZERO;
    this.#session.ok();
    this.#head = head;
    this.#keepTtl(head.ttl_sec);
    this.#keepValidator(answer, cursor);
    if (head.latest_url) this.#urls = { ...this.#urls, latest: answer.link(head.latest_url) };
    if (cursor === this.state.cursor) return false;
    if (this.isNew || (cursor === ZERO && this.state.cursor === undefined))
      return !this.#moveTo(cursor, head.changed ? head.generated_at : undefined);
    return true;
  }

  /** Counts what was before a cursor as delivered. @param {string | undefined} cursor @param {string} [at] */
  #moveTo(cursor, at) {
    this.isNew = false;
    this.state = { ...this.state, cursor, generated_at: at, partial: undefined };
    return this.#page();
  }

  /** A page that moves the state, with these changes at once. @param {any[]} changes @returns {Page} */
  #page(...changes) {
    const { state } = this;
    return { changes, states: () => state, state };
  }

  /** @param {import("./session.js").Answer} answer @param {string} text */
  async #read(answer, text) {
    const value = await answer.json(text);
    const { buckets } = value ?? {};
    if (typeof buckets !== "object" || !buckets || BUCKETS.some((name) => !Array.isArray(buckets[name] ?? [])))
      throw answer.wrong("no buckets");
    return { ...value, cursor: value.cursor || ZERO, prev_cursor: value.prev_cursor ?? "" };
  }

  /** True if a document follows what was delivered, by its cursors. @param {any} document */
  #follows({ cursor, prev_cursor, changed }) {
    const { cursor: stored, partial, since } = this.state;
    const isNext =
      stored !== undefined
        ? stored === prev_cursor
        : partial
          ? partial.cursor === cursor
          : since === undefined && prev_cursor === ZERO;
    // A carried document names itself: it cannot tell what it follows.
    return isNext && changed === true && cursor !== prev_cursor;
  }

  /** A cursor may come back (A, B, A). The head's `prev_generated_at` tells which one is meant, or else the index. @param {any} document */
  #isCertain(document) {
    const head = this.#head;
    return (
      document.prev_cursor === ZERO ||
      this.#hasNoIndex ||
      (head && has([head], document) && time(head.prev_generated_at) === time(this.state.generated_at))
    );
  }

  /** Delivers the snapshots between what was delivered and the latest document. @param {Document} latest @returns {AsyncGenerator<Page, void, void>} */
  async *#walk(latest) {
    const url = indexUrl(/** @type {string} */ (this.#urls.latest), latest.value.source_id);
    const { answer, error } = await this.#get(url);
    const index = error ? undefined : readIndex(answer, await answer.text());
    this.#hasNoIndex = index === undefined;
    const { value } = latest;
    const { state } = this;
    if (index === undefined) return yield* this.#deliverAlone(latest, `no index at ${shown(url)}`);
    const { snapshots, isChained } = index;
    const last = snapshots.at(-1);
    const leadsUp = value.changed && last?.cursor === value.prev_cursor;
    const isShort = isChained && !leadsUp && !snapshots.some(({ cursor }) => cursor === value.cursor);
    // An index with what was delivered is no old copy: a clock may have gone back since.
    if (isShort || (isChained && this.#isOlder(last) && !has(snapshots, state))) this.#lag(url);
    const { walk, gaps, beganAnew, isPlaced } = plan(snapshots, state);
    if (isShort && !isPlaced) return yield* this.#deliverAlone(latest, SHORT);
    if (isChained && !isShort && state.since && state.cursor === undefined && walk.length === 0)
      return yield this.#moveTo(value.cursor);
    if (beganAnew) yield this.#reset(latest);
    for (const gap of gaps) this.#gap(url, gap);
    for (const [at, listed] of walk.entries())
      yield* this.#snapshot(new URL(listed.url, url).href, listed, at === walk.length - 1 ? latest : undefined);
    // The state is beyond it: a cursor came back, and its server lags.
    if (has(snapshots, value) && !has(walk, value)) return;
    if (this.#follows(value)) yield* this.#deliver(latest, true);
    else if ((isShort || !isChained) && this.state.cursor !== value.cursor) yield* this.#deliverAlone(latest, SHORT);
  }

  /** @param {any} document a document or an entry of the index, if there is one */
  #isOlder(document) {
    return time(document?.generated_at) < time(this.state.generated_at);
  }

  /** One of several servers or caches may lag, which is neither new content nor a gap. Fails until it lags for long. @param {string} url */
  #lag(url) {
    this.#lagged ||= Date.now();
    // Caches keep an index for a minute (section 6.4).
    if (Date.now() - this.#lagged < 200_000) throw new ProtocolError("lags behind", url);
  }

  /**
   * @param {string} url @param {import("./archive.js").Snapshot} listed @param {Document | undefined} last the latest document, at its end
   * @returns {AsyncGenerator<Page, void, void>}
   */
  async *#snapshot(url, listed, last) {
    const { answer, error } = await this.#get(url);
    if (error) {
      if (last && last.value.cursor === listed.cursor)
        return yield* this.#deliver(
          { ...last, value: { ...last.value, generated_at: listed.generated_at } },
          last.value.changed,
        );
      this.#gap(url, `the snapshot of ${listed.cursor} is gone`);
      // Counts as delivered; otherwise it would be asked for without end.
      return yield this.#moveTo(listed.cursor || this.state.cursor, listed.generated_at);
    }
    const bytes = await answer.bytes();
    const digest = await sha256(bytes);
    const stated = listed.sha256.replace(/^sha256:/, "");
    if (stated && stated !== digest) throw new ProtocolError(`its SHA-256 is ${digest}, in the index ${stated}`, url);
    const text = new TextDecoder().decode(bytes);
    const value = await this.#read(answer, text);
    const { cursor } = this.state;
    if (listed.cursor) {
      if (value.cursor !== listed.cursor)
        throw new ProtocolError(`its cursor is ${value.cursor}, in the index ${listed.cursor}`, url);
    } else {
      // Without cursors in the index, the document itself tells what is missing before it.
      if (value.cursor === cursor) return;
      if (cursor && value.changed && value.prev_cursor !== cursor)
        this.#gap(url, `nothing between ${cursor} and ${value.cursor}`);
    }
    yield* this.#deliver({ url, text, value }, true);
  }

  /** @param {string} url @param {string} text */
  #gap(url, text) {
    this.#options.gap(new GapError(`changes are missing: ${text}`, url));
  }

  /** The publisher began anew: its chain starts at zero and lacks the stored cursor. @param {Document} latest @returns {Page} */
  #reset({ value, url }) {
    this.state = { validator: this.state.validator, verified: this.state.verified, cursor: ZERO };
    return this.#page({ feed: value.source_id ?? sourceOf(url) ?? url, op: "reset" });
  }

  /** Delivers the latest document without an index, and tells a gap before it. @param {Document} latest @param {string} why @returns {AsyncGenerator<Page, void, void>} */
  async *#deliverAlone(latest, why) {
    const { value, url } = latest;
    const known = this.state.cursor ?? this.state.partial?.cursor;
    if (!this.#follows(value) && this.state.partial?.cursor !== value.cursor) {
      if (this.#isOlder(value)) this.#lag(url);
      if (known === undefined) this.#warn(url, `only the latest changes are there: ${why}`);
      else if (value.changed && value.prev_cursor === ZERO) yield this.#reset(latest);
      else this.#gap(url, `between ${known} and ${value.cursor}: ${why}`);
    }
    yield* this.#deliver(latest, value.changed);
  }

  /** Recomputes a document's cursor (section 3). @param {Document} document */
  async #prove({ url, text, value }) {
    try {
      const bare = text.replace(/^\ufeff/, "");
      const isProved =
        `sha256:${await sha256(canonical(JSON.parse(bare)))}` === value.cursor ||
        `sha256:${await sha256(pythonCanonical(bare))}` === value.cursor;
      if (isProved) this.state = { ...this.state, verified: true };
      // A publisher whose cursors were proved once has been changed on its way, or is broken.
      else if (this.state.verified) throw new ProtocolError("its content does not match its cursor", url);
      else this.#warn(url, "its cursor cannot be computed; following without proof");
    } catch (cause) {
      if (cause instanceof TowpathError) throw cause;
      throw new ProtocolError("its cursor cannot be computed", url, cause);
    }
  }

  /** @param {Document} document @param {boolean} isProvable carried documents do not hash to their cursor @returns {AsyncGenerator<Page, void, void>} */
  async *#deliver(document, isProvable) {
    const { value, url } = document;
    if (isProvable) await this.#prove(document);
    const { since, partial } = this.state;
    // Documents have whole seconds.
    const isEarlier = time(value.generated_at) < Math.floor(time(since) / 1000) * 1000;
    const feed = value.source_id ?? sourceOf(/** @type {string} */ (this.#urls.latest)) ?? url;
    for (const [name, list] of Object.entries(value.buckets)) {
      if (list?.length && !BUCKETS.includes(name))
        this.#warn(url, `the bucket ${name} is unknown; ${list.length} items are left out`);
    }
    const deltas = [];
    for (const name of BUCKETS) {
      for (const item of value.buckets[name] ?? []) {
        // The chain leads to the document that had it first.
        if (isRepeat(item)) continue;
        if (typeof item?.id === "string" && item.id)
          deltas.push(parsed(() => fromDelta(item, name, feed), "a malformed item", url));
        else this.#warn(url, `an item of bucket ${name} has no id`);
      }
    }
    // Stable: changes of one time keep the order of the buckets, and those without a time come first.
    deltas.sort((a, b) => (a.at || 0) - (b.at || 0));
    const before = partial && partial.cursor === value.cursor ? partial.delivered : 0;
    const isWanted = (/** @type {number} */ at) => (isNaN(at) ? !isEarlier : !(at < time(since)));
    const wanted = deltas
      .map((delta, at) => ({ ...delta, number: at + 1 }))
      .filter((delta) => delta.number > before && isWanted(delta.since));
    const base = this.state;
    const done = { ...base, cursor: value.cursor, generated_at: value.generated_at, partial: undefined };
    /** @param {number} at @returns {DiffDeltaState} */
    const states = (at) =>
      at >= wanted.length - 1 ? done : { ...base, partial: { cursor: value.cursor, delivered: wanted[at].number } };
    const changes = wanted.map(({ change, number }, at) => ({
      ...change,
      position: at === wanted.length - 1 ? value.cursor : `${value.cursor}/${number}`,
    }));
    this.state = done;
    this.#session.ok();
    yield { changes: /** @type {any[]} */ (changes), states, state: done };
  }
}
