// DiffDelta: head, latest document, and the archive for what was missed. Every cursor is recomputed.
import { canonical, pythonCanonical, sha256 } from "./canonical.js";
import { GapError, ProtocolError, TowpathError, UsageError, parsed, shown } from "./errors.js";
import { fromDelta, isRepeat, time } from "./line.js";
import { plan, readIndex } from "./archive.js";
import { indexUrl, locate, sourceOf } from "./locate.js";
import { sleep } from "./session.js";

export const ZERO = `sha256:${"0".repeat(64)}`;
const CURSOR = /^sha256:[0-9a-f]{64}$/;
/** Poll interval where the publisher states none, and bounds of what it may state, in seconds. */
const TTL = 300;
const MIN_TTL = 15;
const MAX_TTL = 86_400;
/** Buckets in the order of delivery, with the kind that an item has without its own. */
const BUCKETS = /** @type {const} */ ([
  ["new", "new"],
  ["updated", "updated"],
  ["items", "updated"],
  ["flagged", "updated"],
  ["removed", "removed"],
]);

/**
 * @typedef {{ cursor?: string, generated_at?: string, partial?: { cursor: string, delivered: number }, since?: string,
 *   validator?: { etag: string, cursor: string }, verified?: boolean }} DiffDeltaState
 * @typedef {{ url: string, text: string, value: any }} Document
 * @typedef {import("./follow.js").Page} Page
 */

