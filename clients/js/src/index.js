// Follow feeds: Smart Feeds, event streams and DiffDelta, in browsers, Node and Deno.
import { canonical, pythonCanonical, sha256 } from "./canonical.js";
import { locate } from "./locate.js";
import { discoverAll } from "./discover.js";
import { Session, parseUrl } from "./session.js";

export { GapError, HttpError, NetworkError, ProtocolError, StateError, TowpathError, UsageError } from "./errors.js";
export { Client, FeedClient, publish } from "./client.js";
export { copy, follow, storageState } from "./follow.js";

/** @template T @param {string | URL} url @param {import("../types/index.js").RequestOptions} options @param {(session: Session, at: URL) => Promise<T>} act */
async function withSession(url, options, act) {
  const at = parseUrl(url);
  const session = new Session(at, options);
  try {
    return await act(session, at);
  } finally {
    session.close();
  }
}

/** @param {string | URL} url @param {import("../types/index.js").RequestOptions} [options] */
export const discover = (url, options = {}) => withSession(url, options, discoverAll);

/** @typedef {{ protocol?: "auto" | "smart" | "diffdelta" }} CheckOptions */
const parts = { canonical, discoverAll, locate, pythonCanonical, sha256 };

/** @param {string | URL} url @param {import("../types/index.js").RequestOptions & CheckOptions} [options] */
export const check = (url, options = {}) =>
  withSession(url, options, async (session, at) => {
    // Loaded when needed: programs that follow do not check.
    const { check } = await import("./check.js");
    return check(session, at, options.protocol ?? "auto", parts);
  });
