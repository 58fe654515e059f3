// Tests in Chromium. The environment has TOWPATH_PROGRAM, TOWPATH_ROOT, TOWPATH_BROWSER_MODULES; the working folder has
// the installed package.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import path from "node:path";
import { test, before, after } from "node:test";
import { Client } from "towpath";
import { server, towpath } from "./helpers.js";

const require = createRequire(path.join(process.env.TOWPATH_BROWSER_MODULES, "x.js"));
const { chromium } = require("playwright-core");
const TYPES = { ".js": "text/javascript", ".html": "text/html" };
const CONFIG = (origin) => `[server]\ncors_origins = ["${origin}"]\n[[feed]]\nid = "news"\n[[feed]]\nid = "members"\nreaders = ["r3ader"]\n`;

let browser;
let site;

before(async () => {
  // The site of the pages: another origin than the feeds'.
  site = await server(async (request, response) => {
    const name = new URL(request.url, "http://x").pathname;
    const folder = name.startsWith("/dist/") ? path.resolve("node_modules/towpath") : process.env.TOWPATH_ROOT;
    const body = name === "/" ? "<!doctype html><title>Test</title>" : await readFile(path.join(folder, name)).catch(() => undefined);
    response.writeHead(body === undefined ? 404 : 200, { "content-type": TYPES[path.extname(name)] ?? "text/html" }).end(body);
  });
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"],
  });
});
after(() => browser.close());

/** A page of the site with a follow under way: `seen` are ids and operations, `ended` the error's name and text. */
async function following(feed, options, { clock = false } = {}) {
  const context = await browser.newContext();
  const page = await context.newPage();
  page.setDefaultTimeout(20_000);
  if (clock) await page.clock.install();
  await page.goto(site.base);
  await page.evaluate(async ([feed, options]) => {
    const { follow } = await import("/dist/towpath.js");
    Object.assign(globalThis, { seen: [], warned: [], ended: undefined, controller: new AbortController() });
    const log = { warn: (text) => globalThis.warned.push(text) };
    const state = options.kept ? localStorage : undefined;
    (async () => {
      for await (const change of follow(feed, { ...options, state, log, signal: globalThis.controller.signal })) globalThis.seen.push(`${change.op} ${change.id}`);
    })().then(() => { globalThis.ended = "end"; }, (error) => { globalThis.ended = `${error.name}: ${error.message}`; });
  }, [feed, options]);
  return {
    page,
    seen: () => page.evaluate(() => globalThis.seen),
    until: async (wanted) => {
      for (let tries = 0; tries < 400; tries++) {
        const { seen, ended } = await page.evaluate(() => ({ seen: globalThis.seen, ended: globalThis.ended }));
        if (seen.includes(wanted)) return seen;
        assert.equal(ended, undefined);
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      throw new Error(`never: ${wanted}; ${await page.evaluate(() => JSON.stringify([globalThis.seen, globalThis.warned]))}`);
    },
    warned: () => page.evaluate(() => globalThis.warned),
  };
}

test("another origin: every protocol, a token, a state in localStorage, a server that restarts", async () => {
  const first = await towpath({ config: CONFIG(site.base) });
  const news = new Client(first.base).feed("news");
  await news.batch([{ id: "a" }, { id: "b" }]);
  await new Client(first.base).feed("members").put("m", {});
  while ((await (await fetch(`${first.base}/diff/news/head.json`)).json()).cursor.endsWith("0000"));
  const smart = await following(first.feed, { kept: true });
  const events = await following(`${first.base}/feeds/news/events`, {});
  const diffdelta = await following(first.feed, { protocol: "diffdelta", once: true });
  const members = await following(`${first.base}/feeds/members`, { token: "r3ader", protocol: "events" });
  for (const one of [smart, events, diffdelta]) assert.deepEqual(await one.until("put b"), ["put a", "put b"]);
  await members.until("put m");
  await first.stop("SIGKILL");
  const second = await towpath({ config: CONFIG(site.base), at: first.at, port: first.port });
  await new Client(second.base).feed("news").put("c", {});
  assert.deepEqual(await smart.until("put c"), ["put a", "put b", "put c"]);
  assert.deepEqual(await events.until("put c"), ["put a", "put b", "put c"]);
  // A page that is opened again goes on where it was.
  await news.put("d", {});
  await smart.until("put d");
  const page = await smart.page.context().newPage();
  await page.goto(site.base);
  const seen = await page.evaluate(async (feed) => {
    const { follow } = await import("/dist/towpath.js");
    const all = async (state) => {
      const seen = [];
      for await (const { id } of follow(feed, { state, once: true })) seen.push(id);
      return seen.join();
    };
    return [await all(localStorage), await all(sessionStorage), await all(sessionStorage)];
  }, first.feed);
  assert.deepEqual(seen, ["", "a,b,c,d", ""]);
  for (const one of [smart, events, diffdelta, members]) await one.page.context().close();
});

test("a laptop that sleeps: connections that died meanwhile are given up by the clock", async () => {
  const running = await towpath({ config: CONFIG(site.base) });
  // In between, a network that forgets: what was open stays open and says nothing more.
  let asleep = false;
  const network = await server(async (request, response) => {
    if (asleep) return;
    const controller = new AbortController();
    response.on("close", () => controller.abort());
    const answer = await fetch(running.base + request.url, { method: request.method, headers: { ...request.headers, host: new URL(running.base).host }, signal: controller.signal }).catch(() => undefined);
    if (!answer) return;
    response.writeHead(answer.status, [...answer.headers].filter(([name]) => !["content-encoding", "content-length", "transfer-encoding", "connection"].includes(name)).flat());
    try {
      for await (const chunk of answer.body ?? []) if (!asleep) response.write(chunk);
      if (!asleep) response.end();
    } catch { /* The page has gone. */ }
  });
  const news = new Client(running.base).feed("news");
  await news.put("a", {});
  for (const [protocol, at] of [["smart", "items"], ["events", "events"]]) {
    asleep = false;
    const tab = await following(`${network.base}/feeds/news/${at}`, { protocol }, { clock: true });
    await tab.until("put a");
    asleep = true;
    await news.put(`${protocol}-1`, {});
    await new Promise((resolve) => setTimeout(resolve, 300));
    assert.ok(!(await tab.seen()).includes(`put ${protocol}-1`));
    asleep = false;
    // The lid opens an hour later: timers fire once, and the wall clock has moved.
    await tab.page.clock.fastForward("01:00:00");
    await tab.page.clock.resume();
    await tab.until(`put ${protocol}-1`);
    assert.match((await tab.warned()).join(), /silent for|no answer/);
    await tab.page.context().close();
  }
});

test("the page below examples/ shows a live feed", async () => {
  const running = await towpath({ config: CONFIG(site.base) });
  const news = new Client(running.base).feed("news");
  await news.batch([{ id: "a", item: { title: "Ten boats", url: "https://www.example.com/a" } }]);
  const page = await browser.newPage();
  page.setDefaultTimeout(20_000);
  const faults = [];
  page.on("pageerror", (error) => faults.push(error.message));
  await page.goto(`${site.base}/examples/live.html?feed=${encodeURIComponent(running.feed)}`);
  await page.waitForSelector("li >> text=Ten boats");
  await news.put("c", { item: { title: "<b>Twelve</b>" } });
  await page.waitForSelector("li:first-child >> text=<b>Twelve</b>");
  await news.delete("a");
  await page.waitForFunction(() => !document.body.innerText.includes("Ten boats"));
  assert.deepEqual(faults, []);
  await page.close();
});
