// Servers that are not towpath, that misbehave, and that go away.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { Client, FeedClient, HttpError, NetworkError, ProtocolError, TowpathError, UsageError, check, copy, discover, follow } from "towpath";
import { fresh, ids, json, memory, page, quiet, server, take } from "./helpers.js";

const param = (request, name) => new URL(request.url, "http://x").searchParams.get(name);

/** A Smart Feed without lines, of these ids; a cursor is the number of items up to it. */
const smartFeed = (items, hook = () => false) => (request, response) => {
  if (hook(request, response)) return;
  const from = Number((param(request, "since") ?? "cursor:0").replace("cursor:", ""));
  const shown = items.slice(from, from + 2);
  if (shown.length === 0 && param(request, "timeout") !== "0") return;
  json(response, page(shown, String(from + shown.length)));
};

test("addresses that are no feed are said to be none, at once", async () => {
  const answers = {
    "/html": [200, "text/html", "<!doctype html><title>Shop</title>"],
    "/json": [200, "application/json", '{"hello": 1}'],
    "/broken": [200, "application/json", '{"items": ['],
    "/atom": [200, "application/atom+xml", '<feed xmlns="http://www.w3.org/2005/Atom"/>'],
    "/empty": [200, "text/plain", ""],
    "/gone": [404, "application/problem+json", '{"title": "no such feed", "detail": "there is no feed x"}'],
  };
  const { base } = await server((request, response) => {
    const [status, type, body] = answers[request.url.replace(/\?.*/, "")] ?? [404, "text/plain", ""];
    response.writeHead(status, { "content-type": type }).end(body);
  });
  const fails = (path, kind, why, options = {}) => assert.rejects(follow(base + path, { log: quiet(), ...options }).next(), (error) => {
    assert.ok(error instanceof kind && error instanceof TowpathError, `${path}: ${error.stack}`);
    assert.match(error.message, why);
    assert.ok(error.url.startsWith(base + path));
    return true;
  });
  await fails("/html", ProtocolError, /text\/html, not a Smart Feed/);
  await fails("/json", ProtocolError, /JSON, not a Smart Feed/);
  await fails("/broken", ProtocolError, /not JSON/);
  await fails("/atom", ProtocolError, /application\/atom\+xml/);
  await fails("/empty", ProtocolError, /text\/plain/);
  await fails("/gone", HttpError, /404 there is no feed x/);
  for (const protocol of ["smart", "events"]) await fails("/html", ProtocolError, /HTML|event stream/, { protocol });
  await fails("/html", HttpError, /latest.json: the server answers 404/, { protocol: "diffdelta" });
  for (const call of [discover, check, (url) => copy(url, memory())]) await assert.rejects(call(`${base}/html`), ProtocolError);
  const told = await follow(`${base}/gone`).next().catch((error) => error);
  assert.deepEqual([told.status, told.problem.title], [404, "no such feed"]);
});

test("arguments that cannot be used", async () => {
  for (const [url, options] of [["", {}], ["ftp://x/", {}], ["http://user:pass@x/", {}], ["http://x/?since=1", { protocol: "smart" }],
    ["http://x/", { protocol: "atom" }], ["http://x/", { from: new Date("x") }], ["http://x/", { protocol: "events", once: true }],
    ["http://x/diff/a", { protocol: "diffdelta", from: "abc", fetch: async () => { throw new Error("not asked"); } }]]) {
    await assert.rejects(follow(url, { log: quiet(), giveUpAfter: 0, ...options }).next(), (error) => error instanceof UsageError || (url.includes("diff") && error instanceof NetworkError), url);
  }
  const shown = await follow("http://user:pass@x/?token=secret").next().catch((error) => error.message + error.url);
  assert.doesNotMatch(shown, /pass|secret/);
  for (const [options, what] of [[{ state: "f.state" }, "state"], [{ state: null }, "state"], [{ token: "s3cret\nx" }, "token"]])
    await assert.rejects(follow("http://127.0.0.1:1/", { giveUpAfter: 0, ...options }).next(), (error) => error instanceof UsageError && error.message.startsWith(what) && !/s3cret/.test(error.message), what);
  await assert.rejects(follow("xmpp:x").next(), (error) => error instanceof UsageError && error.message.startsWith("xmpp: is"));
  // Deno's own error has the URL in its text.
  const fetch = async (url) => { throw new TypeError(`error sending request for url (${url}): refused`); };
  const { message } = await follow("http://127.0.0.1:1/?token=secret", { fetch, giveUpAfter: 0 }).next().catch((error) => error);
  assert.match(message, /no answer: .*refused/);
  assert.doesNotMatch(message, /secret/);
});

