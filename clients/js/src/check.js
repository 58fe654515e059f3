// A short check of Smart Feeds and DiffDelta: what a reader depends on. `towpath check` has every rule.
/**
 * @typedef {import("../types/index.js").Finding} Finding
 * @typedef {import("./session.js").Session} Session
 * @typedef {{ canonical: (document: any) => string, pythonCanonical: (text: string) => string, sha256: (data: string) => Promise<string>,
 *   locate: typeof import("./locate.js").locate, discoverAll: typeof import("./discover.js").discoverAll }} Parts
 */

/** Items of a page; two pages must be there for all rules. */
const PAGE = 2;
const CURSOR = /^sha256:[0-9a-f]{64}$/;

/** Collects findings; a rule holds unless there is a problem. */
class Findings {
  /** @type {Finding[]} */
  list = [];

  /** @param {string} section @param {Finding["level"]} level @param {string} rule @param {string | false | undefined} problem `undefined` skips the rule */
  add(section, level, rule, problem) {
    this.list.push({
      section,
      level,
      rule,
      outcome: problem === undefined ? "skipped" : problem ? "fail" : "pass",
      ...(problem && { detail: problem }),
    });
  }
}

/** @param {Session} session @param {string | URL} url @param {Record<string, string>} [headers] */
async function get(session, url, headers = {}) {
  const answer = await session.send(url, { headers: { accept: "application/json", ...headers } });
  if (answer.status !== 200 && answer.status !== 304) throw await answer.error();
  const text = await answer.text();
  return { answer, text, value: answer.status === 304 ? undefined : await answer.json(text) };
}

/** @param {Session} session @param {string} url @param {Findings} findings */
async function checkSmart(session, url, findings) {
  /** @param {Record<string, string | number>} query */
  const page = async (query) => {
    const to = new URL(url);
    for (const [name, value] of Object.entries({ order: "modified", timeout: 0, ...query }))
      to.searchParams.set(name, String(value));
    return (await get(session, to)).value;
  };
  const first = await page({ max: PAGE });
  const { items = [] } = first;
  const ids = items.map((/** @type {any} */ { id }) => id);
  findings.add(
    "HTTP Pull",
    "MUST",
    "the response is a collection with count, totalItems and url",
    !["count", "totalItems", "url"].every((name) => name in first) &&
      `its members are ${Object.keys(first).join(", ")}`,
  );
  findings.add(
    "HTTP Pull",
    "MUST",
    "max limits the items",
    items.length > PAGE && `${items.length} items for max=${PAGE}`,
  );
  findings.add(
    "As Abstract",
    "MUST",
    "items have ids of their own",
    (ids.includes(undefined) || new Set(ids).size < ids.length) && `the ids are ${JSON.stringify(ids)}`,
  );
  findings.add(
    "Pull Interface",
    "MUST",
    "a cursor is provided for the last item",
    items.length ? first.last_cursor === undefined && "last_cursor is missing" : undefined,
  );
  if (items.length === 0 || first.last_cursor === undefined) return;
  const next = await page({ max: PAGE, since: `cursor:${first.last_cursor}` });
  const repeated = (next.items ?? []).find((/** @type {any} */ { id }) => ids.includes(id));
  findings.add(
    "Pull Interface",
    "MUST",
    "since=cursor: gives the items after it",
    repeated !== undefined && `the item ${repeated.id} comes again`,
  );
  const time = items[0].updated ?? items[0].published;
  const newest = await page({ order: "-modified", max: 1 }).catch(() => undefined);
  findings.add(
    "Pull Interface",
    "ADVICE",
    "the most recent item can be had by a descending order",
    !newest?.items?.length && "order=-modified gives no item",
  );
  const timed =
    time === undefined ? undefined : await page({ max: PAGE, since: `time:${time}` }).catch(() => undefined);
  findings.add(
    "Pull Interface",
    "MUST",
    "time: is inclusive",
    timed === undefined ? undefined : !timed.items?.length && `no item since ${time}, the time of ${items[0].id}`,
  );
}

