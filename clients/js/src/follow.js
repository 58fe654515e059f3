// The loop over changes: what to begin with, and how far the state may move.
import { ProtocolError, StateError, UsageError, shown } from "./errors.js";
import { DiffDelta } from "./diffdelta.js";
import { PREFERRED, discoverAll } from "./discover.js";
import { events } from "./events.js";
import { FeedName } from "./name.js";
import { Session, parseUrl } from "./session.js";
import { smart, smartState } from "./smart.js";

/** Version of a stored state. The command line writes and reads the same form. */
const VERSION = 1;
/** Longest time that finished changes of a page stay unsaved, in milliseconds. */
const SAVE_EVERY = 1000;

/**
 * Changes that arrived together. `states` gives the state after one of them, `state` after all.
 * @typedef {{ changes: import("../types/index.js").Change[], states: (at: number) => unknown, state: unknown }} Page
 * @typedef {import("../types/index.js").FollowOptions} FollowOptions
 * @typedef {import("../types/index.js").SavedState} SavedState
 */

/** A state in a web `Storage`, such as localStorage. @param {Storage} storage @param {string} key @returns {import("../types/index.js").State} */
export function storageState(storage, key) {
  return {
    load: () => JSON.parse(storage.getItem(key) ?? "null"),
    save: (state) => storage.setItem(key, JSON.stringify(state)),
  };
}

/** @param {string} why @param {URL} url */
const wrong = (why, url) => new StateError(`the state cannot be used: ${why}`, url);

/** @param {unknown} saved @param {URL} url */
function checked(saved, url) {
  if (saved === null || saved === undefined) return undefined;
  const { towpath_state: version, url: of, follows: at, protocol, state } = /** @type {Partial<SavedState>} */ (saved);
  if (version === undefined || typeof of !== "string" || typeof state !== "object")
    throw wrong("it is no state of towpath", url);
  if (version !== VERSION) throw wrong(`it has version ${version}, not ${VERSION}`, url);
  if (parseUrl(of).href !== url.href) throw wrong(`it is of ${shown(of)}`, url);
  if (!protocol || !PREFERRED.includes(protocol)) throw wrong(`it is of the protocol ${protocol}`, url);
  // Without a position after an interrupted first page: it is read again.
  return { protocol, state: state ?? undefined, at: parseUrl(at ?? of).href };
}

/** One follow, from its stored state on; every page says how the state moves. */
export class Follow {
  /** @type {SavedState | undefined} */
  saved;

  /** @param {string | URL} url @param {FollowOptions} options */
  constructor(url, options) {
    this.url = parseUrl(url);
    this.options = options;
    const { protocol = "auto", from, once } = options;
    if (protocol !== "auto" && !PREFERRED.includes(protocol))
      throw new UsageError(`protocol: ${protocol} is unknown`);
    if (from instanceof Date && isNaN(+from)) throw new UsageError("from: not a valid Date");
    if (protocol === "smart") smartState(this.url);
    if (once && protocol === "events") throw new UsageError("once: an event stream has no end");
    this.session = new Session(this.url, {
      ...options,
      giveUpAfter: options.giveUpAfter ?? (once ? 30_000 : Infinity),
    });
  }

