// Which protocols an address offers: by its own document, by a feed's list of addresses, by its links.
import { ProtocolError } from "./errors.js";

/** Time until a request that may be a long poll is sent again with `timeout=0`, in milliseconds. */
const HELD = 3000;
/** Longest part of a page that is searched for links, in characters. */
const MAX_HTML = 1 << 20;
/** Feeds of a page that are asked. */
const MAX_LINKS = 6;

/** @typedef {import("../types/index.js").Offer} Offer */

/** Names of towpath's list of addresses, with their protocols. @type {Record<string, Offer["protocol"]>} */
const LISTED = { smart: "smart", head: "diffdelta", events: "events" };
/** The strongest promise first, and of equals the one that tells a change first. @type {Offer["protocol"][]} */
export const PREFERRED = ["smart", "diffdelta", "events"];

/** @param {any} json @param {string} url @returns {Offer[]} */
function offersOf(json, url) {
  if (Array.isArray(json?.addresses)) {
    return json.addresses.flatMap((/** @type {any} */ { name, url: to }) =>
      LISTED[name] ? [{ protocol: LISTED[name], url: new URL(to, url).href }] : [],
    );
  }
  if (typeof json?.endpoints?.diff_latest === "string" || (json && "cursor" in json && "prev_cursor" in json))
    return [{ protocol: "diffdelta", url }];
  // An empty collection has no last cursor.
  const isSmart =
    Array.isArray(json?.items) &&
    (json.last_cursor !== undefined || (json.items.length === 0 && json.url && "totalItems" in json));
  return isSmart ? [{ protocol: "smart", url }] : [];
}

/** Links of the relation `alternate` with a feed's type: from `Link` headers (RFC 8288), then from HTML. @param {Headers} headers @param {string} html @param {string} base */
export function alternates(headers, html, base) {
  const bare = html.slice(0, MAX_HTML).replace(/<!--[^]*?(?:-->|$)|<(script|style|template)\b[^]*?(?:<\/\1|$)/gi, "");
  const [to = ""] = /<base\b[^>]*>/i.exec(bare) ?? [];
  // A Link header is read as if it were elements.
  const elements = (headers.get("link") ?? "").replace(/<([^>]*)>([^<]*)/g, '<link href="$1" $2>') + bare;
  const found = [...elements.matchAll(/<link\b(?:"[^"]*"|'[^']*'|[^>"'])*>/gi)].flatMap(([tag]) => {
    const isFeed =
      /(^|\s)alternate(\s|$)/i.test(attribute(tag, "rel")) &&
      /^(application\/(x-ndjson|json)|text\/event-stream)\b/i.test(attribute(tag, "type"));
    try {
      return isFeed ? [new URL(attribute(tag, "href"), new URL(attribute(to, "href"), base)).href] : [];
    } catch {
      return [];
    }
  });
  return [...new Set(found)].filter((url) => url !== base);
}

/** @param {string} text @param {string} name */
function attribute(text, name) {
  const [, double, single, plain] =
    new RegExp(`[\\s;]${name}\\s*=\\s*(?:"([^"]*)"|'([^']*)'|([^\\s"'>;,]+))`, "i").exec(text) ?? [];
  return (double ?? single ?? plain ?? "").replace(/&amp;/g, "&");
}

/**
 * @param {import("./session.js").Session} session @param {string} url
 * @returns {Promise<{ offers: Offer[], links: string[], what: string, url: string }>}
 */
async function probe(session, url) {
  const headers = { accept: "application/json, text/event-stream;q=0.9, text/html;q=0.5, */*;q=0.1" };
  const now = new URL(url);
  now.searchParams.set("timeout", "0");
  const answer = await session.send(url, { headers, patience: Math.min(HELD, session.patience) }).catch((error) => {
    // An empty Smart Feed may hold a request until its first item comes.
    if (session.signal.aborted || error.cause) throw error;
    return session.send(now, { headers });
  });
  if (answer.status !== 200) throw await answer.error();
  if (answer.type.startsWith("text/event-stream")) {
    // Read no further: a stream does not end.
    answer.cancel();
    return { offers: [{ protocol: "events", url }], links: [], what: "", url };
  }
  const text = await answer.text();
  const isJson = /^\s*[{[]/.test(text);
  const json = isJson ? await answer.json(text) : undefined;
  const offers = offersOf(json, answer.url === now.href ? url : answer.url);
  const what = isJson ? "JSON" : answer.type || "a document without a type";
  return { offers, links: alternates(answer.headers, isJson ? "" : text, answer.url), what, url: answer.url };
}

/**
 * Every protocol of this package that an address offers, the preferred one first; at least one.
 * @param {import("./session.js").Session} session @param {URL} url @returns {Promise<Offer[]>}
 */
export async function discoverAll(session, url) {
  const { offers, links, what, url: at } = await probe(session, url.href);
  if (offers.length === 0 && new URL(at).pathname === "/") {
    const manifest = await probe(session, new URL("/.well-known/diffdelta.json", at).href).catch(() => undefined);
    offers.push(...(manifest?.offers ?? []));
  }
  for (const link of offers.length ? [] : links.slice(0, MAX_LINKS))
    offers.push(...((await probe(session, link).catch(() => undefined))?.offers ?? []));
  session.signal.throwIfAborted();
  if (offers.length === 0) {
    throw new ProtocolError(`${what}, not a Smart Feed, an event stream or DiffDelta`, url);
  }
  return offers.sort((a, b) => PREFERRED.indexOf(a.protocol) - PREFERRED.indexOf(b.protocol));
}
