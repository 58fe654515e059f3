/** A URL as errors and logs show it: credentials and queries may be secrets. @param {string | URL} url */
export function shown(url) {
  const { origin, pathname, search } = new URL(url);
  return origin + pathname + (search && "?…");
}

/** Base of all errors of this package: `url` says where, `cause` why. */
export class TowpathError extends Error {
  name = "TowpathError";

  /** @param {string} message @param {string | URL} [url] @param {unknown} [cause] */
  constructor(message, url, cause) {
    const where = url && shown(url);
    super(where ? `${where}: ${message}` : message, cause === undefined ? undefined : { cause });
    this.url = where;
  }
}

/** An argument that cannot be used, such as a text that is no URL. */
export class UsageError extends TowpathError {
  name = "UsageError";
}

/** A state that cannot be read, saved or used: of another feed, of another version, damaged. */
export class StateError extends TowpathError {
  name = "StateError";
}

/** No answer, or half of one: the server is away, silent, or cut off. */
export class NetworkError extends TowpathError {
  name = "NetworkError";
}

/** An answer that is not what the protocol says: HTML, broken JSON, a wrong digest. */
export class ProtocolError extends TowpathError {
  name = "ProtocolError";
}

/** Runs what throws if an answer is malformed. @template T @param {() => T} act @param {string} reason @param {string} url */
export function parsed(act, reason, url) {
  try {
    return act();
  } catch (cause) {
    throw new ProtocolError(reason, url, cause);
  }
}

/** Changes that the publisher cannot supply any more. */
export class GapError extends TowpathError {
  name = "GapError";
}

/** An error status. */
export class HttpError extends TowpathError {
  name = "HttpError";

  /** @param {string} message @param {string} url @param {number} status @param {number} [retryAfter] @param {Record<string, unknown>} [problem] */
  constructor(message, url, status, retryAfter, problem) {
    super(message, url);
    this.status = status;
    this.retryAfter = retryAfter;
    this.problem = problem;
  }
}
