/**
 * States and stores in files, and copies by the command line, for Node and Deno.
 *
 * @packageDocumentation
 */
import type { GapError, ItemChange, SavedState, State, Store } from "./index.js";

/** State in a file, together with data of the program's own. */
export interface FileState<T> extends State {
  /** The program's data. They are saved in the same step as the state, so both are of the same moment after a crash. */
  data: T;
  load(): SavedState | undefined;
  save(state: SavedState): void;
}

/** Copy of a feed's items in a file, for `copy`. */
export interface FileStore extends Store {
  /** The live items by id. */
  readonly items: Record<string, ItemChange>;
}

/** Returns a state in a file, which is replaced atomically. `data` is what the program begins with. */
export function fileState<T = undefined>(path: string | URL, data?: T): FileState<T>;

/** Returns a copy of a feed's items in a file: position and items change in one step, so each change counts once. */
export function fileStore(path: string | URL): FileStore;

/** Options of {@link copyInto}. */
export interface CopyIntoOptions {
  /** Where to begin, if the destination has nothing yet: `"beginning"` by default, `"now"`, a time, a change's position. */
  from?: string | Date;
  /** Protocol; `auto` takes the strongest one that the address offers. */
  protocol?: "auto" | "smart" | "diffdelta" | "replication" | "history" | "rss";
  /** Ends with what is published now. */
  once?: boolean;
  /** File that keeps the position for a destination that does not: `exec:`, `webhook:`, `nats:`. */
  state?: string;
  /** Bearer token. Only the scheme, host and port of the given address receive it. */
  token?: string;
  /** Ends at an item that the destination refuses, instead of keeping it aside. */
  stopOnRefusedItem?: boolean;
  /** Ends the copy once it has written what it had received: it throws the signal's reason. */
  signal?: AbortSignal;
  /** Receives warnings about failed attempts; `console` by default. */
  log?: { warn(message: string): void };
  /** Receives changes that the publisher cannot supply any more; by default they are a warning. May throw. */
  onGap?(gap: GapError): void;
  /** The command line, which is not part of this package: `towpath` on the path by default. */
  program?: string;
}

/**
 * Copies a feed into a destination of the command line: `sqlite:PATH`, `postgres://USER@HOST/DATABASE`, `dir:PATH`,
 * `exec:COMMAND`, `webhook:URL` or `nats://HOST/SUBJECT`. Ends only with `once`, a signal, or an error.
 *
 * The program `towpath` does it, as a child process that ends with this one.
 */
export function copyInto(url: string | URL, destination: string, options?: CopyIntoOptions): Promise<void>;