/** @param {Session} session @param {string} url @param {Findings} findings @param {Parts} parts */
async function checkDiffDelta(session, url, findings, { canonical, locate, pythonCanonical, sha256 }) {
  const place = locate(new URL(url));
  const manifest = place.manifest && (await get(session, place.manifest));
  const urls = manifest ? locate(new URL(manifest.value.endpoints.diff_latest, manifest.answer.url)) : place;
  const head = urls.head === undefined ? undefined : await get(session, urls.head).catch(() => undefined);
  const at = head?.value.latest_url
    ? new URL(head.value.latest_url, head.answer.url).href
    : /** @type {string} */ (urls.latest);
  const { answer, text, value } = await get(session, at);
  for (const [name, one] of /** @type {const} */ ([
    ["head", head],
    ["latest", { answer, value }],
  ])) {
    if (!one) continue;
    const { cursor, prev_cursor: before, changed } = one.value;
    findings.add(
      "§2.1",
      "MUST",
      `the cursor of ${name} is sha256: and 64 hex digits`,
      !CURSOR.test(cursor) && `it is ${cursor}`,
    );
    findings.add(
      "§2.3",
      "MUST",
      `changed of ${name} agrees with its cursors`,
      changed !== (cursor !== before) && `changed is ${changed}, cursor ${cursor}, prev_cursor ${before}`,
    );
    const etag = one.answer.headers.get("etag");
    findings.add("§6.1", "MUST", `${name} has an ETag`, !etag && "there is none");
    const again = etag ? await get(session, one.answer.url, { "if-none-match": etag }) : undefined;
    findings.add(
      "§6.2",
      "MUST",
      `${name} is answered 304 if unchanged`,
      again &&
        again.answer.status !== 304 &&
        again.answer.headers.get("etag") === etag &&
        `the answer is ${again.answer.status}`,
    );
    findings.add(
      "§6.5",
      "MUST",
      `${name} is application/json`,
      !one.answer.type.startsWith("application/json") && `it is ${one.answer.type}`,
    );
  }
  const proved = value.changed
    ? [canonical(value), pythonCanonical(text)].map(async (form) => `sha256:${await sha256(form)}`)
    : undefined;
  findings.add(
    "§3.1",
    "MUST",
    "the cursor recomputes by canonical_v1",
    proved && !(await Promise.all(proved)).includes(value.cursor) && `its content does not give ${value.cursor}`,
  );
  const required = ["source", "id", "url", "published_at", "updated_at", "headline", "content", "risk", "provenance"];
  const items = Object.entries(value.buckets ?? {}).flatMap(([bucket, list]) =>
    (list ?? []).map((/** @type {any} */ item) => ({ bucket, item })),
  );
  const lacking = items
    .map(({ item }) => [item.id, required.filter((name) => !(name in item))])
    .find(([, names]) => names.length);
  findings.add(
    "§9",
    "MUST",
    "items have every required member",
    items.length ? lacking !== undefined && `${lacking[0]} lacks ${lacking[1].join(", ")}` : undefined,
  );
  const risky = items.find(({ bucket, item }) => bucket !== "flagged" && item.risk?.score >= 0.4);
  findings.add(
    "§9",
    "MUST",
    "items with a risk of 0.4 or more are flagged",
    items.length ? risky !== undefined && `${risky.item.id} is in ${risky.bucket}` : undefined,
  );
}

/**
 * @param {Session} session @param {URL} url @param {string} protocol
 * @param {Parts} parts of the main file, so that this one holds no second copy
 */
export async function check(session, url, protocol, parts) {
  const offers = (await parts.discoverAll(session, url)).filter((one) => one.protocol !== "events");
  const offer = offers.find((one) => protocol === "auto" || one.protocol === protocol) ?? { protocol, url: url.href };
  const findings = new Findings();
  await (offer.protocol === "diffdelta" ? checkDiffDelta : checkSmart)(session, offer.url, findings, parts);
  const { list } = findings;
  return {
    url: offer.url,
    protocol: offer.protocol,
    conforms: !list.some(({ level, outcome }) => level === "MUST" && outcome === "fail"),
    findings: list,
  };
}
