// Publishing to a feed of towpath.
import { UsageError } from "./errors.js";
import { Session, parseUrl } from "./session.js";

const encodeBase64 = (/** @type {Uint8Array} */ bytes) => {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
};

/** The bytes of a buffer, or of a view of one. @param {any} content */
function bytesOf(content) {
  if (content?.byteLength >= 0) return new Uint8Array(content.buffer ?? content, content.byteOffset, content.byteLength);
  throw new UsageError("content: neither text nor bytes");
}

/** A line as JSON. Bytes become Base 64, dates RFC 3339. @param {import("../types/index.js").Line} line */
function lineText(line) {
  const { content, ...rest } = line;
  if (content === undefined || typeof content === "string") return JSON.stringify(line);
  return JSON.stringify({ ...rest, content_base64: encodeBase64(bytesOf(content)) });
}

/** A feed to publish to. */
export class FeedClient {
  #options;

  /** @param {string | URL} url of the feed, `…/feeds/{feed}` @param {import("../types/index.js").RequestOptions} [options] */
  constructor(url, options = {}) {
    this.url = parseUrl(url);
    this.url.pathname = this.url.pathname.replace(/(\/items)?\/*$/, "");
    this.#options = options;
  }

  /** @param {string} path @param {string} method @param {string} [body] @param {string} [type] */
  async #send(path, method, body, type) {
    const session = new Session(this.url, this.#options);
    try {
      const answer = await session.send(this.url.href.replace(/\?.*$/, "") + path, {
        method,
        body,
        headers: type ? { "content-type": type } : {},
      });
      if (answer.status < 200 || answer.status > 299) throw await answer.error();
      return await answer.json();
    } finally {
      session.close();
    }
  }

  /** @param {string} id */
  #item(id) {
    // A URL takes `.` and `..` for steps in its path, however they are written: only a batch has them.
    if (typeof id !== "string" || /^\.{0,2}$/.test(id)) throw new UsageError("id: 1 to 2048 bytes, not . or ..");
    return `/items/${encodeURIComponent(id)}`;
  }

  /** @param {string} id @param {Omit<import("../types/index.js").Line, "id" | "op">} line */
  put(id, line) {
    return this.batch([{ ...line, id, op: "put" }]);
  }

  /** @param {string} id @param {Record<string, unknown>} changes */
  async patch(id, changes) {
    return this.#send(`${this.#item(id)}?as=line`, "PATCH", JSON.stringify(changes), "application/merge-patch+json");
  }

  /** @param {string} id */
  async delete(id) {
    return this.#send(this.#item(id), "DELETE");
  }

  /** @param {string} id */
  async get(id) {
    return this.#send(`${this.#item(id)}?as=line`, "GET");
  }

  /** @param {Iterable<import("../types/index.js").Line>} lines @param {{ expect?: number }} [options] */
  async batch(lines, { expect } = {}) {
    const body = Array.from(lines, (line) => `${lineText(line)}\n`).join("");
    return this.#send(
      `/items?as=line${expect === undefined ? "" : `&expect=${expect}`}`,
      "POST",
      body,
      "application/x-ndjson",
    );
  }
}

/** A server of towpath. */
export class Client {
  #options;

  /** @param {string | URL} base @param {import("../types/index.js").RequestOptions} [options] */
  constructor(base, options = {}) {
    this.base = parseUrl(base);
    this.#options = options;
  }

  /** @param {string} id */
  feed(id) {
    return new FeedClient(
      new URL(`feeds/${encodeURIComponent(id)}`, this.base.href.replace(/\/*$/, "/")),
      this.#options,
    );
  }
}

/** Publishes lines to a feed. @param {string | URL} url @param {Iterable<import("../types/index.js").Line>} lines @param {import("../types/index.js").RequestOptions & { expect?: number }} [options] */
export async function publish(url, lines, options = {}) {
  return new FeedClient(url, options).batch(lines, options);
}
