// Tests of the web page in a real browser. Arguments: the server's address, and a folder for screenshots.
// The environment has TOWPATH_BROWSER_MODULES, the folder with node_modules.
import { createRequire } from "node:module";
import { mkdirSync, readFileSync } from "node:fs";
import { strict as assert } from "node:assert";
import path from "node:path";

const [base, shots, only] = process.argv.slice(2);
const require = createRequire(path.join(process.env.TOWPATH_BROWSER_MODULES, "x.js"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
mkdirSync(shots, { recursive: true });

const TOKEN = "t0ken";
const bearer = { authorization: `Bearer ${TOKEN}` };
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"],
});

// A context that fails the test on errors of the page, dialogs, and requests to other hosts.
async function visitor(options = {}) {
  const { mayFail = false, ...rest } = options;
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, locale: "en-GB", timezoneId: "Europe/Berlin", ...rest });
  context.setDefaultTimeout(15000);
  const faults = [];
  context.on("dialog", (dialog) => { faults.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  // What the policy refuses never comes here.
  await context.route((url) => !url.href.startsWith(base), (route) => { faults.push(`request to ${route.request().url()}`); return route.abort(); });
  context.on("weberror", (error) => faults.push(`error: ${error.error()}`));
  context.on("console", (message) => {
    // A frame without scripts says so in the console; that is what it is for.
    const expected = /Blocked script execution|Failed to load resource/.test(message.text());
    if (message.type() === "error" && !expected && !mayFail) faults.push(`console: ${message.text()}`);
  });
  const page = await context.newPage();
  return { context, page, faults, close: async () => { await context.close(); assert.deepEqual(faults, []); } };
}

async function accessible(page, where) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"], runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
  const told = found.violations.map((one) => `${one.id}: ${one.help}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
  assert.deepEqual(told, [], where);
}

// Clicks on what leads to another page, and waits for it.
async function follow(page, selector) {
  await Promise.all([page.waitForNavigation(), page.locator(selector).first().click()]);
}

async function signIn(page) {
  await page.goto(`${base}/sign-in`);
  await page.fill("#token", TOKEN);
  await follow(page, "main button[type=submit]");
}

async function put(id, body, type = "text/plain", query = "", feed = "notes") {
  const response = await fetch(`${base}/feeds/${feed}/items/${encodeURIComponent(id)}${query}`, { method: "PUT", headers: { ...bearer, "content-type": type }, body });
  assert.ok(response.ok, `${response.status} ${await response.text()}`);
}

const VIEWS = {
  home: "/", items: "/feeds/kev", search: "/feeds/kev?q=microsoft", changes: "/feeds/notes/changes", history: "/feeds/kev/history",
  source: "/feeds/kev/source", failing: "/feeds/broken/source", follow: "/feeds/kev/follow", subscribers: "/feeds/kev/subscribers",
  live: "/feeds/notes/live", item: "/feeds/notes/items/text", json: "/feeds/notes/items/json", html: "/feeds/notes/items/html", bytes: "/feeds/notes/items/bytes",
  removed: "/feeds/notes/items/gone", signin: "/sign-in", check: "/check", filter: "/feeds/boats", publish: "/feeds/notes/publish", sinks: "/sinks", absent: "/feeds/absent",
  byday: "/feeds/kev/history?unit=day", unknown: "/no/such/address", mirror: "/feeds/mirror/source",
  past: "/feeds/notes?at=1999-01-01", picture: "/feeds/notes/items/picture", difference: "/feeds/notes/items/text?version=2&with=1",
};

const tests = {
  async every_view_in_both_themes_and_widths() {
    const faults = [];
    const looks = [["light", 360], ["light", 1280], ["dark", 360], ["dark", 1280]];
    // Side by side: most of the time goes by in waiting.
    await Promise.all(looks.map(async ([colorScheme, width]) => {
      const guest = await visitor({ colorScheme, viewport: { width, height: 900 } });
      for (const [name, where] of Object.entries(VIEWS)) {
        const response = await guest.page.goto(base + where);
        assert.ok([200, 404, 410].includes(response.status()), `${where}: ${response.status()}`);
        assert.equal(await guest.page.locator("h1").count(), 1, where);
        const wide = await guest.page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        assert.ok(wide <= 0, `${where} is ${wide} px too wide at ${width}`);
        await guest.page.screenshot({ path: `${shots}/${name}-${colorScheme}-${width}.png` });
        // Contrasts depend on the theme, targets on the width: two runs see both.
        if ((colorScheme === "light") === (width === 1280)) await accessible(guest.page, `${where} ${colorScheme} ${width}`).catch((fault) => faults.push(fault.message));
      }
      await guest.close();
    }));
    assert.equal(faults.join("\n"), "");
  },

  async long_lines_of_text_wrap() {
    const guest = await visitor({ viewport: { width: 360, height: 900 } });
    await guest.page.goto(`${base}/feeds/notes/items/prose`);
    const wide = await guest.page.locator("main pre").first().evaluate((text) => text.scrollWidth - text.clientWidth);
    assert.ok(wide <= 0, `the text is ${wide} px too wide`);
    await guest.page.screenshot({ path: `${shots}/prose.png` });
    await guest.close();
  },

  // Signed in, pages have forms that strangers do not see.
  async every_view_signed_in() {
    const faults = [];
    await Promise.all([["light", 360], ["dark", 1280]].map(async ([colorScheme, width]) => {
      const guest = await visitor({ colorScheme, viewport: { width, height: 900 } });
      await signIn(guest.page);
      for (const where of ["/", "/feeds/notes/follow", "/feeds/notes/publish", "/feeds/notes/items/text", "/feeds/kev/source", "/feeds/mirror/source", "/feeds/moving/subscribers", "/sinks", "/sinks/copies", "/sinks/refuses", "/check"]) {
        await guest.page.goto(base + where);
        const wide = await guest.page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        assert.ok(wide <= 0, `${where} is ${wide} px too wide at ${width}`);
        await accessible(guest.page, `${where} ${colorScheme} ${width}, signed in`).catch((fault) => faults.push(fault.message));
      }
      await guest.page.screenshot({ path: `${shots}/signed-in-${colorScheme}-${width}.png` });
      await guest.close();
    }));
    assert.equal(faults.join("\n"), "");
  },

  async very_wide_and_printed() {
    const guest = await visitor({ viewport: { width: 3840, height: 2160 } });
    await guest.page.goto(base);
    await guest.page.screenshot({ path: `${shots}/home-4k.png` });
    const share = await guest.page.evaluate(() => document.querySelector("main").clientWidth / document.documentElement.clientWidth);
    assert.ok(share > 0.6, `the content takes ${share} of a very wide screen`);
    await guest.page.emulateMedia({ media: "print" });
    assert.equal(await guest.page.locator("form.filter").isVisible(), false);
    assert.equal(await guest.page.locator("table.feeds").isVisible(), true);
    await guest.page.goto(`${base}/feeds/notes/items/text?version=2&with=1`);
    assert.equal(await guest.page.locator("table.diff").first().isVisible(), true);
    assert.equal(await guest.page.locator("nav.tabs, footer").first().isVisible(), false);
    await guest.close();
  },

  async without_javascript() {
    const guest = await visitor({ javaScriptEnabled: false });
    for (const where of Object.values(VIEWS)) {
      await guest.page.goto(base + where);
      assert.ok((await guest.page.locator("main").innerText()).length > 30, where);
    }
    await guest.page.goto(`${base}/feeds/kev`);
    await guest.page.fill("#q", "zimbra cross-site");
    await follow(guest.page, "main form.filter button");
    assert.ok((await guest.page.locator(".items li").count()) >= 1);
    assert.ok((await guest.page.locator(".items li h2").first().innerText()).includes("Zimbra"));
    await signIn(guest.page);
    await guest.page.goto(`${base}/feeds/notes/publish`);
    await guest.page.fill("#id", "by hand");
    await guest.page.fill("#title", "Written without a script");
    await follow(guest.page, "button[value=publish]");
    assert.equal(await guest.page.locator("h1").innerText(), "Written without a script");
    await guest.close();
  },

  async a_blocked_script_or_style_breaks_nothing() {
    const guest = await visitor();
    await guest.context.route("**/assets/**", (route) => route.abort());
    for (const where of Object.values(VIEWS)) {
      await guest.page.goto(base + where);
      assert.ok((await guest.page.locator("main").innerText()).length > 30, where);
    }
    await guest.page.goto(`${base}/feeds/kev/history`);
    assert.ok((await guest.page.locator("svg.chart a").count()) > 0);
    await guest.close();
  },

  async forms_for_administrators() {
    const guest = await visitor();
    await signIn(guest.page);
    await guest.page.goto(`${base}/feeds/notes/follow`);
    await follow(guest.page, "button:text('Make a snapshot')");
    assert.ok((await guest.page.locator("[role=status]").innerText()).includes("snapshot is made"));
    assert.equal((await fetch(`${base}/feeds/notes/snapshots/latest`)).status, 200);
    await guest.page.goto(`${base}/feeds/mirror/source`);
    await follow(guest.page, "button:text('Pause')");
    assert.equal(await guest.page.locator(".title .state").innerText(), "paused");
    await follow(guest.page, "button:text('Resume')");
    assert.notEqual(await guest.page.locator(".title .state").innerText(), "paused");
    await put("refused", "x", "text/plain", "?title=Refused", "moving");
    await guest.page.goto(`${base}/sinks/refuses`);
    const letters = guest.page.locator("input[name=letter]");
    for (let turn = 0; (await letters.count()) === 0; turn++) { assert.ok(turn < 100, "a letter comes"); await guest.page.waitForTimeout(200); await guest.page.reload(); }
    await guest.page.locator("summary:text('The change')").first().click();
    assert.ok((await guest.page.locator("li pre").first().innerText()).includes("refused"));
    await accessible(guest.page, "dead letters");
    await guest.page.screenshot({ path: `${shots}/dead-letters.png` });
    const before = await letters.count();
    await follow(guest.page, "button[value=drop-letter]");
    assert.equal(await letters.count(), before - 1);
    await guest.close();
  },

  async refusals_are_pages() {
    const guest = await visitor();
    for (const [where, status, words] of [["/no/such/address", 404, "Not found"], ["/feeds/notes/items/gone", 410, "Soon gone"], ["/feeds/notes/replication/pages/99", 404, "Notes <of>"]]) {
      const response = await guest.page.goto(base + where);
      assert.equal(response.status(), status, where);
      assert.ok((await guest.page.locator("main").innerText()).includes(words), where);
      await accessible(guest.page, where);
    }
    // A form that is sent to an address without one.
    await guest.page.goto(`${base}/sign-in`);
    await guest.page.locator("main form").evaluate((form) => { form.action = "/feeds/notes/changes"; });
    await guest.page.fill("#token", "x");
    const [refused] = await Promise.all([guest.page.waitForNavigation(), guest.page.click("main button[type=submit]")]);
    assert.equal(refused.status(), 405);
    await follow(guest.page, "main >> text=Notes <of>");
    assert.equal(guest.page.url(), `${base}/feeds/notes`);
    // A search of a megabyte ends at the limit of a request's head: a page says so, and the server goes on.
    const long = await guest.page.goto(`${base}/feeds/notes?q=${"x".repeat(1 << 20)}`);
    assert.equal(long.status(), 431);
    assert.ok((await guest.page.locator("main").innerText()).includes("longer than 32 KiB"));
    await accessible(guest.page, "a long head");
    assert.equal((await guest.page.goto(`${base}/feeds/notes?q=${"x".repeat(20000)}`)).status(), 200);
    await guest.close();
  },

  async the_history_is_zoomed() {
    const guest = await visitor();
    await guest.page.goto(`${base}/feeds/kev/history?unit=month`);
    assert.ok((await guest.page.locator("h2").first().innerText()).includes("by month"));
    await Promise.all([guest.page.waitForNavigation(), guest.page.locator("svg.chart a").first().click()]);
    assert.ok(guest.page.url().includes("from="));
    const zoomed = await guest.page.locator("h2").first().innerText();
    assert.ok(zoomed.includes("by day"), zoomed);
    await guest.page.click("summary");
    assert.ok((await guest.page.locator("table tbody tr").count()) >= 1);
    await follow(guest.page, "nav >> text=Earlier");
    assert.ok((await guest.page.locator("h2").first().innerText()).startsWith("0 changes"));
    await follow(guest.page, "nav >> text=Whole log");
    await follow(guest.page, "nav >> text=By hour");
    assert.equal(await guest.page.locator("a[aria-current=true]").innerText(), "By hour");
    await guest.close();
  },

  async signed_in_and_out() {
    const guest = await visitor();
    const secret = await guest.page.goto(`${base}/feeds/secret`);
    const hidden = (await guest.page.locator("main").innerText()).replaceAll("secret", "NAME");
    const absent = await guest.page.goto(`${base}/feeds/absent`);
    assert.deepEqual([secret.status(), absent.status()], [404, 404]);
    assert.equal(hidden, (await guest.page.locator("main").innerText()).replaceAll("absent", "NAME"), "a hidden feed looks like an absent one");
    assert.deepEqual(Object.keys(secret.headers()).sort(), Object.keys(absent.headers()).sort());
    await guest.page.goto(base);
    assert.equal(await guest.page.locator("text=A private feed").count(), 0);
    await guest.page.goto(`${base}/feeds/secret/history?unit=x`);
    await follow(guest.page, "main >> text=Sign in");
    await guest.page.fill("#token", "wrong");
    await follow(guest.page, "main button[type=submit]");
    assert.ok((await guest.page.locator("[role=alert]").innerText()).includes("not known"));
    await accessible(guest.page, "refused sign-in");
    await guest.page.fill("#token", TOKEN);
    await follow(guest.page, "main button[type=submit]");
    assert.equal(guest.page.url(), `${base}/feeds/secret/history?unit=x`, "it leads back to where the reader was");
    const [cookie] = await guest.context.cookies();
    assert.ok(cookie.httpOnly && cookie.sameSite === "Strict" && !cookie.value.includes(TOKEN));
    await guest.page.goto(base);
    assert.equal(await guest.page.locator("text=A private feed").count(), 1);
    // The session's token is for reading; without the form secret nothing is changed with it.
    const stolen = await guest.page.evaluate(async () => (await fetch("/feeds/notes/items/x", { method: "PUT", body: "x" })).status);
    assert.ok(stolen === 401 || stolen === 403, `${stolen}`);
    const forged = await guest.page.evaluate(async () => (await fetch("/feeds/notes/delete", { method: "POST", headers: { "content-type": "application/x-www-form-urlencoded" }, body: "id=text&form_secret=0" })).status);
    assert.equal(forged, 403);
    await guest.page.screenshot({ path: `${shots}/home-signed-in.png` });
    await follow(guest.page, "text=Sign out");
    assert.equal(await guest.page.locator("text=A private feed").count(), 0);
    await guest.close();
  },

  async publish_preview_edit_and_delete() {
    const guest = await visitor();
    await signIn(guest.page);
    await guest.page.goto(`${base}/feeds/notes/publish`);
    await guest.page.fill("#id", "form/ä 1");
    await guest.page.fill("#title", "From a form");
    await guest.page.fill("#tags", "one\ntwo");
    await guest.page.fill("#item-content", "first line\nsecond line");
    await accessible(guest.page, "the form");
    await follow(guest.page, "button[value=preview]");
    assert.ok((await guest.page.locator("[aria-label=Preview]").innerText()).includes("second line"));
    await guest.page.screenshot({ path: `${shots}/preview.png` });
    await follow(guest.page, "button[value=publish]");
    assert.equal(await guest.page.locator("h1").innerText(), "From a form");
    assert.ok((await guest.page.locator("main pre").first().innerText()).includes("second line"));
    await follow(guest.page, "main >> text=Edit");
    await guest.page.fill("#item-content", "first line\nanother line");
    // Somebody else is quicker.
    await put("form/ä 1", "theirs, first");
    await put("form/ä 1", "theirs");
    await follow(guest.page, "button[value=publish]");
    assert.ok((await guest.page.locator("[role=alert]").innerText()).includes("Somebody else"));
    await guest.page.goto(`${base}/feeds/notes/items/${encodeURIComponent("form/ä 1")}`);
    // Any two of three versions.
    await guest.page.selectOption("#with", { index: 2 });
    await guest.page.selectOption("#version", { index: 0 });
    await follow(guest.page, "button:text('Compare')");
    assert.ok((await guest.page.locator("table.diff").last().innerText()).includes("theirs"));
    await guest.page.goBack();
    await follow(guest.page, "a:text('compare')");
    assert.ok((await guest.page.locator("table.diff").first().innerText()).length > 0);
    await accessible(guest.page, "a comparison");
    await guest.page.screenshot({ path: `${shots}/difference.png` });
    await follow(guest.page, "text=Side by side");
    await accessible(guest.page, "side by side");
    await guest.page.goto(`${base}/feeds/notes/items/${encodeURIComponent("form/ä 1")}`);
    guest.context.removeAllListeners("dialog");
    guest.context.on("dialog", (dialog) => dialog.accept());
    await follow(guest.page, "button.danger");
    await guest.page.waitForSelector("text=What follows is its last version");
    assert.ok((await guest.page.locator("main pre").first().innerText()).includes("theirs"));
    await guest.close();
  },

  async sources_are_controlled() {
    const guest = await visitor();
    await signIn(guest.page);
    await guest.page.goto(`${base}/feeds/slow/source`);
    const polls = () => guest.page.locator("caption:has-text('Last polls') + thead + tbody tr").count();
    const before = await polls();
    await follow(guest.page, "text=Poll now");
    for (let turn = 0; (await polls()) <= before; turn++) { assert.ok(turn < 50, "it is polled"); await guest.page.waitForTimeout(200); await guest.page.reload(); }
    await follow(guest.page, "button:text('Pause')");
    assert.equal(await guest.page.locator(".title .state").innerText(), "paused");
    await follow(guest.page, "button:text('Resume')");
    assert.equal(await guest.page.locator(".title .state").innerText(), "ok");
    await guest.page.goto(`${base}/sinks`);
    await accessible(guest.page, "sinks");
    await guest.page.screenshot({ path: `${shots}/sinks-signed-in.png` });
    await guest.page.goto(`${base}/check`);
    await guest.page.fill("#url", `${base}/feeds/notes`);
    await follow(guest.page, "main button[type=submit]");
    assert.ok((await guest.page.locator("[role=alert]").innerText()).length > 0, "a loopback address is refused");
    await guest.close();
  },

  async hostile_items_do_nothing() {
    const script = "<script>alert(1);window.top.pwned=1</script><img src=x onerror=alert(2)><a href='javascript:alert(3)' id=bad>x</a><meta http-equiv=refresh content='0;url=https://evil.example/'><iframe src='https://evil.example/'></iframe><form action='https://evil.example/'><button>x</button></form><base href='https://evil.example/'><link rel=stylesheet href='https://evil.example/x.css'>";
    const evil = {
      "evil-html": [script, "text/html"],
      "evil-svg": [`<svg xmlns="http://www.w3.org/2000/svg" onload="alert(4)" width="40" height="40"><script>alert(5)</script><image href="https://evil.example/x.png"/></svg>`, "image/svg+xml"],
      "evil-text": [script, "text/plain"],
      "evil-json": [JSON.stringify({ [script]: [script, "\u202e"] }), "application/json"],
      "evil-xml": [`<?xml version="1.0"?><x xmlns:h="http://www.w3.org/1999/xhtml"><h:script>alert(6)</h:script></x>`, "application/xml"],
      "\u202egnp.evil\"><script>alert(7)</script>": ["x", "text/plain"],
    };
    for (const [id, [body, type]] of Object.entries(evil)) {
      const query = new URLSearchParams({ title: `\u202e${script}\u2066`, summary: script, url: "javascript:alert(8)", urls: "any", author: script, tag: `"><script>alert(9)</script>` });
      await put(id, body, type, `?${query}`, "hostile");
    }
    const title = "T".repeat(10 << 20);
    const long = await fetch(`${base}/feeds/hostile/items`, { method: "POST", headers: bearer, body: JSON.stringify({ id: "long", item: { title, summary: title } }) });
    assert.ok(long.ok, await long.text());
    const guest = await visitor();
    await signIn(guest.page);
    for (const where of ["", "/changes", "/history", "/live", "?q=script", `?tag=${encodeURIComponent(`"><script>alert(9)</script>`)}`]) {
      const response = await guest.page.goto(`${base}/feeds/hostile${where}`);
      assert.ok((await response.body()).length < 400000, `${where} is small`);
      await guest.page.waitForTimeout(100);
    }
    // Side by side: most of the time is spent on waiting for what must not happen.
    await Promise.all([...Object.keys(evil), "long"].map(async (id) => {
      const page = await guest.context.newPage();
      const item = `${base}/feeds/hostile/items/${encodeURIComponent(id)}`;
      await page.goto(item);
      await page.waitForTimeout(150);
      assert.equal(await page.locator("main a[href^='javascript']").count(), 0);
      assert.equal(page.url().split("?")[0].toLowerCase(), item.toLowerCase());
      // Opened by itself, content is in the same sandbox.
      for (const view of ["frame", "image", "summary"]) {
        await page.goto(`${item}?view=${view}`, { waitUntil: "commit" }).catch(() => {});
        await page.waitForTimeout(50);
        assert.ok(!page.url().includes("evil.example"), "nothing leads away");
      }
      assert.equal(await page.evaluate(() => window.pwned), undefined);
      await page.close();
    }));
    assert.equal(await guest.page.evaluate(() => window.pwned), undefined);
    await guest.page.goto(`${base}/feeds/hostile/items/evil-html`);
    await guest.page.screenshot({ path: `${shots}/hostile.png` });
    // The browser tells in its console what the policy of the content refused.
    const isRefusal = (fault) => fault.startsWith("console:") && /Content Security Policy|Framing|sandbox/i.test(fault);
    guest.faults.splice(0, guest.faults.length, ...guest.faults.filter((fault) => !isRefusal(fault)));
    await guest.close();
  },

  async live_updates() {
    const guest = await visitor();
    await guest.page.goto(base);
    const count = guest.page.locator("tr", { has: guest.page.locator("text=A feed that moves") }).locator("td").nth(1);
    const before = Number(await count.innerText());
    const tail = await guest.context.newPage();
    await tail.goto(`${base}/feeds/moving/live`);
    await tail.waitForSelector("#tail-status:has-text('Connected')");
    await put("live-1", "x", "text/plain", "?title=Alive", "moving");
    await tail.waitForSelector("#tail >> text=Alive");
    await tail.click("#tail-pause");
    await put("live-2", "x", "text/plain", "?title=Held", "moving");
    await tail.waitForSelector("#tail-status:has-text('held back')");
    assert.equal(await tail.locator("#tail >> text=Held").count(), 0);
    await tail.click("#tail-pause");
    await tail.waitForSelector("#tail >> text=Held");
    await tail.fill("#tail-filter", "alive");
    assert.equal(await tail.locator("#tail li:visible").count(), 1);
    await accessible(tail, "the tail");
    await tail.screenshot({ path: `${shots}/tail.png` });
    await tail.goto(`${base}/live`);
    await tail.waitForSelector("#tail-status:has-text('Connected')");
    await put("live-3", "x", "text/plain", "?title=Everywhere", "moving");
    await tail.waitForSelector("#tail li:has-text('moving') >> text=Everywhere");
    await tail.waitForTimeout(300);
    // A feed that is removed ends its tail, which says why.
    const leaving = `${base}/feeds/leaving`;
    assert.equal((await fetch(leaving, { method: "PUT", headers: bearer })).status, 201);
    const ending = await guest.context.newPage();
    await ending.goto(`${leaving}/live`);
    await ending.waitForSelector("#tail-status:has-text('Connected')");
    assert.ok((await fetch(`${leaving}?reason=moved+elsewhere`, { method: "DELETE", headers: bearer })).ok);
    await ending.waitForSelector("#tail-status:has-text('Ended'):has-text('moved elsewhere')");
    await guest.page.bringToFront();
    await guest.page.waitForFunction((n) => [...document.querySelectorAll("tr")].some((row) => row.textContent.includes("A feed that moves") && row.querySelectorAll("td")[1].textContent === String(n)), before + 3);
    await guest.close();
  },

  async deep_links_and_the_way_back() {
    const guest = await visitor();
    const { page } = guest;
    await page.goto(`${base}/feeds/kev`);
    const first = await page.locator(".items h2").first().innerText();
    await follow(page, "a[rel=next]");
    const older = await page.locator(".items h2").first().innerText();
    assert.notEqual(first, older);
    await follow(page, ".items h2 a");
    await page.goBack();
    assert.equal(await page.locator(".items h2").first().innerText(), older);
    await page.goBack();
    assert.equal(await page.locator(".items h2").first().innerText(), first);
    await page.goto(`${base}/feeds/notes?change=1`);
    assert.ok(page.url().includes("at="), page.url());
    assert.ok((await page.locator(".note.past").innerText()).includes("After change 1"));
    const then = await page.locator(".items").innerText();
    await put("later", "x");
    await page.reload();
    assert.equal(await page.locator(".items").innerText(), then, "a link to the past stays valid");
    await follow(page, ".items h2 a");
    assert.ok(await page.locator(".note.past").isVisible());
    await page.goto(`${base}/feeds/notes?at=1999-01-01`);
    assert.ok((await page.locator("main").innerText()).includes("Before the beginning"));
    for (const bad of ["/feeds/notes?at=yesterday", "/feeds/notes?before=x", "/feeds/notes/items/text?version=999999", "/feeds/notes/items/never", "/feeds/kev/history?from=2026-02-01&to=2026-01-01"]) {
      const response = await page.goto(base + bad);
      assert.ok(response.status() >= 400 && response.status() < 500, bad);
      assert.equal(await page.locator("main a.button:has-text('All feeds')").count(), 1, bad);
    }
    const long = await page.goto(`${base}/feeds/notes?q=${"x".repeat(6000)}`);
    assert.equal(long.status(), 200);
    assert.ok((await page.locator("main").innerText()).includes("was cut"));
    await guest.close();
  },

  async times_are_in_the_readers_zone() {
    const guest = await visitor({ timezoneId: "Asia/Tokyo" });
    await guest.page.goto(`${base}/feeds/notes/items/text`);
    const time = guest.page.locator("main dl time").last();
    const shown = new Date(await time.getAttribute("datetime")).toLocaleTimeString("en-GB", { timeZone: "Asia/Tokyo" });
    assert.ok((await time.innerText()).includes(shown), `${await time.innerText()} has ${shown}`);
    await guest.close();
  },

  async the_keyboard_suffices() {
    const guest = await visitor();
    await guest.page.goto(base);
    await guest.page.keyboard.press("Tab");
    assert.equal(await guest.page.evaluate(() => document.activeElement.textContent), "To the content");
    await guest.page.goto(`${base}/feeds/kev/history`);
    await guest.page.locator("svg.chart a").first().focus();
    await guest.page.keyboard.press("Enter");
    await guest.page.waitForURL(/from=|at=/);
    // From the first element to the last: each shows that it has the focus, and none keeps it.
    for (const where of ["/", "/feeds/notes/items/text?version=2&with=1", "/feeds/notes/follow"]) {
      await guest.page.goto(base + where);
      let isOver = false;
      for (let stop = 0; stop < 200 && !isOver; stop++) {
        await guest.page.keyboard.press("Tab");
        const seen = await guest.page.evaluate(() => {
          const element = document.activeElement;
          if (element === document.body) return null;
          const style = getComputedStyle(element);
          return { html: element.outerHTML.slice(0, 100), outline: style.outlineStyle, isLast: element.matches("footer a:last-of-type") };
        });
        if (seen) assert.notEqual(seen.outline, "none", `${where}: ${seen.html}`);
        isOver = !seen || seen.isLast;
      }
      assert.ok(isOver, `${where}: the focus comes to the end`);
    }
    await guest.close();
  },
};

let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  if (only && !name.includes(only)) continue;
  const start = Date.now();
  try {
    await test();
    console.log(`ok    ${name} (${Date.now() - start} ms)`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL  ${name}\n${error.stack ?? error}`);
  }
}
await browser.close();
process.exit(failed ? 1 : 0);
