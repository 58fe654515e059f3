// States and stores in files, and copies by the command line, for Node and Deno: `import { fileState } from "towpath/node"`.
import { closeSync, fsyncSync, openSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { fileURLToPath } from "node:url";

export { copyInto } from "./copy_into.js";

/** Replaces a file so that a crash leaves the old one or the new one, whole. @param {string} path @param {string} text */
function replace(path, text) {
  // One name, so that kills leave one file at most. A state is for one process at a time.
  const next = `${path}.tmp`;
  const file = openSync(next, "w");
  try {
    writeFileSync(file, text);
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
  renameSync(next, path);
  // The rename itself is durable with its folder. Windows has no handles of folders.
  if (process.platform === "win32") return;
  const folder = openSync(dirname(path), "r");
  fsyncSync(folder);
  closeSync(folder);
}

/** @param {string} path */
function read(path) {
  try {
    return JSON.parse(readFileSync(path, "utf8"));
  } catch (error) {
    if (/** @type {NodeJS.ErrnoException} */ (error).code === "ENOENT") return undefined;
    throw error;
  }
}

/**
 * A state in a file, together with data of the program's own.
 * @template [T=undefined]
 */
class FileState {
  /** @param {string | URL} path @param {T} data */
  constructor(path, data) {
    this.path = path instanceof URL ? fileURLToPath(path) : path;
    /** @type {T} */
    this.data = data;
  }

  load() {
    const saved = read(this.path);
    if (saved && "data" in saved) this.data = saved.data;
    return saved;
  }

  /** @param {import("../types/index.js").SavedState} state */
  save(state) {
    replace(this.path, `${JSON.stringify(this.data === undefined ? state : { ...state, data: this.data })}\n`);
  }
}

/** @template [T=undefined] @param {string | URL} path @param {T} [data] @returns {FileState<T>} */
export function fileState(path, data) {
  return new FileState(path, /** @type {T} */ (data));
}

/** A copy of a feed's items in one file. */
class FileStore {
  #file;

  /** @param {string | URL} path */
  constructor(path) {
    this.#file = new FileState(path, /** @type {Record<string, import("../types/index.js").ItemChange>} */ ({}));
  }

  /** @returns {Record<string, import("../types/index.js").ItemChange>} */
  get items() {
    return this.#file.data;
  }

  load() {
    return this.#file.load();
  }

  /** @param {import("../types/index.js").Change[]} changes @param {import("../types/index.js").SavedState} state */
  apply(changes, state) {
    // A copy: if it cannot be saved, the items stay those of the file.
    const items = new Map(Object.entries(this.#file.data));
    for (const change of changes) {
      if (change.op === "reset") items.clear();
      else if (change.op === "delete") items.delete(change.id);
      else items.set(change.id, change);
    }
    const before = this.#file.data;
    this.#file.data = Object.fromEntries(items);
    try {
      this.#file.save(state);
    } catch (error) {
      this.#file.data = before;
      throw error;
    }
  }
}

/** @param {string | URL} path */
export function fileStore(path) {
  return new FileStore(path);
}