  /** Where to follow: what the address offers. @param {string} protocol @returns {Promise<{ protocol: string, url: string }>} */
  async #place(protocol) {
    for (;;) {
      try {
        const offers = await discoverAll(this.session, this.url);
        this.session.ok();
        const offer = offers.find((one) => protocol === "auto" || one.protocol === protocol);
        return offer ?? { protocol, url: this.url.href };
      } catch (error) {
        // The protocol is given: an address that shows nothing may be that of the protocol itself.
        if (protocol !== "auto" && error instanceof ProtocolError) return { protocol, url: this.url.href };
        await this.session.retry(error);
      }
    }
  }

  /** @param {unknown} saved @returns {AsyncGenerator<Page, void, void>} */
  async *pages(saved) {
    const stored = checked(saved, this.url);
    const { once = false, from: wanted = "beginning", protocol: asked = "auto" } = this.options;
    if (stored && asked !== "auto" && asked !== stored.protocol)
      throw wrong(`it is of the protocol ${stored.protocol}`, this.url);
    const { protocol, url } = stored ? { protocol: stored.protocol, url: stored.at } : await this.#place(asked);
    const from = stored?.state ? undefined : wanted;
    const { href } = this.url;
    const feed = new FeedName(href, stored?.state);
    /** @param {unknown} state @returns {SavedState} */
    const envelope = (state) => ({
      towpath_state: VERSION,
      url: href,
      protocol: /** @type {SavedState["protocol"]} */ (protocol),
      ...(url !== href && { follows: url }),
      state: feed.keep(state),
    });
    let pages;
    if (protocol === "smart")
      pages = smart(this.session, /** @type {any} */ (stored?.state ?? smartState(new URL(url))), { from, once, feed });
    else if (protocol === "events") pages = events(this.session, new URL(url), stored?.state ?? {}, { from, feed });
    else {
      const gap = this.options.onGap ?? ((error) => this.session.log.warn(`towpath: ${error.message}`));
      pages = new DiffDelta(this.session, new URL(url), stored?.state ?? {}, { from, once, gap }).pages();
    }
    for await (const { changes, states, state } of pages)
      yield { changes, states: (at) => envelope(states(at)), state: envelope(state) };
  }
}

/** @param {FollowOptions["state"]} state @param {URL} url @returns {import("../types/index.js").State | undefined} */
function stateOf(state, url) {
  if (state === undefined) return undefined;
  if (typeof (/** @type {any} */ (state)?.getItem) === "function") return storageState(/** @type {Storage} */ (state), `towpath:${url.href}`);
  const own = /** @type {import("../types/index.js").State} */ (state);
  if (typeof own?.load === "function" && typeof own.save === "function") return own;
  throw new UsageError("state: neither a Storage nor load and save");
}

/** @template T @param {string} what @param {URL} url @param {() => T | Promise<T>} act */
async function stored(what, url, act) {
  try {
    return await act();
  } catch (cause) {
    if (cause instanceof StateError) throw cause;
    throw new StateError(`the state cannot be ${what}: ${/** @type {Error} */ (cause)?.message}`, url, cause);
  }
}

/**
 * Follows a feed.
 * @param {string | URL} url @param {FollowOptions} [options]
 * @returns {AsyncGenerator<import("../types/index.js").Change, void, void>}
 */
export async function* follow(url, options = {}) {
  const follow = new Follow(url, options);
  const state = stateOf(options.state, follow.url);
  const { saveEvery = SAVE_EVERY } = options;
  /** What was finished and not saved yet. @type {(() => unknown) | undefined} */
  let finished;
  let savedAt = Date.now();
  const save = async () => {
    const value = /** @type {SavedState} */ (finished?.());
    finished = undefined;
    savedAt = Date.now();
    if (state && value) await stored("saved", follow.url, () => state.save(value));
  };
  try {
    const saved = state && (await stored("loaded", follow.url, () => state.load()));
    for await (const { changes, states, state: after } of follow.pages(saved)) {
      for (let at = 0; at < changes.length; at++) {
        // A loop body that throws ends the generator here: its change is not finished, and comes again.
        yield changes[at];
        finished = () => states(at);
        if (Date.now() - savedAt >= saveEvery) await save();
      }
      finished = () => after;
      await save();
    }
  } finally {
    follow.session.close();
    await save();
  }
}

/**
 * Copies a feed into a store that keeps items and position together.
 * @param {string | URL} url @param {import("../types/index.js").Store} store @param {Omit<FollowOptions, "state">} [options]
 */
export async function copy(url, store, options = {}) {
  const follow = new Follow(url, options);
  try {
    const saved = await stored("loaded", follow.url, () => store.load());
    // The store's own errors pass as they are.
    for await (const { changes, state } of follow.pages(saved))
      await store.apply(changes, /** @type {SavedState} */ (state));
  } finally {
    follow.session.close();
  }
}
