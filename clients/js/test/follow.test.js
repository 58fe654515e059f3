// Following a real server.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { Client, GapError, HttpError, StateError, UsageError, check, copy, discover, follow, publish, storageState } from "towpath";
import { fileState, fileStore } from "towpath/node";
import { folder, fresh, ids, memory, quiet, run, server, take, towpath } from "./helpers.js";

const PROTOCOLS = ["smart", "events", "diffdelta"];
const options = (protocol) => ({ protocol, ...(protocol === "events" ? {} : { once: true }), log: quiet() });

test("changes have one shape in every protocol, and publishing takes it back", async () => {
  const { base, feed } = await towpath({ config: '[[feed]]\nid = "news"\n[[feed]]\nid = "copy"\n' });
  const news = new Client(base).feed("news");
  const item = { title: "Ten boats", url: "https://example.com/1", summary: "s", tags: ["a"], authors: [{ name: "Ann" }], image: "https://example.com/i.png",
    published: "2026-01-02T03:04:05Z", attachments: [{ url: "https://example.com/a.mp3", media_type: "audio/mpeg" }], extra: { own: [1, null] } };
  const answer = await news.batch([
    { id: "json", json: { boats: 3.5, "é": ["<", null] }, item },
    { id: "text", content: "a\nb & <c>" },
    { id: "bytes", content: new Uint8Array([0, 128, 255]), item: { title: "Bytes" } },
    { id: "gone", item: { title: "Soon gone" } },
  ]);
  assert.equal(answer.appended, 4);
  await news.delete("gone");
  while (!/"removed":\[\{/.test(await (await fetch(`${base}/diff/news/latest.json`)).text()));
  const seen = {};
  for (const protocol of PROTOCOLS) {
    const changes = await take(follow(feed, options(protocol)), protocol === "diffdelta" ? 5 : 4);
    const put = changes.filter(({ op, id }) => op === "put" && id !== "gone");
    // DiffDelta orders the changes of one time by id.
    if (protocol === "diffdelta") put.sort((a, b) => ["json", "text", "bytes"].indexOf(a.id) - ["json", "text", "bytes"].indexOf(b.id));
    seen[protocol] = put.map(({ feed, op, id, content_type, json, content, content_base64, item }) => ({ feed, op, id, content_type, json, content, content_base64, item }));
    assert.deepEqual(ids(changes).at(-1), "delete gone", protocol);
    assert.equal(typeof changes[0].position, "string");
    assert.match(changes[0].modified, /^\d{4}-.*Z$/);
  }
  assert.deepEqual(seen.smart.map(({ id }) => id), ["json", "text", "bytes"]);
  assert.deepEqual(seen.events, seen.smart);
  assert.deepEqual(seen.diffdelta, seen.smart);
  assert.deepEqual(seen.smart[0].item, item);
  assert.deepEqual(seen.smart[0].json, { boats: 3.5, "é": ["<", null] });
  assert.equal(seen.smart[1].content, "a\nb & <c>");
  assert.equal(seen.smart[2].content_base64, "AID/");
  // What one feed told is published to another as it is.
  const all = [];
  for await (const change of follow(feed, options("smart"))) all.push(change);
  await publish(`${base}/feeds/copy`, all);
  const copied = [];
  for await (const { position, modified, feed, ...change } of follow(`${base}/feeds/copy`, options("smart"))) copied.push(change);
  assert.deepEqual(copied.slice(0, 3), all.slice(0, 3).map(({ position, modified, feed, ...change }) => change));
});

test("a position, a time and the last items are places to begin", async () => {
  const { base, feed, id: own } = await fresh();
  const news = new Client(base).feed(own);
  await news.batch([{ id: "a" }, { id: "b" }, { id: "c" }]);
  while ((await (await fetch(`${base}/diff/${own}/head.json`)).json()).cursor.endsWith("0000"));
  const from = async (from, protocol = "smart", count = 9) => ids(await take(follow(feed, { ...options(protocol), from }), count));
  for (const protocol of PROTOCOLS) {
    const [, second] = await take(follow(feed, options(protocol)), 3);
    assert.deepEqual(await from(second.position, protocol, 1), ["put c"], protocol);
    assert.deepEqual(await from(new Date(0), protocol, 3), ["put a", "put b", "put c"], protocol);
  }
  assert.deepEqual(await from({ last: 2 }), ["put b", "put c"]);
  assert.deepEqual(await from({ last: 2 }, "events", 2), ["put b", "put c"]);
  assert.deepEqual(await from({ last: 50 }), ["put a", "put b", "put c"]);
  assert.deepEqual(await from("now"), []);
  assert.deepEqual(await from("now", "diffdelta"), []);
  await assert.rejects(from({ last: 1 }, "diffdelta"), UsageError);
});

test("what is published while it waits arrives, by long poll and by stream", async () => {
  const { base, feed, id: own } = await fresh();
  const news = new Client(base).feed(own);
  for (const protocol of ["smart", "events"]) {
    const changes = follow(feed, { protocol, from: "now" });
    const next = changes.next();
    // Nothing tells when a stream is open, so it is published to until something comes.
    let count = 0;
    let first;
    while (!first) {
      await news.put(`${protocol}-${++count}`, {});
      first = await Promise.race([next, new Promise((resolve) => setTimeout(resolve, 200))]);
    }
    assert.equal(first.value.op, "put");
    const following = Number(first.value.id.split("-")[1]) + 1;
    const again = changes.next();
    await news.put(`${protocol}-${following}`, { item: { title: "again" } });
    assert.equal((await again).value.id, `${protocol}-${following}`);
    await changes.return();
  }
});

test("a server that restarts is followed on, and one that begins anew is told", async () => {
  await Promise.all(["smart", "events"].map(async (protocol) => {
    const first = await towpath();
    const state = memory();
    await new Client(first.base).feed("news").put("a", {});
    const log = quiet();
    const changes = follow(first.feed, { protocol, state, log, patience: 5000 });
    assert.equal((await changes.next()).value.id, "a");
    let next = changes.next();
    await first.stop("SIGKILL");
    const second = await towpath({ at: first.at, port: first.port });
    await new Client(second.base).feed("news").put("b", {});
    assert.equal((await next).value.id, "b", protocol);
    next = changes.next();
    await second.stop("SIGKILL");
    const third = await towpath({ port: first.port });
    await new Client(third.base).feed("news").put("c", {});
    assert.deepEqual((await next).value, { feed: "news", op: "reset" }, protocol);
    assert.equal((await changes.next()).value.id, "c");
    await changes.return();
    assert.ok(log.warnings.length > 0);
    await third.stop();
  }));
});

test("the state moves only past what the loop body finished", async () => {
  const { base, feed, id: own } = await fresh();
  await new Client(base).feed(own).batch(["a", "b", "c", "d"].map((id) => ({ id })));
  while (!(await (await fetch(`${base}/diff/${own}/latest.json`)).text()).includes('"d"'));
  for (const protocol of PROTOCOLS) {
    const state = memory();
    const seen = [];
    const body = async (stop) => {
      for await (const { id } of follow(feed, { ...options(protocol), state })) {
        if (id === stop) throw new RangeError("the body's own");
        seen.push(id);
      }
    };
    // The callback's error comes through as it is.
    await assert.rejects(body("c"), RangeError);
    assert.deepEqual(seen, ["a", "b"], protocol);
    for await (const { id } of follow(feed, { ...options(protocol), state })) {
      seen.push(id);
      if (id === "d") break;
    }
    assert.deepEqual(seen, ["a", "b", "c", "d"], protocol);
    // `break` left the last one unfinished.
    assert.deepEqual(ids(await take(follow(feed, { ...options(protocol), state }), 1)), ["put d"], protocol);
    assert.deepEqual([state.saved.towpath_state, state.saved.url, state.saved.protocol], [1, feed, protocol]);
  }
});

test("states: a file, a Storage, one's own; and those that cannot be used", async () => {
  const { base, feed, id: own } = await fresh();
  const at = folder();
  await new Client(base).feed(own).batch([{ id: "a" }, { id: "b" }]);
  const all = async (state) => {
    const seen = [];
    for await (const { id } of follow(feed, { state, once: true })) seen.push(id);
    return seen.join();
  };
  const storage = new Map();
  const localStorage = { getItem: (key) => storage.get(key) ?? null, setItem: (key, value) => storage.set(key, value) };
  const states = [() => fileState(path.join(at, "a.state")), () => localStorage, () => storageState(localStorage, "own")];
  for (const state of states) assert.deepEqual([await all(state()), await all(state())], ["a,b", ""]);
  assert.deepEqual([...storage.keys()], [`towpath:${feed}`, "own"]);
  const saved = JSON.parse(storage.get("own"));
  for (const [bad, why] of [
    [{ ...saved, towpath_state: 2 }, /version 2/], [{ ...saved, url: `${base}/feeds/other` }, /it is of .*other/], [{ hello: 1 }, /no state/],
    [{ ...saved, protocol: "history" }, /protocol history/], ["text", /no state/],
  ]) await assert.rejects(all(memory(bad)), (error) => error instanceof StateError && why.test(error.message) && error.url === feed);
  await assert.rejects(follow(feed, { state: memory(saved), protocol: "diffdelta", once: true }).next(), StateError);
  writeFileSync(path.join(at, "damaged"), '{"towpath_st');
  await assert.rejects(all(fileState(path.join(at, "damaged"))), (error) => error instanceof StateError && error.cause instanceof SyntaxError);
  const full = { load: () => undefined, save: () => { throw new Error("disk full"); } };
  await assert.rejects(all(full), (error) => error instanceof StateError && /disk full/.test(error.message));
  await assert.rejects(all({}), UsageError);
});

test("the command line goes on from a state file of the package, and the other way round", async () => {
  const { base, feed, id: own } = await fresh();
  const file = path.join(folder(), "news.state");
  const news = new Client(base).feed(own);
  for (const protocol of ["smart", "diffdelta"]) {
    const state = `${file}.${protocol}`;
    const here = async () => {
      const seen = [];
      for await (const { id } of follow(feed, { state: fileState(state), protocol, once: true })) seen.push(id);
      return seen.join();
    };
    const there = async () => {
      const lines = (await run("follow", feed, "--state", state, "--once", "--protocol", protocol)).split("\n").filter(Boolean);
      return lines.map((line) => JSON.parse(line).id).join();
    };
    const put = async (id) => {
      const { last } = await news.put(`${protocol}-${id}`, {});
      // A chain is minted a moment after the log moved.
      while (protocol === "diffdelta" && !(await (await fetch(`${base}/diff/${own}/latest.json`)).text()).includes(`diffdelta-${id}`)) assert.ok(last);
    };
    await put("a");
    assert.match(await here(), new RegExp(`${protocol}-a$`));
    await put("b");
    assert.equal(await there(), `${protocol}-b`);
    await put("c");
    assert.equal(await here(), `${protocol}-c`);
    assert.equal(await there(), "");
  }
});

test("DiffDelta: what was missed comes from the archive, each change once and proved", async () => {
  const { base, feed, id: own } = await fresh();
  const news = new Client(base).feed(own);
  const state = memory();
  const pull = async (at = feed) => {
    const seen = [];
    for await (const change of follow(at, { protocol: "diffdelta", state, once: true, log: quiet(), onGap: (gap) => { throw gap; } })) seen.push(change.id);
    return seen;
  };
  const mint = async (id) => {
    await news.put(id, { content: `text of ${id}` });
    while (!(await (await fetch(`${base}/diff/${own}/latest.json`)).text()).includes(`text of ${id}`));
  };
  const wanted = [];
  for (let run = 0; run < 3; run++) {
    for (let n = 0; n < 3; n++) {
      wanted.push(`${run}-${n}`);
      await mint(wanted.at(-1));
    }
    assert.deepEqual(await pull(), wanted.slice(run * 3), `run ${run}`);
  }
  assert.deepEqual(await pull(), []);
  assert.equal(state.saved.state.verified, true);
  // The last mint repeats the others for clients without the archive.
  assert.match(await (await fetch(`${base}/diff/${own}/latest.json`)).text(), /"changed_in":/);
  // One that changes a document on its way.
  await mint("last");
  const proxy = await server(async (request, response) => {
    const answer = await fetch(base + request.url, { headers: { accept: "application/json" } });
    const body = (await answer.text()).replace("text of last", "text of lost");
    response.writeHead(answer.status, { "content-type": answer.headers.get("content-type") }).end(body);
  });
  state.saved = { ...state.saved, url: `${proxy.base}/feeds/${own}`, follows: undefined };
  state.saved.follows = `${proxy.base}/diff/${own}/head.json`;
  const tampered = follow(state.saved.url, { protocol: "diffdelta", state, once: true, giveUpAfter: 0, log: quiet() });
  await assert.rejects(tampered.next(), /does not match its cursor|SHA-256/);
  // An archive that lost its past.
  const trimmed = await server(async (request, response) => {
    const answer = await fetch(base + request.url, { headers: { accept: "application/json" } });
    let body = (await answer.text());
    if (request.url.endsWith("index.json")) body = JSON.stringify({ snapshots: JSON.parse(body).snapshots.slice(-1) });
    response.writeHead(answer.status, { "content-type": answer.headers.get("content-type") }).end(body);
  });
  const old = memory({ towpath_state: 1, url: `${trimmed.base}/feeds/${own}`, protocol: "diffdelta", follows: `${trimmed.base}/diff/${own}/head.json`, state: { cursor: `sha256:${"1".repeat(64)}` } });
  const gaps = [];
  const behind = follow(old.saved.url, { protocol: "diffdelta", state: old, once: true, log: quiet(), onGap: (gap) => gaps.push(gap) });
  assert.deepEqual(ids(await take(behind, 5)), ["put last"]);
  assert.ok(gaps[0] instanceof GapError && /no longer has/.test(gaps[0].message));
  // A callback that throws ends the loop with its own error, and the state stays before what was lost.
  const before = { ...old.saved, state: { cursor: `sha256:${"1".repeat(64)}` } };
  const stays = memory(before);
  const thrown = follow(old.saved.url, { protocol: "diffdelta", state: stays, once: true, log: quiet(), onGap: () => { throw new RangeError("my own"); } });
  await assert.rejects(take(thrown, 5), (error) => error instanceof RangeError && error.message === "my own");
  assert.deepEqual(stays.saved, before);
  assert.deepEqual(await thrown.next(), { done: true, value: undefined });
});

test("tokens and headers go to the address that was given, and to no other", async () => {
  const config = '[server]\ntokens = ["t0ken"]\n[[feed]]\nid = "news"\nreaders = ["r3ader"]\n';
  const { base, feed } = await towpath({ config });
  await assert.rejects(follow(feed).next(), (error) => error instanceof HttpError && [401, 404].includes(error.status));
  await assert.rejects(new Client(base).feed("news").put("a", {}), (error) => error instanceof HttpError && error.status === 401 && error.problem !== undefined);
  await new Client(base, { token: "t0ken" }).feed("news").put("a", {});
  assert.deepEqual(ids(await take(follow(feed, { token: "r3ader", once: true }), 2)), ["put a"]);
  assert.deepEqual(ids(await take(follow(feed, { headers: { authorization: "Bearer r3ader" }, protocol: "events" }), 1)), ["put a"]);
  const asked = [];
  const other = await server((request, response) => {
    asked.push(request.headers);
    response.writeHead(404).end();
  });
  const redirecting = await server((request, response) => {
    asked.push(request.headers);
    response.writeHead(307, { location: `${other.base}/x` }).end();
  });
  for (const secrets of [{ token: "s3cret" }, { headers: { "x-key": "s3cret" } }]) {
    asked.length = 0;
    await assert.rejects(follow(redirecting.base, secrets).next(), HttpError);
    assert.match(JSON.stringify(asked[0]), /s3cret/);
    assert.doesNotMatch(JSON.stringify(asked.slice(1)), /s3cret/);
    assert.ok(asked.length > 1);
  }
});

test("discovery and checks", async () => {
  const { base, feed, id: own } = await fresh();
  await new Client(base).feed(own).batch(["a", "b", "c", "d", "e"].map((id) => ({ id, item: { title: id } })));
  while ((await (await fetch(`${base}/diff/${own}/head.json`)).json()).cursor.endsWith("0000"));
  assert.deepEqual((await discover(feed)).map(({ protocol }) => protocol), ["smart", "diffdelta", "events"]);
  assert.deepEqual(await discover(`${feed}/items`), [{ protocol: "smart", url: `${feed}/items` }]);
  assert.deepEqual(await discover(`${feed}/events`), [{ protocol: "events", url: `${feed}/events` }]);
  assert.equal((await discover(base))[0].protocol, "diffdelta");
  for (const protocol of ["smart", "diffdelta"]) {
    const report = await check(feed, { protocol });
    assert.deepEqual(report.findings.filter(({ outcome }) => outcome === "fail"), [], protocol);
    assert.equal(report.conforms, true);
    assert.deepEqual(report.findings.filter(({ outcome }) => outcome === "skipped"), [], protocol);
  }
});

test("a copy in a file has position and items of one moment", async () => {
  const { base, feed, id: own } = await fresh();
  const news = new Client(base).feed(own);
  await news.batch([{ id: "a", item: { title: "one" } }, { id: "b" }, { id: "__proto__" }]);
  const file = path.join(folder(), "copy.json");
  await copy(feed, fileStore(file), { once: true });
  await news.batch([{ id: "a", item: { title: "two" } }, { id: "b", op: "delete" }]);
  const store = fileStore(file);
  await copy(feed, store, { once: true });
  assert.deepEqual([Object.keys(store.items).sort(), store.items.a.item.title], [["__proto__", "a"], "two"]);
  assert.deepEqual(Object.keys(JSON.parse(readFileSync(file, "utf8")).data).sort(), ["__proto__", "a"]);
  // A store that fails ends the copy with its own error, and keeps what it had.
  await news.put("c", {});
  await assert.rejects(copy(feed, { load: () => store.load(), apply: () => { throw new RangeError("full"); } }, { once: true }), RangeError);
  await copy(feed, store, { once: true });
  assert.ok("c" in store.items);
});
