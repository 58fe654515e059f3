/**
 * States and stores in files, for Node and Deno.
 *
 * @packageDocumentation
 */
import type { ItemChange, SavedState, State, Store } from "./index.js";

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
