// The one shape of a change (docs/change-format.md), from what other publishers and DiffDelta have.

/** @typedef {import("../types/index.js").Change} Change */

/** Leaves out what is absent or empty. @param {Record<string, any>} members @returns {any} */
function compact(members) {
  const empty = (/** @type {any} */ value) =>
    value === undefined ||
    value === null ||
    value === "" ||
    (typeof value === "object" && Object.keys(value).length === 0);
  return Object.fromEntries(Object.entries(members).filter(([, value]) => !empty(value)));
}

/** Milliseconds of a time; NaN without one. A time without a zone is UTC. @param {unknown} text */
export function time(text) {
  if (typeof text !== "string") return NaN;
  // The compact form is that of DiffDelta's archive names (section 1.3).
  const iso = text.replace(/^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$/, "$1-$2-$3T$4:$5:$6Z");
  return Date.parse(/T[\d:.]+$/.test(iso) ? `${iso}Z` : iso);
}

/** RFC 3339 in UTC. @param {unknown} text */
export function utc(text) {
  const ms = time(text);
  if (isNaN(ms)) return undefined;
  // The text itself where it is in order: it may be more exact than a Date.
  return /^[\d-]+T[\d:.]+Z$/.test(String(text)) ? String(text) : new Date(ms).toISOString().replace(".000Z", "Z");
}

/** @param {any} value */
const text = (value) => (typeof value === "string" ? value : undefined);

/** Members for content: JSON as a value, other text, or Base 64. @param {string} type @param {unknown} content @param {unknown} base64 */
function contentMembers(type, content, base64) {
  if (typeof base64 === "string") return { content_type: type, content_base64: base64 };
  if (typeof content !== "string") return {};
  if (/^[^;]*[/+]json\b/.test(type)) {
    try {
      return { content_type: type, json: JSON.parse(content) };
    } catch {
      /* Then it is text. */
    }
  }
  return { content_type: type, content };
}

/** @param {any} member an author of Activity Streams */
const author = (member) =>
  member && [compact({ name: text(member.displayName) ?? "", email: text(member.email), url: text(member.url) })];

/**
 * A change from an object of Activity Streams 1.0.
 * @param {any} object @param {string} feed @param {string | undefined} position @returns {Change}
 */
export function fromActivity(object, feed, position) {
  const own = object.towpath ?? {};
  const members = object.towpath || typeof object.object !== "object" ? object : { ...object.object, ...object };
  const {
    id,
    url,
    displayName,
    title,
    summary,
    published,
    updated,
    tags,
    content,
    author: by,
    actor,
    deleted,
    object: _,
    towpath: __,
    ...rest
  } = members;
  const type = text(own.content_type) ?? "text/html";
  const isDeleted =
    deleted === true || typeof deleted === "string" || rest.objectType === "tombstone" || rest.verb === "delete";
  const modified = utc(own.modified) ?? utc(updated) ?? utc(published);
  const change = { feed, op: isDeleted ? "delete" : "put", id: String(id), position, modified };
  if (isDeleted) return compact(change);
  const raw = type.startsWith("text/html")
    ? content
    : text(content)?.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");
  const { image, attachments, ...extra } = own.extra ?? (object.towpath ? {} : { activity_streams: compact(rest) });
  const item = compact({
    title: text(displayName) ?? text(title),
    url: text(url),
    summary: text(summary),
    published: own.published_unknown ? undefined : utc(published),
    updated: own.updated_unknown ? undefined : utc(updated),
    authors: own.authors ?? author(by ?? actor),
    tags: Array.isArray(tags) ? tags.map((tag) => text(tag) ?? text(tag?.displayName)).filter(Boolean) : undefined,
    image,
    attachments,
    extra: compact(extra),
  });
  return {
    ...compact(change),
    item,
    ...contentMembers(type, content === undefined ? undefined : raw, own.content_base64),
  };
}

/** Profile of our own payloads in DiffDelta. */
const PROFILE = "towpath-item-1";

/** True if a delta item repeats a change that an earlier document has. @param {any} delta */
export const isRepeat = (delta) => delta?.changed_in > 0 && delta.source_payload?.profile === PROFILE;

/**
 * A change from a delta item of DiffDelta (section 9), with the time that orders it and the one that a start is compared with.
 * @param {any} delta @param {string} bucket @param {string} feed
 * @returns {{ change: Change, at: number, since: number }} NaN without a time
 */
export function fromDelta(delta, bucket, feed) {
  const ours = delta.source_payload?.profile === PROFILE ? delta.source_payload : undefined;
  const own = ours ?? {};
  const excerpt = text(delta.content?.excerpt_text);
  const has = (/** @type {string} */ name) => !own.absent?.includes(name);
  // Section 1.2: the bucket decides. Only an item of `flagged` or `updated` states its own kind.
  const op = (bucket === "new" || bucket === "removed" ? bucket : delta.change) === "removed" ? "delete" : "put";
  const modified = utc(own.removed_at) ?? utc(delta.provenance?.fetched_at);
  const change = { feed: text(delta.source) || feed, op, id: own.id ?? delta.id, modified };
  const at = time(modified);
  if (op === "delete") return { change: compact(change), at, since: ours ? at : NaN };
  const {
    change: _,
    content,
    headline,
    id,
    item_hash,
    provenance,
    published_at,
    source,
    summary,
    title,
    updated_at,
    url,
    source_payload,
    ...rest
  } = delta;
  const { image, attachments, ...extra } = ours
    ? JSON.parse(own.extra ?? "{}")
    : { diffdelta: compact(source_payload === undefined ? rest : { ...rest, source_payload }) };
  const item = compact({
    title: own.title ?? text(title) ?? (ours ? undefined : text(headline)),
    url: own.url ?? (has("url") ? text(url) : undefined),
    summary: (own.same?.includes("summary") ? excerpt : own.summary) ?? text(summary) ?? (ours ? undefined : excerpt),
    published: own.published ?? (has("published") ? utc(published_at) : undefined),
    updated: own.updated ?? (has("updated") ? utc(updated_at) : undefined),
    authors: own.authors,
    tags: own.tags,
    image,
    attachments,
    extra: compact(extra),
  });
  const body = contentMembers(own.content_type ?? "", own.content_text, own.content_base64);
  return { change: { ...compact(change), item, ...body }, at, since: ours ? at : NaN };
}