/** @param {string} position a cursor, or a cursor and the number of a change @returns {DiffDeltaState} */
function after(position) {
  const [cursor, number] = position.split("/");
  if (!CURSOR.test(cursor) || (number !== undefined && !/^\d+$/.test(number))) {
    throw new UsageError(`${JSON.stringify(position)} is no position of a DiffDelta feed`);
  }
  return number === undefined ? { cursor } : { partial: { cursor, delivered: Number(number) } };
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
    this.state = { ...this.state, validator: etag === null ? undefined : { etag, cursor } };
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
      if (typeof latest !== "string")
        throw new ProtocolError("endpoints.diff_latest is missing (section 8)", urls.manifest);
      this.#urls = locate(new URL(answer.link(latest)));
      if (this.#urls.manifest) throw new ProtocolError("endpoints.diff_latest is itself a manifest", urls.manifest);
      return yield* this.#pass();
    }
    if (urls.head && !(await this.#pollHead(urls.head))) return yield this.#page();
    const latest = /** @type {string} */ (urls.latest);
    const { status, answer, error } = await this.#get(latest, !urls.head);
    if (status === 304) return;
    if (error) throw error;
    const text = await answer.text();
    const document = { url: answer.url, text, value: await this.#read(answer, text) };
    yield* this.#handleLatest(document, answer);
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
      return this.#startAfter(cursor, head.changed ? head.generated_at : undefined);
    return true;
  }

  /** @param {string} cursor @param {string | undefined} at */
  #startAfter(cursor, at) {
    this.isNew = false;
    this.state = { ...this.state, cursor, generated_at: at };
    return false;
  }

  /** A page that only moves the state. @returns {Page} */
  #page() {
    const { state } = this;
    return { changes: [], states: () => state, state };
  }

  /** @param {import("./session.js").Answer} answer @param {string} text */
  async #read(answer, text) {
    const value = await answer.json(text);
    const { buckets } = value ?? {};
    if (typeof buckets !== "object" || !buckets || BUCKETS.some(([name]) => !Array.isArray(buckets[name] ?? [])))
      throw answer.wrong("no buckets");
    return { ...value, cursor: value.cursor || ZERO, prev_cursor: value.prev_cursor ?? "" };
  }

  /** @param {Document} latest @param {import("./session.js").Answer} answer @returns {AsyncGenerator<Page, void, void>} */
  async *#handleLatest(latest, answer) {
    const { value, url } = latest;
    this.#keepTtl(value.ttl_sec);
    if (!this.#urls.head) this.#keepValidator(answer, value.cursor);
    const { cursor } = this.state;
    if (value.cursor === cursor) return yield this.#page();
    if (this.isNew || (value.cursor === ZERO && cursor === undefined)) {
      this.#startAfter(value.cursor, undefined);
      return yield this.#page();
    }
    if (value.cursor === ZERO) throw new ProtocolError("the cursor became zero (section 5)", url);
    // One of several servers or caches lags: neither new content nor a gap.
    if (Number(time(value.generated_at)) < Number(time(this.state.generated_at))) return;
    if (this.#follows(value) && this.#isCertain(value)) return yield* this.#deliver(latest, true);
    yield* this.#walk(latest);
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
  #isCertain({ cursor, prev_cursor, generated_at }) {
    const head = this.#head;
    const { generated_at: before } = this.state;
    return (
      prev_cursor === ZERO ||
      this.#hasNoIndex ||
      (before !== undefined &&
        head?.cursor === cursor &&
        head.generated_at === generated_at &&
        head.prev_generated_at === before)
    );
  }

  /** Delivers the snapshots between what was delivered and the latest document. @param {Document} latest @returns {AsyncGenerator<Page, void, void>} */
  async *#walk(latest) {
    const url = indexUrl(/** @type {string} */ (this.#urls.latest), latest.value.source_id);
    const { answer, error } = await this.#get(url);
    const index = error ? undefined : readIndex(answer, await answer.text());
    this.#hasNoIndex = index === undefined;
    if (index === undefined) return yield* this.#deliverAlone(latest, `there is no index at ${shown(url)}`);
    const { snapshots, isChained } = index;
    const leadsUp = latest.value.changed && snapshots.at(-1)?.cursor === latest.value.prev_cursor;
    if (isChained && !leadsUp && !snapshots.some(({ cursor }) => cursor === latest.value.cursor)) {
      throw new ProtocolError(`the index does not reach ${latest.value.cursor} yet`, url);
    }
    const { walk, gaps, beganAnew } = plan(snapshots, this.state);
    if (isChained && this.state.since && this.state.cursor === undefined && walk.length === 0) {
      this.#startAfter(latest.value.cursor, undefined);
      return yield this.#page();
    }
    if (beganAnew) yield this.#reset(latest);
    for (const gap of gaps) this.#gap(url, gap);
    for (const [at, listed] of walk.entries())
      yield* this.#snapshot(new URL(listed.url, url).href, listed, at === walk.length - 1 ? latest : undefined);
    if (this.#follows(latest.value)) yield* this.#deliver(latest, true);
    else if (!isChained && this.state.cursor !== latest.value.cursor)
      yield* this.#deliverAlone(latest, "the index does not reach it");
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
      this.state = {
        ...this.state,
        cursor: listed.cursor || this.state.cursor,
        generated_at: listed.generated_at,
        partial: undefined,
      };
      return yield this.#page();
    }
    const bytes = await answer.bytes();
    const digest = await sha256(bytes);
    const stated = listed.sha256.replace(/^sha256:/, "");
    if (stated && stated !== digest) throw new ProtocolError(`its SHA-256 is ${digest}, in the index ${stated}`, url);
    const text = new TextDecoder().decode(bytes);
    const value = await this.#read(answer, text);
    if (listed.cursor && value.cursor !== listed.cursor)
      throw new ProtocolError(`its cursor is ${value.cursor}, in the index ${listed.cursor}`, url);
    // Without cursors in the index, the document itself tells what is missing before it.
    if (!listed.cursor && value.cursor === this.state.cursor) return;
    if (!listed.cursor && this.state.cursor && value.changed && value.prev_cursor !== this.state.cursor) {
      this.#gap(url, `nothing between ${this.state.cursor} and ${value.cursor}`);
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
    const { state } = this;
    return { changes: [{ feed: value.source_id ?? sourceOf(url) ?? url, op: "reset" }], states: () => state, state };
  }

  /** Delivers the latest document without an index, and tells a gap before it. @param {Document} latest @param {string} why @returns {AsyncGenerator<Page, void, void>} */
  async *#deliverAlone(latest, why) {
    const { value, url } = latest;
    const known = this.state.cursor ?? this.state.partial?.cursor;
    if (!this.#follows(value) && this.state.partial?.cursor !== value.cursor) {
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
    const isEarlier = Number(time(value.generated_at)) < Math.floor(Number(time(since)) / 1000) * 1000;
    const feed = value.source_id ?? sourceOf(/** @type {string} */ (this.#urls.latest)) ?? url;
    for (const [name, list] of Object.entries({
      ...value.buckets,
      ...Object.fromEntries(BUCKETS.map(([name]) => [name, []])),
    })) {
      if (list?.length) this.#warn(url, `the bucket ${name} is unknown, and its ${list.length} items are left out`);
    }
    const deltas = [];
    for (const [name, kind] of BUCKETS) {
      for (const item of value.buckets[name] ?? []) {
        // The chain leads to the document that had it first.
        if (isRepeat(item)) continue;
        if (typeof item?.id === "string" && item.id)
          deltas.push(parsed(() => fromDelta(item, kind, feed), "a malformed item", url));
        else this.#warn(url, `an item of bucket ${name} has no id`);
      }
    }
    // Stable: changes of one time keep the order of the buckets, and those without a time come first.
    deltas.sort((a, b) => (a.at ?? -Infinity) - (b.at ?? -Infinity) || 0);
    const before = (partial?.cursor === value.cursor && partial?.delivered) || 0;
    const isWanted = (/** @type {number | undefined} */ at) =>
      at === undefined ? !isEarlier : since === undefined || at >= Number(time(since));
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
