// Parts that need no server: canonical JSON, event streams, archive plans. From the package's sources.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { canonical, pythonCanonical, sha256 } from "../node_modules/towpath/src/canonical.js";
import { EventParser } from "../node_modules/towpath/src/events.js";
import { plan, readIndex } from "../node_modules/towpath/src/archive.js";
import { time, utc } from "../node_modules/towpath/src/line.js";
import { locate } from "../node_modules/towpath/src/locate.js";
import { parseUrl } from "../node_modules/towpath/src/session.js";

const ROOT = process.env.TOWPATH_ROOT;

test("canonical_v1: the published vectors, in both forms", async () => {
  const vectors = JSON.parse(readFileSync(path.join(ROOT, "crates/towpath-proto/tests/data/diffdelta/diffdelta-canonical-v1.json"), "utf8"));
  assert.ok(vectors.length >= 12);
  for (const { name, input_text: text, jcs_canonical: jcs, cursor_jcs, python_canonical: python, cursor_python } of vectors) {
    // RFC 8785 has no form for some numbers; there this form proves nothing.
    if (typeof jcs === "string") assert.equal(canonical(JSON.parse(text)), jcs, name);
    if (typeof jcs === "string") assert.equal(`sha256:${await sha256(canonical(JSON.parse(text)))}`, cursor_jcs, name);
    if (typeof python === "string") assert.equal(pythonCanonical(text), python, name);
    if (typeof python === "string") assert.equal(`sha256:${await sha256(pythonCanonical(text))}`, cursor_python, name);
  }
});

test("canonical JSON: RFC 8785's examples and Python's numbers", async () => {
  const input = '{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],"string":"\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/","literals":[null,true,false]}';
  assert.equal(canonical(JSON.parse(input)), '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}');
  assert.equal(canonical(JSON.parse('{"€":1,"\\r":2,"\\ufb33":3,"1":4,"😀":5,"\\u0080":6,"ö":7,"__proto__":8}')), '{"\\r":2,"1":4,"__proto__":8,"\u0080":6,"ö":7,"€":1,"😀":5,"\ufb33":3}');
  for (const [json, python] of [["0.0", "0.0"], ["-0.0", "-0.0"], ["-0", "0"], ["1e15", "1000000000000000.0"], ["123456789012345680.0", "1.2345678901234568e+17"],
    ["0.0001", "0.0001"], ["0.00001", "1e-05"], ["1.5e300", "1.5e+300"], ["5e-324", "5e-324"], ["1E400", "Infinity"], ["123456789012345678901234567890", "123456789012345678901234567890"]]) {
    assert.equal(pythonCanonical(`{"n 1.0":[${json}, "${json}"]}`), `{"n 1.0":[${python},"${json}"]}`);
  }
  assert.equal(pythonCanonical('{"\\ud83d\\ude00":1,"\\ufb33":{"cursor":2},"cursor":3}'), '{"\ufb33":{"cursor":2},"😀":1}');
  assert.equal(await sha256(new Uint8Array([1, 2])), createHash("sha256").update(new Uint8Array([1, 2])).digest("hex"));
});

test("event streams are read in pieces of any size", () => {
  const stream = ': hello\n\nretry: 250\r\nid: 1\r\nevent: put\r\ndata: {"a":\r\ndata:1}\r\n\r\nid\ndata: x\n\ndata: Zoë 😀\rid: bad\0\r\rid: 3\n\n:\n\ndata\n\ndata: cut off';
  const expected = [{ id: "1", event: "put", data: '{"a":\n1}' }, { id: "", event: "message", data: "x" }, { id: "", event: "message", data: "Zoë 😀" },
    { id: "3", event: "message", data: undefined }, { id: "3", event: "message", data: "" }];
  const bytes = new TextEncoder().encode(stream);
  for (let size = 1; size < bytes.length; size++) {
    const parser = new EventParser();
    const events = [];
    for (let at = 0; at < bytes.length; at += size) events.push(...parser.push(bytes.subarray(at, at + size)));
    assert.deepEqual([events, parser.retry], [expected, 250], `pieces of ${size}`);
  }
});

const entry = (at, prev_cursor, cursor, url = cursor) => ({ url, prev_cursor, cursor, sha256: "", generated_at: `2026-01-01T00:00:0${at}Z` });
const zero = `sha256:${"0".repeat(64)}`;

