// Requests of one follow or client: a watchdog for each wait, the waits between attempts, and who gets the token.
import { HttpError, NetworkError, ProtocolError, TowpathError, UsageError, parsed } from "./errors.js";

/** Longest silence of a server, in milliseconds. */
const PATIENCE = 30_000;
/** Largest body, in bytes. */
const MAX_BODY = 128 << 20;
const MAX_REDIRECTS = 5;
const MAX_WAIT = 300_000;
const MAX_RETRY_AFTER = 3_600_000;

/** @param {string | URL} text @param {string | URL} [base] */
export function parseUrl(text, base = globalThis.location?.href) {
  let url;
  try {
    url = new URL(text, base);
  } catch (cause) {
    throw new UsageError(`not a URL: ${text}`, undefined, cause);
  }
  if (!/^https?:$/.test(url.protocol)) throw new UsageError(`${url.protocol} is neither http nor https`);
  // fetch refuses them too, with a message that shows the password.
  if (url.username || url.password) throw new UsageError("has credentials; use token or headers", url);
  url.hash = "";
  return url;
}

/**
 * Calls `late` if a promise takes longer than `patience`, by the wall clock or by ticks. A laptop that slept for an hour
 * finds out with its first tick, and a clock that is set back delays nothing.
 * @template T @param {Promise<T>} promise @param {number} patience @param {() => void} late
 */
async function watch(promise, patience, late) {
  const begun = Date.now();
  const tick = Math.min(1000, patience);
  let ticks = 0;
  const timer = setInterval(() => (++ticks * tick >= patience || Date.now() - begun >= patience) && late(), tick);
  try {
    return await promise;
  } finally {
    clearInterval(timer);
  }
}

/** Waits by the same two clocks as `watch`. @param {number} ms @param {AbortSignal} signal */
export async function sleep(ms, signal) {
  signal.throwIfAborted();
  /** @type {any} */
  let wake;
  const woken = new Promise((resolve) => signal.addEventListener("abort", (wake = resolve)));
  try {
    await watch(woken, ms, wake);
  } finally {
    signal.removeEventListener("abort", wake);
  }
  signal.throwIfAborted();
}

/** @param {Headers} headers */
function retryAfter(headers) {
  const value = headers.get("retry-after");
  const wait = value === null ? NaN : /^\d+$/.test(value) ? Number(value) * 1000 : Date.parse(value) - Date.now();
  return wait >= 0 ? Math.min(wait, MAX_RETRY_AFTER) : undefined;
}

/** An answer whose body is read piece by piece. */
export class Answer {
  #response;
  #wait;
  #end;

  /** @param {Response} response @param {string} url @param {<T>(read: Promise<T>) => Promise<T>} wait @param {() => void} end */
  constructor(response, url, wait, end) {
    this.#response = response;
    this.#wait = wait;
    this.#end = end;
    this.status = response.status;
    this.headers = response.headers;
    /** URL after redirects. */
    this.url = response.url || url;
    this.type = (response.headers.get("content-type") ?? "").toLowerCase();
  }

  /** @returns {AsyncGenerator<Uint8Array, void, void>} */
  async *chunks() {
    const reader = this.#response.body?.getReader();
    try {
      for (;;) {
        const piece = await this.#wait(Promise.resolve(reader?.read()));
        if (!piece || piece.done) return;
        yield piece.value;
      }
    } finally {
      // The connection is given up if the body was not read to its end.
      reader?.cancel().catch(() => {});
      this.#end();
    }
  }

  /** Gives the answer up without reading it. */
  cancel() {
    this.#response.body?.cancel().catch(() => {});
    this.#end();
  }

  async bytes() {
    const chunks = [];
    let size = 0;
    for await (const chunk of this.chunks()) {
      size += chunk.length;
      if (size > MAX_BODY) throw this.wrong(`longer than ${MAX_BODY} bytes`);
      chunks.push(chunk);
    }
    return new Uint8Array(await new Blob(/** @type {BlobPart[]} */ (chunks)).arrayBuffer());
  }

  async text() {
    // Without a byte order mark, which RFC 8259 lets readers ignore.
    return new TextDecoder().decode(await this.bytes());
  }

  /** @param {string} [text] @returns {Promise<any>} */
  async json(text) {
    const json = text ?? (await this.text());
    const reason = /^\s*</.test(json) ? `HTML instead of JSON (${this.type})` : "not JSON";
    return parsed(() => JSON.parse(json), reason, this.url);
  }

  /** An address that the answer names. @param {string} to */
  link(to) {
    return parsed(() => new URL(to, this.url).href, "not a URL", this.url);
  }

  /** @param {string} reason @param {unknown} [cause] */
  wrong(reason, cause) {
    return new ProtocolError(reason, this.url, cause);
  }

  /** The error of a status. */
  async error() {
    let problem;
    const text = (await this.text().catch(() => "")).slice(0, 65_536);
    try {
      problem = /json/.test(this.type) ? JSON.parse(text) : undefined;
    } catch {
      /* The status says enough. */
    }
    const why = problem?.detail ?? problem?.title ?? "";
    return new HttpError(
      `the server answers ${this.status} ${why}`.trim(),
      this.url,
      this.status,
      retryAfter(this.headers),
      problem,
    );
  }
}

