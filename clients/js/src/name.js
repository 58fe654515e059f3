// Names of feeds: changes carry the feed's own name where its publisher tells one, and elsewhere its URL.

/** Anything but a name, such as a URL, could pass for another feed. @param {any} told @param {string} url @returns {string} */
const named = (told, url) => (/^[a-z0-9_-]{2,32}$/.test(told ?? "") ? told : url);

/** Name of a followed feed. It is settled by the first answer and kept in the state: it never changes along a follow. */
export class FeedName {
  #url;
  #name;

  /** A stored state without a name keeps the URL. @param {string} url @param {any} stored the protocol's stored state */
  constructor(url, stored) {
    this.#url = url;
    this.#name = stored && named(stored.feed_name, url);
  }

  /** @param {import("./session.js").Answer} answer @returns {string} */
  of(answer) {
    return (this.#name ??= named(answer.headers.get("towpath-feed"), this.#url));
  }

  /** A line with its feed. @param {any} line @param {import("./session.js").Answer} answer */
  on(line, answer) {
    line.feed ??= this.of(answer);
    return line;
  }

  /** A state with the name, as the command line stores it. @param {any} state */
  keep(state) {
    const name = this.#name ?? this.#url;
    return name === this.#url ? state : { ...state, feed_name: name };
  }
}
