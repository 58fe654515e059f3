// The archive index of a DiffDelta feed: which snapshots lie between what was delivered and the latest document.
import { parsed } from "./errors.js";
import { time } from "./line.js";

export const ZERO = `sha256:${"0".repeat(64)}`;

/**
 * @typedef {{ url: string, cursor: string, prev_cursor: string, generated_at: string, sha256: string }} Snapshot
 * @typedef {import("./diffdelta.js").DiffDeltaState} DiffDeltaState
 */

/**
 * Reads an index, ours or another publisher's: in any order, with members missing. Undefined if it is none.
 * @param {import("./session.js").Answer} answer @param {string} body
 */
export function readIndex(answer, body) {
  // Sites with a catch-all route answer any path with 200 and HTML.
  if (answer.type && !answer.type.includes("json")) return undefined;
  const stated = parsed(() => JSON.parse(body), "not JSON", answer.url);
  if (!Array.isArray(stated?.snapshots)) return undefined;
  /** @type {Snapshot[]} */
  const snapshots = stated.snapshots
    .filter((/** @type {any} */ s) => typeof s?.url === "string" && s.url)
    .map((/** @type {any} */ s) => ({
      url: answer.link(s.url),
      cursor: s.cursor ?? "",
      prev_cursor: s.prev_cursor ?? "",
      sha256: String(s.sha256 ?? ""),
      // Some state the file name's compact form, or nothing.
      generated_at: String(s.generated_at ?? s.url.replace(/.*\/|_.*/g, "")),
    }));
  return { snapshots: order(snapshots), isChained: snapshots.every((s) => s.cursor && s.prev_cursor) };
}

/** Oldest first: by time, or as listed or turned round if more of them follow on the one before. @param {Snapshot[]} listed */
function order(listed) {
  const at = (/** @type {Snapshot | undefined} */ s) => time(s?.generated_at) || 0;
  const links = (/** @type {Snapshot[]} */ list) =>
    list.filter(({ prev_cursor }, i) => prev_cursor && prev_cursor === list[i - 1]?.cursor).length;
  const turned = [...listed].reverse();
  // Newest first is turned round, so that snapshots of one second are, too.
  const sorted = [...(at(listed[0]) > at(turned[0]) ? turned : listed)].sort((a, b) => at(a) - at(b));
  // A publisher's clock may have gone back, and cursors tell the order for certain.
  return [listed, turned].find((list) => links(list) > links(sorted)) ?? sorted;
}

/** Index of the snapshot with this cursor and time, or else -1. @param {Pick<Snapshot, "cursor" | "generated_at">[]} listed @param {{ cursor?: string, generated_at?: string }} state */
const indexOf = (listed, { cursor, generated_at }) =>
  listed.findIndex((s) => s.cursor === cursor && time(s.generated_at) === time(generated_at));

/** True if this snapshot is listed. @type {(...of: Parameters<typeof indexOf>) => boolean} */
export const has = (...of) => indexOf(...of) >= 0;

/**
 * The snapshots to deliver, oldest first, and what is missing between them.
 * @param {Snapshot[]} listed @param {DiffDeltaState} state
 */
export function plan(listed, state) {
  let first = firstWanted(listed, state);
  const isPlaced = first >= 0;
  const known = state.cursor ?? state.partial?.cursor;
  const gaps = [];
  const beganAnew = !isPlaced && listed[0]?.prev_cursor === ZERO;
  if (!isPlaced) {
    // Section 1.3 forbids deletion, yet a publisher may trim its archive.
    if (!beganAnew && known) gaps.push(`the archive no longer has ${known}`);
    first = 0;
  }
  const walk = listed.slice(first);
  walk.forEach(({ cursor, prev_cursor }, i) => {
    const before = walk[i - 1]?.cursor;
    if (before && prev_cursor && prev_cursor !== before) gaps.push(`nothing between ${before} and ${cursor}`);
  });
  return { walk, gaps, beganAnew, isPlaced };
}

/** Index of the first snapshot to deliver; -1 if nothing tells. @param {Snapshot[]} listed @param {DiffDeltaState} state */
function firstWanted(listed, state) {
  const { cursor, generated_at, partial, since } = state;
  const from = since === undefined ? 0 : firstSince(listed, since);
  if (cursor === undefined) {
    if (!partial) return from;
    const found = listed.findIndex((s, i) => i >= from && s.cursor === partial.cursor);
    return found >= 0 || (since === undefined && listed.every((s) => s.cursor)) ? found : from;
  }
  // The chain starts at zero; if the oldest entry does not, its start was trimmed.
  if (cursor === ZERO) return (listed[0]?.prev_cursor ?? ZERO) === ZERO ? 0 : -1;
  // Of several with the cursor, the one with the stored time counts, or else the first, so that nothing is missed.
  let found = indexOf(listed, state);
  if (found < 0) found = listed.findIndex((s) => s.cursor === cursor);
  if (found >= 0) return found + 1;
  // The snapshot itself may be gone. Its successor names it.
  found = listed.findIndex((s) => s.prev_cursor === cursor);
  const delivered = time(generated_at);
  if (found >= 0 || isNaN(delivered) || listed.every((s) => s.cursor)) return found;
  const later = listed.findIndex((s) => time(s.generated_at) > delivered);
  return later < 0 ? listed.length : later;
}

/** Index of the first snapshot with changes of a time or later. Snapshots have whole seconds. @param {Snapshot[]} listed @param {string} since */
function firstSince(listed, since) {
  const start = Math.floor(time(since) / 1000) * 1000;
  return listed.findLastIndex((s) => time(s.generated_at) < start) + 1;
}
