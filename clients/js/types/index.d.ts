/**
 * Follow feeds, exactly once, in browsers, Node and Deno.
 *
 * ```js
 * import { follow } from "towpath";
 *
 * for await (const change of follow("https://example.com/feeds/news")) console.log(change.op, change.id);
 * ```
 *
 * @packageDocumentation
 */

/** Person or program that wrote an item. */
export interface Author {
  name: string;
  email?: string;
  url?: string;
}

/** File that belongs to an item. */
export interface Attachment {
  url: string;
  media_type?: string;
  size?: number;
  title?: string;
  /** SHA-256 of the file's bytes, in hex. */
  sha256?: string;
  [more: string]: unknown;
}

/** Fields of an item beside its content. Times are RFC 3339. */
export interface Item {
  title?: string;
  url?: string;
  summary?: string;
  published?: string;
  updated?: string;
  authors?: Author[];
  tags?: string[];
  image?: string;
  attachments?: Attachment[];
  /** Members that only this publisher has. */
  extra?: Record<string, unknown>;
}

/** Members that hold content: one of `json`, `content` and `content_base64`. */
export interface Content {
  /** Media type of the content. */
  content_type?: string;
  /** Content that is JSON, as a value. Numbers beyond a double lose digits, as everywhere in JavaScript. */
  json?: unknown;
  /** Content that is other text. */
  content?: string;
  /** Content that is not text, in Base 64. */
  content_base64?: string;
}

/** Change of an item, in the shape of `docs/change-format.md`. Absent members are left out, never `null`. */
export interface ItemChange extends Content {
  /** The feed's own name, or its URL where only that is known. */
  feed: string;
  /** `patch` is a put that the publisher made by a patch: the change has the whole item. */
  op: "put" | "patch" | "delete";
  id: string;
  /** Resume point: the option `from` of {@link follow} takes it. */
  position?: string;
  /** Time of the change at its publisher. */
  modified?: string;
  item?: Item;
  /** The patch itself, where a publisher tells every version. */
  patch?: Content;
}

/** The feed began anew: drop what you have of it. Everything that it has follows. */
export interface ResetChange {
  feed: string;
  op: "reset";
  id?: undefined;
  position?: undefined;
  item?: undefined;
}

/** One change of a feed. */
export type Change = ItemChange | ResetChange;

/** Change to publish. Only `id` is needed; `feed` and `position` of a followed change are ignored. */
export interface Line {
  id: string;
  /** `put` by default. */
  op?: "put" | "patch" | "delete";
  content_type?: string;
  json?: unknown;
  /** Text, or bytes, which are sent in Base 64. */
  content?: string | ArrayBuffer | ArrayBufferView;
  content_base64?: string;
  item?: Item;
  patch?: Content;
  modified?: string;
  /** Time at which the server publishes the change. */
  publish_at?: string;
  feed?: string;
  position?: string;
}

/** Count of what a server did with published lines. */
export interface Published {
  /** Changes that were published. */
  appended: number;
  /** Those among them whose item was there before. */
  changed: number;
  /** Lines that were left out, since the item is as they say already. */
  unchanged: number;
  /** Lines that are kept until their `publish_at`. */
  scheduled?: number;
  [more: string]: unknown;
}

/** Where to begin: all there is, only what comes, a time, a change's position, or the last items. */
export type From = "beginning" | "now" | Date | { last: number } | (string & {});

/** Progress of a follow, as a {@link State} keeps it. The command line's state files have the same form. */
export interface SavedState {
  /** Version of the form. */
  towpath_state: 1;
  url: string;
  protocol: "smart" | "events" | "diffdelta";
  /** The address that is followed, where `url` only leads to it. */
  follows?: string;
  /** The protocol's own part. */
  state: unknown;
}

/** Place of a state: a file, a database, an object. Errors become a {@link StateError}. */
export interface State {
  /** Returns what was saved last; `undefined` or `null` the first time. */
  load(): SavedState | null | undefined | Promise<SavedState | null | undefined>;
  /** Replaces what was saved. */
  save(state: SavedState): void | Promise<void>;
}

/** Destination of {@link copy}. Its errors end the copy and reach the caller as they are. */
export interface Store {
  /** Returns the state of the last transaction; `undefined` or `null` the first time. */
  load(): SavedState | null | undefined | Promise<SavedState | null | undefined>;
  /** Applies changes and saves the state, in one transaction: then each change takes effect exactly once. */
  apply(changes: Change[], state: SavedState): void | Promise<void>;
}

/** Options of everything that sends requests. */
export interface RequestOptions {
  /** Ends the operation: it throws the signal's reason. */
  signal?: AbortSignal;
  /** Bearer token. Only the scheme, host and port of the given address receive it. */
  token?: string;
  /** Request headers, likewise for that address only. */
  headers?: Record<string, string>;
  /** Longest silence of a server before a request is given up, in milliseconds: 30,000 by default. */
  patience?: number;
  /** Time of failures after which the last one is thrown, in milliseconds: never by default, 30,000 with `once`. */
  giveUpAfter?: number;
  /** Receives warnings about failed attempts; `console` by default. */
  log?: { warn(message: string): void };
  /** Function in the place of `fetch`. */
  fetch?: typeof globalThis.fetch;
}