test("what is published arrives behind a redirect, whole, or the call fails", async () => {
  const { base, feed, id } = await fresh();
  const moved = await server((request, response) => {
    const status = Number(/\d+/.exec(request.url)[0]);
    response.writeHead(status, { location: `${base}${request.url.replace(/^\/\d+/, "")}` }).end();
  });
  for (const status of [301, 302, 307, 308]) {
    const there = new Client(`${moved.base}/${status}`).feed(id);
    assert.equal((await there.put(`i${status}`, { content: "here" })).appended, 1);
  }
  await assert.rejects(new Client(`${moved.base}/303`).feed(id).put("x", {}), (error) => error instanceof HttpError && error.status === 303);
  const client = new FeedClient(feed);
  const bytes = new TextEncoder().encode("hello");
  for (const content of [bytes, bytes.buffer, new DataView(bytes.buffer)]) {
    await client.put("c", { content_type: "text/plain", content });
    assert.equal((await client.get("c")).content, "hello");
  }
  for (const content of [5, new Blob(["x"]), null, {}]) await assert.rejects(client.put("c", { content }), UsageError);
  // No address has these ids.
  for (const dots of [".", ".."]) {
    await client.put(dots, {});
    for (const call of ["get", "delete"]) await assert.rejects(client[call](dots), UsageError);
    assert.equal((await client.batch([{ id: dots, op: "delete" }])).appended, 1);
  }
});

test("a discovered event stream has one connection", async () => {
  let open = 0;
  const stream = await server((request, response) => {
    open += 1;
    request.on("close", () => { open -= 1; });
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(`id: 1\nevent: put\ndata: {"feed":"a","op":"put","id":"x","position":"1","modified":"2026-01-01T00:00:00Z"}\n\n`);
  });
  const changes = follow(`${stream.base}/events`, { log: quiet() });
  await changes.next();
  for (let tries = 0; open > 1 && tries < 100; tries++) await new Promise((resolve) => setTimeout(resolve, 20));
  assert.equal(open, 1);
  await changes.return();
});

test("lines without positions end the follow", async () => {
  let asked = 0;
  const endless = await server((request, response) => {
    asked += 1;
    response.writeHead(200, { "content-type": "application/x-ndjson" }).end('{"feed":"a","op":"put","id":"x"}\n');
  });
  await assert.rejects(take(follow(`${endless.base}/items`, { protocol: "smart", giveUpAfter: 0, log: quiet() }), 5), ProtocolError);
  assert.ok(asked < 5, `${asked}`);
});

test("any publisher's Smart Feed is followed by its cursors", async () => {
  const { base } = await server(smartFeed(["a", "b", "c"]));
  const state = memory();
  const seen = [];
  for await (const change of follow(base, { once: true, state })) seen.push(change);
  assert.deepEqual(ids(seen), ["put a", "put b", "put c"]);
  assert.deepEqual(seen[0], { feed: `${base}/`, op: "put", id: "a", item: { title: "Title a" } });
  assert.equal(state.saved.state.since, "cursor:3");
});

test("what a server says of an item that is deleted, numbered, or written by another hand", async () => {
  const items = [{ id: 7, object: { displayName: "Seven", id: "x" }, actor: { displayName: "Ann" }, content: "<p>&lt;</p>", updated: "2026-01-02T03:04:05+01:00", odd: 1 },
    { id: "b", deleted: true, title: "gone" }];
  const { base } = await server((request, response) => json(response, param(request, "since") ? page([], "2") : JSON.stringify({ items, last_cursor: 2 })));
  const seen = await take(follow(base, { once: true }), 5);
  assert.deepEqual(seen, [
    { feed: `${base}/`, op: "put", id: "7", modified: "2026-01-02T02:04:05Z", content_type: "text/html", content: "<p>&lt;</p>",
      item: { title: "Seven", authors: [{ name: "Ann" }], updated: "2026-01-02T02:04:05Z", extra: { activity_streams: { odd: 1 } } } },
    { feed: `${base}/`, op: "delete", id: "b", position: "2" },
  ].map((change, at) => (at === 0 ? change : change)));
});