/** Sends requests, and waits between attempts. */
export class Session {
  #failures = 0;
  #good = Date.now();
  #controller = new AbortController();
  #release = () => {};
  #options;
  /** True once an answer was what it should be. */
  worked = false;

  /** @param {URL} url @param {import("../types/index.js").RequestOptions} options */
  constructor(url, options) {
    const { signal } = options;
    // fetch refuses it too, with a message that shows it.
    if (/[^\x20-\x7e]/.test(options.token ?? "")) throw new UsageError("token: not ASCII");
    this.origin = url.origin;
    this.#options = options;
    this.signal = this.#controller.signal;
    this.log = options.log ?? console;
    this.patience = options.patience ?? PATIENCE;
    const abort = () => this.#controller.abort(signal?.reason);
    signal?.addEventListener("abort", abort);
    this.#release = () => signal?.removeEventListener("abort", abort);
    if (signal?.aborted) abort();
  }

  /** Ends the request under way, if there is one. */
  close() {
    this.#release();
    this.#controller.abort();
  }

  /**
   * @param {string | URL} url
   * @param {{ method?: string, headers?: Record<string, string>, body?: string, patience?: number }} [init]
   */
  async send(url, { method = "GET", headers = {}, body, patience = this.patience } = {}) {
    const controller = new AbortController();
    const abort = () => controller.abort(this.signal.reason);
    const end = () => this.signal.removeEventListener("abort", abort);
    this.signal.throwIfAborted();
    this.signal.addEventListener("abort", abort);
    const late = () => controller.abort(new NetworkError(`silent for ${Math.ceil(patience / 1000)} s`, url));
    /** @template T @param {Promise<T>} promise */
    const wait = async (promise) => {
      try {
        return await watch(promise, patience, late);
      } catch (error) {
        end();
        if (this.signal.aborted) throw this.signal.reason;
        const cause = controller.signal.aborted ? controller.signal.reason : error;
        if (cause instanceof TowpathError) throw cause;
        // Node's "fetch failed" says nothing; its cause does.
        const inner = cause?.cause;
        // Deno's message has the whole URL, whose query may be a secret.
        const why = `${inner?.code || inner?.message || cause?.message}`.replace(String(url), "");
        throw new NetworkError(`no answer: ${why}`, url, cause);
      }
    };
    const { fetch = globalThis.fetch, token, headers: own } = this.#options;
    // fetch would turn a POST into a GET, which publishes nothing and may succeed.
    const isManual = own || method !== "GET";
    for (let hops = 0; ; hops++) {
      const given = new Headers(headers);
      const isOwn = new URL(url).origin === this.origin;
      // Links and redirects may lead anywhere; the token is for the address that the user gave.
      if (isOwn) for (const [name, value] of Object.entries(own ?? {})) given.set(name, value);
      if (isOwn && token) given.set("authorization", `Bearer ${token}`);
      /** @type {RequestInit} */
      const init = {
        method,
        headers: given,
        body,
        signal: controller.signal,
        cache: "no-store",
        redirect: isManual ? "manual" : "follow",
      };
      const response = await wait(fetch(url, init));
      const answer = new Answer(response, String(url), wait, end);
      const to = response.headers.get("location");
      // 303 says to read another address, which is no place to publish to.
      const { status } = response;
      if (isManual && status > 300 && status < 309 && !(body && status === 303) && to && hops < MAX_REDIRECTS) {
        url = answer.link(to);
        await response.body?.cancel();
        continue;
      }
      // Browsers hide where a redirect leads, and would send the headers there.
      if (response.type === "opaqueredirect") throw answer.wrong("redirects; use the new address");
      return answer;
    }
  }

  /** Records that the server answered as it should. */
  ok() {
    this.#failures = 0;
    this.#good = Date.now();
    this.worked = true;
  }

  /**
   * Waits after a failure, or throws it if it is none that passes.
   * @param {unknown} error @param {number} [first] first wait in milliseconds
   */
  async retry(error, first = 1000) {
    this.signal.throwIfAborted();
    const passes =
      error instanceof NetworkError ||
      // A portal or a broken deployment may answer HTML for a while, but a first answer shows a wrong address.
      (error instanceof ProtocolError && this.worked) ||
      (error instanceof HttpError && (error.status >= 500 || [408, 425, 429].includes(error.status)));
    const { giveUpAfter = Infinity } = this.#options;
    if (!passes) throw error;
    const wait = Math.min(first * 2 ** this.#failures++, Math.max(MAX_WAIT, first));
    // Half of it is random: readers that failed together do not come back together.
    const asked = error instanceof HttpError ? (error.retryAfter ?? 0) : 0;
    const ms = Math.max(wait / 2 + (Math.random() * wait) / 2, asked);
    if (Date.now() + ms - this.#good >= giveUpAfter) throw error;
    this.log.warn(`towpath: ${error.message}; next attempt in ${Math.ceil(ms / 1000)} s`);
    await sleep(ms, this.signal);
  }
}