/** Options of {@link follow}. */
export interface FollowOptions extends RequestOptions {
  /** Where to begin, if the state has nothing yet: `"beginning"` by default. */
  from?: From;
  /** Progress over restarts: `localStorage`, `fileState(path)` of `towpath/node`, or an object of yours. */
  state?: State | Storage;
  /** Protocol; `auto` takes the strongest one that the address offers, Smart Feeds by long poll before the others. */
  protocol?: "auto" | "smart" | "events" | "diffdelta";
  /** Ends with what is published now. */
  once?: boolean;
  /** Longest time that finished changes stay unsaved while more are at hand, in milliseconds: 1000 by default, 0 for each. */
  saveEvery?: number;
  /** Receives changes that the publisher cannot supply any more; by default they are a warning. May throw. */
  onGap?(gap: GapError): void;
}

/** Protocol by which an address can be followed. */
export interface Offer {
  protocol: "smart" | "events" | "diffdelta";
  url: string;
}

/** Rule of a specification, with its outcome. */
export interface Finding {
  section: string;
  level: "MUST" | "SHOULD" | "ADVICE";
  rule: string;
  outcome: "pass" | "fail" | "skipped";
  /** What was seen, if the rule failed. */
  detail?: string;
}

/** Result of {@link check}, in the form of `towpath check --format json`. */
export interface Report {
  url: string;
  protocol: string;
  /** True if no MUST failed. */
  conforms: boolean;
  findings: Finding[];
}

/**
 * Follows a feed: an endless iterator of its changes, in order, over restarts of either side.
 *
 * The state moves past a change when the loop asks for the next one. A loop body that throws, `break`s or `return`s
 * leaves its change unfinished: it comes again. Failures that pass are retried with growing waits; others are thrown.
 */
export function follow(url: string | URL, options?: FollowOptions): AsyncGenerator<Change, void, void>;

/** Copies a feed into a store that keeps items and position in one transaction. Ends only with `once`, or an error. */
export function copy(url: string | URL, store: Store, options?: Omit<FollowOptions, "state">): Promise<void>;

/** Finds every protocol of this package that an address offers, the preferred one first. Throws if there is none. */
export function discover(url: string | URL, options?: RequestOptions): Promise<Offer[]>;

/**
 * Checks what a reader of a feed depends on: about ten rules of Smart Feeds or fifteen of DiffDelta.
 * `towpath check` has all rules, of every protocol.
 */
export function check(url: string | URL, options?: RequestOptions & { protocol?: "auto" | "smart" | "diffdelta" }): Promise<Report>;

/** Publishes lines to a feed (`…/feeds/{feed}`): all of them, or none. `expect` demands the feed's last position. */
export function publish(url: string | URL, lines: Iterable<Line>, options?: RequestOptions & { expect?: number }): Promise<Published>;

/** Returns a state in a web `Storage` under a key of your own. */
export function storageState(storage: Storage, key: string): State;

/** Server of towpath, to publish to. */
export class Client {
  /** @param base address of the server */
  constructor(base: string | URL, options?: RequestOptions);
  /** Returns the feed with this id. */
  feed(id: string): FeedClient;
}

/** Feed of a server, to publish to. Requests are sent once: a failure is thrown, and the same call may be made again. */
export class FeedClient {
  /** @param url address of the feed */
  constructor(url: string | URL, options?: RequestOptions);
  /** Publishes an item, new or changed. */
  put(id: string, line: Omit<Line, "id" | "op">): Promise<Published>;
  /** Changes parts of an item by a merge patch (RFC 7396) of its line. */
  patch(id: string, changes: Record<string, unknown>): Promise<Published>;
  /** Deletes an item. */
  delete(id: string): Promise<Published>;
  /** Returns an item as it is now. */
  get(id: string): Promise<ItemChange>;
  /** Publishes several changes: all of them, or none. `expect` demands the feed's last position. */
  batch(lines: Iterable<Line>, options?: { expect?: number }): Promise<Published>;
}

/** Base of all errors of this package. `cause` says why, where there is more to say. */
export class TowpathError extends Error {
  constructor(message: string, url?: string | URL, cause?: unknown);
  /** Where: an address without credentials and query. */
  url: string | undefined;
}

/** Argument that cannot be used, such as a text that is no URL. */
export class UsageError extends TowpathError {}

/** State that cannot be loaded, saved or used: of another feed, of another version, damaged. */
export class StateError extends TowpathError {}

/** No answer, or half of one: the server is away, silent, or cut off. */
export class NetworkError extends TowpathError {}

/** Answer that is not what the protocol says: HTML, broken JSON, a wrong digest. */
export class ProtocolError extends TowpathError {}

/** Changes that the publisher cannot supply any more. */
export class GapError extends TowpathError {}

/** Error status of a server. */
export class HttpError extends TowpathError {
  constructor(message: string, url: string, status: number, retryAfter?: number, problem?: Record<string, unknown>);
  status: number;
  /** Milliseconds until the server wants to be asked again. */
  retryAfter: number | undefined;
  /** The problem document (RFC 9457), where there is one. */
  problem: Record<string, unknown> | undefined;
}