test("a server that comes and goes is asked again, and nothing is lost", async () => {
  let asked = 0;
  const trouble = [
    (response) => response.destroy(),
    (response) => response.writeHead(503, { "retry-after": "1" }).end(),
    (response) => response.writeHead(200, { "content-type": "text/html" }).end("<html>Log in to this network</html>"),
    (response) => response.writeHead(200, { "content-type": "application/json", "content-length": "900" }).write(page(["x"], "1").slice(0, 20)) && setTimeout(() => response.destroy(), 20),
    (response) => response.writeHead(502).end("bad gateway"),
  ];
  const hook = (request, response) => {
    asked++;
    // Each odd request fails, but for the first, which finds the protocol.
    const fault = asked % 2 === 0 && trouble[asked / 2 - 1];
    fault && fault(response);
    return Boolean(fault);
  };
  const { base } = await server(smartFeed([..."abcdefghij"], hook));
  const log = quiet();
  const seen = await take(follow(base, { log, patience: 2000 }), 10);
  assert.equal(seen.map(({ id }) => id).join(""), "abcdefghij");
  assert.equal(log.warnings.length, 5, log.warnings.join("\n"));
  for (const [at, why] of [/no answer/, /503/, /HTML/, /no answer/, /502/].entries()) assert.match(log.warnings[at], why);
});

test("a log that throws ends the loop with its own error, and no timer is left", async () => {
  const { base } = await server((request, response) => response.destroy());
  const log = { warn: () => { throw new RangeError("no log"); } };
  const changes = follow(base, { log, protocol: "smart" });
  await assert.rejects(changes.next(), (error) => error instanceof RangeError && error.message === "no log");
  assert.deepEqual(await changes.next(), { done: true, value: undefined });
});

test("a server that is away at first is waited for, and given up when asked to", async () => {
  const gone = await server(() => {});
  const { port, base } = gone;
  await gone.stop();
  const log = quiet();
  const next = follow(base, { log }).next();
  while (log.warnings.length === 0) await new Promise((resolve) => setTimeout(resolve, 20));
  assert.match(log.warnings[0], /no answer: ECONNREFUSED; next attempt in 1 s/);
  await server(smartFeed(["a"]), port);
  assert.equal((await next).value.id, "a");
  await assert.rejects(follow("http://127.0.0.1:1/", { log, giveUpAfter: 100 }).next(), (error) => error instanceof NetworkError && error.cause !== undefined);
});

test("a server that is away for an hour is asked ever more rarely, and followed on", async () => {
  const { Date: { now }, setInterval } = globalThis;
  const [begun, speed] = [now(), 1000];
  // An hour in 3.6 seconds, for both clocks that waits go by.
  Date.now = () => begun + (now() - begun) * speed;
  globalThis.setInterval = (act, ms) => setInterval(act, ms / speed);
  try {
    const first = await server(smartFeed(["a", "b"]));
    const [log, state] = [quiet(), memory()];
    const changes = follow(first.base, { log, state, patience: 10_000_000 });
    assert.deepEqual([(await changes.next()).value.id, (await changes.next()).value.id], ["a", "b"]);
    const next = changes.next();
    await first.stop();
    const away = Date.now();
    while (Date.now() - away < 3_600_000) await new Promise((resolve) => setTimeout(resolve, 10));
    await server(smartFeed(["a", "b", "c"]), first.port);
    assert.equal((await next).value.id, "c");
    assert.ok(Date.now() - away < 2 * 3_600_000, "it waits for five minutes at most");
    assert.ok(log.warnings.length >= 8 && log.warnings.length < 80, `${log.warnings.length} attempts`);
    assert.equal(state.saved.state.since, "cursor:2");
    await changes.return();
  } finally {
    Object.assign(globalThis, { setInterval });
    Date.now = now;
  }
});

test("a silent server is an error, not a hang", async () => {
  const { base } = await server(() => {});
  await assert.rejects(follow(base, { protocol: "events", log: quiet(), giveUpAfter: 0, patience: 300 }).next(), /silent for 1 s/);
  await assert.rejects(discover(base, { patience: 300 }), NetworkError);
});

test("a stream that falls silent, and one that ends, is opened again after its last event", async () => {
  const asked = [];
  const { base } = await server((request, response) => {
    asked.push(request.headers["last-event-id"]);
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(`retry: 100\n\nid: ${asked.length}\nevent: put\ndata: {"feed":"f","op":"put","id":"${asked.length}"}\n\n`);
    // The third is cut off within an event, which then does not count.
    if (asked.length === 3) response.write('id: 9\ndata: {"op":"put","id":"half"}\n', () => response.destroy());
    else if (asked.length !== 2) response.end();
  });
  const log = quiet();
  const changes = follow(base, { protocol: "events", log, patience: 500 });
  // The second one stays silent. A laptop that slept finds out by the clock, long before 70 seconds of ticks.
  const { Date: { now } } = globalThis;
  let ahead = 0;
  Date.now = () => now() + ahead;
  try {
    const seen = [];
    for await (const { id } of changes) {
      seen.push(id);
      if (id === "2") setTimeout(() => { ahead = 3_600_000; }, 300);
      if (id === "4") break;
    }
    // The first request only finds out that the address is a stream.
    assert.deepEqual(seen, ["2", "3", "4"]);
    assert.deepEqual(asked, [undefined, undefined, "2", "3"]);
    assert.match(log.warnings.join(), /silent for 70 s/);
  } finally {
    Date.now = now;
  }
});