test("an archive's snapshots after a state", () => {
  const walk = (chain, state) => {
    const { walk: snapshots, gaps, beganAnew } = plan(chain, state);
    return [snapshots.map(({ url }) => url).join(""), gaps.length, beganAnew];
  };
  const circle = [entry(0, zero, "a", "0"), entry(1, "a", "b", "1"), entry(2, "b", "a", "2"), entry(3, "a", "c", "3")];
  assert.deepEqual(walk(circle, { cursor: "a", generated_at: "2026-01-01T00:00:02Z" }), ["3", 0, false]);
  assert.deepEqual(walk(circle, { cursor: "a" }), ["123", 0, false]);
  assert.deepEqual(walk(circle, { cursor: "c" }), ["", 0, false]);
  assert.deepEqual(walk(circle, {}), ["0123", 0, false]);
  assert.deepEqual(walk(circle, { cursor: "z" }), ["0123", 0, true]);
  assert.deepEqual(walk(circle, { partial: { cursor: "b", delivered: 1 } }), ["123", 0, false]);
  assert.deepEqual(walk(circle, { since: "2026-01-01T00:00:01.9Z" }), ["123", 0, false]);
  const trimmed = [entry(1, "b", "c"), entry(2, "c", "d"), entry(3, "x", "e")];
  assert.deepEqual(walk(trimmed, { cursor: "b" }), ["cde", 1, false]);
  assert.deepEqual(walk(trimmed, { cursor: "a" }), ["cde", 2, false]);
  assert.deepEqual(walk(trimmed, { cursor: zero }), ["cde", 2, false]);
});

test("an index of another publisher: newest first, times in compact form, members missing", () => {
  const answer = { type: "application/json", url: "http://h/index.json", link: (to) => to };
  const snapshots = [{ url: "/x/20260205T120002Z_c.json" }, { url: "/x/b", generated_at: "20260205T120001Z", cursor: null }, { url: "" }, { url: "/x/20260205T120000Z_a.json" }];
  const read = readIndex(answer, JSON.stringify({ snapshots }));
  assert.deepEqual([read.snapshots.map(({ url }) => url.at(-6)), read.isChained], [["a", "b", "c"].map((name) => snapshots.map(({ url }) => url).find((url) => url.includes(`_${name}.`) || url.endsWith(`/${name}`)).at(-6)), false]);
  assert.equal(readIndex({ ...answer, type: "text/html" }, "<html>"), undefined);
  assert.equal(readIndex(answer, "[]"), undefined);
  assert.throws(() => readIndex(answer, '{"snapshots": ['), /not JSON/);
});

test("an index is in the order of its cursors, whatever the publisher's clock did", () => {
  const answer = { type: "application/json", link: (to) => to, wrong: (why) => new Error(why) };
  const ordered = (...snapshots) => readIndex(answer, JSON.stringify({ snapshots })).snapshots.map(({ url }) => url).join("");
  const [a, b, c] = [entry(8, zero, "a"), entry(9, "a", "b"), entry(1, "b", "c")];
  assert.deepEqual([ordered(a, b, c), ordered(c, b, a)], ["abc", "abc"]);
  const [d, e] = [entry(1, zero, "d"), entry(2, "d", "e")];
  assert.deepEqual([ordered(d, e), ordered(e, d)], ["de", "de"]);
  // Without cursors the times tell, and of one second the order of the list.
  const [f, g, h] = ["f", "g", "h"].map((url, at) => ({ url, generated_at: `2026-01-01T00:00:0${at >> 1}Z` }));
  assert.deepEqual([ordered(f, g, h), ordered(h, g, f)], ["fgh", "fgh"]);
});

test("times and addresses", () => {
  assert.deepEqual([time("20260205T120001Z"), time("2026-02-05T12:00:01"), time("soon"), time(5)], [1770292801000, 1770292801000, NaN, NaN]);
  assert.deepEqual([utc("2026-02-05T13:00:01+01:00"), utc("2026-02-05T12:00:01.123456789Z"), utc("1970-01-01T00:00:00Z")], ["2026-02-05T12:00:01Z", "2026-02-05T12:00:01.123456789Z", "1970-01-01T00:00:00Z"]);
  for (const [url, head] of [["http://h/diff/ab/head.json", "ab/"], ["http://h/diff/ab/latest.json?k=1", "ab/"], ["http://h/diff/ab/", "ab/"], ["http://h/diff/source/ab", "source/ab/"]]) {
    assert.equal(new URL(locate(parseUrl(url)).head).pathname, `/diff/${head}head.json`);
  }
  assert.deepEqual(locate(parseUrl("http://h/feed.json")), { latest: "http://h/feed.json" });
  assert.deepEqual(locate(parseUrl("http://h/")), { manifest: "http://h/.well-known/diffdelta.json" });
});
