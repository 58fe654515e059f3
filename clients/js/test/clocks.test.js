// DiffDelta publishers whose clock went back, and servers that lag: cursors decide (section 2.2).
import assert from "node:assert/strict";
import { test } from "node:test";
import { follow, GapError } from "towpath";
import { json, memory, quiet, server } from "./helpers.js";

const cursor = (name) => `sha256:${name.charCodeAt(0).toString(16).padStart(64, "0")}`;
const zero = `sha256:${"0".repeat(64)}`;
const at = (second) => `2026-01-01T00:00:${String(second).padStart(2, "0")}Z`;

/** A chain of documents, each with one item: `[name, second]`. A name may come back. */
const chain = (...mints) => mints.map(([name, second], n) => ({
  source_id: "s", cursor: cursor(name), prev_cursor: n ? cursor(mints[n - 1][0]) : zero, changed: true, ttl_sec: 60,
  generated_at: at(second), buckets: { new: [{ source: "s", id: `${name}${second}` }] },
}));

/** A publisher whose documents a test changes; without `index` it has none. */
async function publisher() {
  const serves = { latest: undefined, index: undefined };
  const { base } = await server((request, response) => {
    const { latest, index } = serves;
    const path = request.url;
    if (path.endsWith("/head.json")) return json(response, JSON.stringify({ ...latest, buckets: undefined, latest_url: "latest.json" }));
    if (path.endsWith("/latest.json")) return json(response, JSON.stringify(latest));
    if (path.endsWith("/index.json") && index)
      return json(response, JSON.stringify({ snapshots: index.map(({ buckets, ...entry }, n) => ({ ...entry, url: `${n}.json` })) }));
    const snapshot = index?.[Number(/(\d+)\.json$/.exec(path)?.[1])];
    if (snapshot) return json(response, JSON.stringify(snapshot));
    response.writeHead(404).end();
  });
  const state = memory();
  /** Ids of the changes of one pass, `gap` for what is missing, `reset`, or the error. */
  const pass = async (options = {}) => {
    const seen = [];
    try {
      const onGap = (gap) => { assert.ok(gap instanceof GapError); seen.push("gap"); };
      for await (const change of follow(`${base}/diff/s/head.json`, { protocol: "diffdelta", state, once: true, log: quiet(), onGap, ...options }))
        seen.push(change.id ?? change.op);
    } catch (error) {
      seen.push(error.message.replace(/.*: /, ""));
    }
    return seen;
  };
  const now = (documents, index = documents) => Object.assign(serves, { latest: documents.at(-1), index });
  return { pass, now };
}

/** Lets each look at the clock take a minute, so that nothing waits long. */
function hasten(t) {
  const real = Date.now;
  let ahead = 0;
  t.mock.method(Date, "now", () => real() + (ahead += 60_000));
}

test("a clock that goes back hides nothing", async () => {
  const { pass, now } = await publisher();
  const early = [["a", 40], ["b", 50]];
  now(chain(...early));
  assert.deepEqual(await pass(), ["a40", "b50"]);
  now(chain(...early, ["c", 1], ["d", 2]));
  assert.deepEqual(await pass(), ["c1", "d2"]);
  now(chain(...early, ["c", 1], ["d", 2], ["e", 3]));
  assert.deepEqual(await pass(), ["e3"]);
});

test("a cursor that came back, and a server that lags, give nothing again", async () => {
  const { pass, now } = await publisher();
  const whole = chain(["a", 10], ["b", 20], ["a", 30]);
  now(whole);
  assert.deepEqual(await pass(), ["a10", "b20", "a30"]);
  now(whole.slice(0, 2), whole);
  assert.deepEqual(await pass(), []);
  now(whole.slice(0, 2));
  assert.deepEqual(await pass({ giveUpAfter: 0 }), ["lags behind"]);
  now(chain(["a", 10], ["b", 20], ["a", 30], ["c", 40]));
  assert.deepEqual(await pass(), ["c40"]);
});

test("an old copy without an index is told, and gives nothing at first", async () => {
  const { pass, now } = await publisher();
  now(chain(["a", 10], ["b", 20]));
  await pass();
  now(chain(["x", 4], ["a", 5]), null);
  assert.deepEqual(await pass({ giveUpAfter: 0 }), ["lags behind"]);
});

test("an index that stays behind gives what it lists, and the rest is missing", async (t) => {
  const { pass, now } = await publisher();
  const whole = chain(["a", 1], ["b", 2], ["c", 3], ["d", 4], ["e", 5]);
  now(whole.slice(0, 1));
  assert.deepEqual(await pass(), ["a1"]);
  now(whole, whole.slice(0, 3));
  assert.deepEqual(await pass({ giveUpAfter: 0 }), ["lags behind"]);
  hasten(t);
  assert.deepEqual(await pass({ giveUpAfter: Infinity }), ["b2", "c3", "gap", "e5"]);
});

test("a publisher that began anew with an earlier clock is told", async (t) => {
  const { pass, now } = await publisher();
  now(chain(["a", 10], ["b", 20]));
  await pass();
  now(chain(["x", 1], ["y", 2]));
  hasten(t);
  assert.deepEqual(await pass({ giveUpAfter: Infinity }), ["reset", "x1", "y2"]);
});