test("a server that leads in a circle, or ignores the position, is not asked as fast as it answers", async () => {
  for (const cursor of [() => "1", (at) => String(at % 3)]) {
    let asked = 0;
    const { base } = await server((request, response) => json(response, page(["a"], cursor(asked++))));
    await assert.rejects(async () => { for await (const _ of follow(base, { once: true, giveUpAfter: 0, log: quiet() })); }, /lead back to it/);
    assert.ok(asked < 40, `${asked} requests`);
  }
});

test("a malformed document of DiffDelta is an error that passes, and not the end of a follow", async () => {
  const [zero, one, two] = ["0", "1", "2"].map((digit) => `sha256:${digit.repeat(64)}`);
  const latest = { source_id: "s", cursor: two, prev_cursor: one, changed: true, generated_at: "2026-01-01T00:00:02Z", buckets: { new: [{ id: "a" }] } };
  const listed = { url: "/archive/s/1.json", cursor: one, prev_cursor: zero, generated_at: "2026-01-01T00:00:01Z" };
  const own = (payload) => ({ buckets: { new: [{ id: "a", source_payload: { profile: "towpath-item-1", ...payload } }] } });
  for (const [name, head, document, entry] of [
    ["a digest", {}, {}, { sha256: 5 }],
    ["a link of the index", {}, {}, { url: "http://[" }],
    ["a bucket", {}, { buckets: { new: { id: "a" } } }, undefined],
    ["a link of the head", { latest_url: "http://[" }, {}, undefined],
    ["an item", {}, own({ absent: 5 }), undefined],
    ["an item's members", {}, own({ extra: "{" }), undefined],
  ]) {
    const { base } = await server((request, response) => {
      if (request.url.includes("head")) json(response, JSON.stringify({ ...latest, ...head }));
      else if (request.url.includes("latest")) json(response, JSON.stringify({ ...latest, ...document }));
      else if (request.url.endsWith("index.json") && entry) json(response, JSON.stringify({ snapshots: [{ ...listed, ...entry }] }));
      else if (entry && request.url === listed.url) json(response, JSON.stringify({ ...latest, cursor: one, prev_cursor: zero }));
      else response.writeHead(404).end();
    });
    const all = async () => { for await (const _ of follow(`${base}/diff/s/head.json`, { protocol: "diffdelta", once: true, giveUpAfter: 0, log: quiet() })); };
    await assert.rejects(all, ProtocolError, name);
  }
});

test("a follow that is dropped half-way gives up its request", async () => {
  const held = [];
  const { base } = await server(smartFeed(["a"], (request, response) => {
    if (param(request, "since") !== null) held.push(once(response, "close"));
    return false;
  }));
  for (const protocol of ["smart"]) {
    const controller = new AbortController();
    const changes = follow(base, { protocol, signal: controller.signal });
    assert.equal((await changes.next()).value.id, "a");
    const next = changes.next();
    while (held.length === 0) await new Promise((resolve) => setTimeout(resolve, 10));
    controller.abort(new RangeError("enough"));
    await assert.rejects(next, /enough/);
    await Promise.all(held);
    assert.deepEqual(await changes.next(), { done: true, value: undefined });
    await assert.rejects(follow(base, { signal: controller.signal }).next(), /enough/);
  }
  const stream = await server((request, response) => {
    held.push(once(response, "close"));
    response.writeHead(200, { "content-type": "text/event-stream" }).write('data: {"op":"put","id":"a"}\n\n');
  });
  held.length = 0;
  assert.deepEqual(ids(await take(follow(stream.base, { protocol: "events" }), 1)), ["put a"]);
  await Promise.all(held);
});

test("a program ends when its follow has ended: no timer and no socket is left", async () => {
  const { base } = await server(smartFeed(["a", "b"]));
  for (const body of ["break;", "throw new Error('the body');", "controller.abort();"]) {
    const program = `import { follow } from "towpath"; const controller = new AbortController();
      try { for await (const change of follow("${base}", { signal: controller.signal })) { ${body} } } catch (error) { console.log(error.name); }`;
    const child = spawn(process.execPath, ["--input-type=module", "-e", program], { stdio: ["ignore", "pipe", "inherit"] });
    child.stdout.resume();
    const [code] = await once(child, "close");
    assert.equal(code, 0, body);
  }
});

test("pages lead to their feeds by link elements and Link headers", async () => {
  const { base } = await server((request, response) => {
    const at = request.url.replace(/\?.*/, "");
    if (at === "/feed") return json(response, page([], "0"));
    if (at === "/stream") return response.writeHead(200, { "content-type": "text/event-stream" }).write(": hello\n\n");
    const header = at === "/header" ? { link: '<https://a.example/>; rel="next", </feed>; rel="alternate"; type="application/json"' } : {};
    const links = at === "/page"
      ? `<!-- <link rel=alternate type=application/json href=/none> --><base href="/b/"><script>'<link rel=alternate type=application/json href=/none>'</script>
         <link rel="alternate stylesheet" type='text/css' href="/none"><LINK href=../stream title="a > b" rel='alternate' type=text/event-stream>` : "";
    return response.writeHead(200, { "content-type": "text/html", ...header }).end(`<!doctype html>${links}`);
  });
  assert.deepEqual(await discover(`${base}/header`), [{ protocol: "smart", url: `${base}/feed` }]);
  assert.deepEqual(await discover(`${base}/page`), [{ protocol: "events", url: `${base}/stream` }]);
});

test("a check names what a reader would stumble over", async () => {
  const smart = await server((request, response) => json(response, JSON.stringify({ items: [{ id: "a" }, { id: "a" }, { id: "b" }], last_cursor: "1" })));
  const failed = async (base) => (await check(base)).findings.filter(({ outcome }) => outcome === "fail").map(({ rule }) => rule);
  assert.deepEqual(await failed(smart.base), ["the response is a collection with count, totalItems and url", "max limits the items", "items have ids of their own", "since=cursor: gives the items after it"]);
  const zero = `sha256:${"0".repeat(64)}`;
  const item = { source: "s", id: "x", risk: { score: 0.9 } };
  const head = { cursor: `sha256:${"1".repeat(64)}`, prev_cursor: zero, changed: false, ttl_sec: 60, latest_url: "/diff/s/latest.json", generated_at: "2026-01-01T00:00:00Z" };
  const diffdelta = await server((request, response) => json(response, JSON.stringify(request.url.includes("head") ? head : { ...head, changed: true, buckets: { new: [item] } })));
  const report = await check(`${diffdelta.base}/diff/s/head.json`);
  assert.equal(report.conforms, false);
  assert.deepEqual(await failed(`${diffdelta.base}/diff/s/head.json`), ["changed of head agrees with its cursors", "head has an ETag", "latest has an ETag",
    "the cursor recomputes by canonical_v1", "items have every required member", "items with a risk of 0.4 or more are flagged"]);
});

test("changes without a feed get the name that the publisher tells, for good", async () => {
  let name = "news";
  const lines = (items) => items.map((id) => `${JSON.stringify({ op: "put", id, position: `cursor:${id}` })}\n`).join("");
  const { base } = await server((request, response) => {
    const headers = name === undefined ? {} : { "towpath-feed": name };
    const isOver = param(request, "since") === "cursor:2";
    const isLines = request.url.startsWith("/lines") && param(request, "as") === "line";
    if (!isLines) return json(response, page(isOver ? [] : ["1", "2"], isOver ? undefined : "2"), 200, headers);
    response.writeHead(200, { "content-type": "application/x-ndjson", ...headers }).end(isOver ? "" : lines(["1", "2"]));
  });
  const feeds = async (path, state) => {
    const told = [];
    for await (const { feed } of follow(base + path, { once: true, protocol: "smart", state, log: quiet() })) told.push(feed);
    return told;
  };
  for (const path of ["/lines", "/collection"]) {
    const state = memory();
    name = "news";
    assert.deepEqual(await feeds(path, state), ["news", "news"], path);
    assert.equal(state.saved.state.feed_name, "news", "as the command line stores it");
    // A publisher that renames the feed changes nothing for a copy of it.
    name = "other";
    state.saved.state.since = undefined;
    assert.deepEqual(await feeds(path, state), ["news", "news"], path);
    // A copy that was begun before there were names keeps the address.
    state.saved.state = { ...state.saved.state, since: undefined, feed_name: undefined };
    assert.deepEqual(await feeds(path, state), [base + path, base + path], path);
    for (const no of [undefined, "https://example.com/feed", "X", "n".repeat(33)]) {
      name = no;
      assert.deepEqual(await feeds(path), [base + path, base + path], `${path}: ${no} is no name`);
    }
  }
});
