// The page of docs/live-updates.md in a real browser, behind nginx. Argument: nginx's address. Each step waits for a line on
// standard input and answers with a line, so that the test can start and kill the server in between.
// The environment has TOWPATH_BROWSER_MODULES, the folder with node_modules.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { strict as assert } from "node:assert";
import path from "node:path";

const [base] = process.argv.slice(2);
const require = createRequire(path.join(process.env.TOWPATH_BROWSER_MODULES, "x.js"));
const { chromium } = require("playwright-core");

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"],
});
const page = await browser.newPage();
page.setDefaultTimeout(60000);

// The titles in the list, once they are these. The list shows the newest first.
async function shows(...titles) {
  await page.waitForFunction(
    (wanted) => JSON.stringify([...document.querySelectorAll("#list li")].map((entry) => entry.textContent)) === wanted,
    JSON.stringify(titles),
  );
}

// Opens an EventSource in the page; tells its state after its first message, or after its first error.
async function stream(url) {
  return page.evaluate((url) => new Promise((resolve) => {
    const source = new EventSource(url);
    const close = (outcome) => { const state = source.readyState; source.close(); resolve({ outcome, state }); };
    source.addEventListener("put", (event) => close(JSON.parse(event.data).id));
    source.onerror = () => close("error");
  }), url);
}

const steps = {
  async open() { await page.goto(`${base}/live.html`); },
  async first() { await shows("Ten boats"); },
  async second() { await shows("A sail", "Ten boats"); },
  async changed() { await shows("Eleven boats", "A sail"); },
  async deleted() { await shows("Eleven boats"); },
  // Without the rule of the page, a 502 closes the stream for good; with it, the browser comes back.
  async refused() { assert.deepEqual(await stream("/bare/feeds/news/events"), { outcome: "error", state: 2 }); },
  async kept() { assert.deepEqual(await stream("/feeds/news/events"), { outcome: "error", state: 0 }); },
  async link(url) { assert.deepEqual(await stream(`${url}&as=line&last=1`), { outcome: "secret-1", state: 1 }); },
  async expired(url) { assert.deepEqual(await stream(`${url}&as=line&last=1`), { outcome: "error", state: 2 }); },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [name, argument] = line.split(" ");
  try {
    await steps[name](argument);
    console.log(`done ${name}`);
  } catch (error) {
    console.log(`failed ${name}: ${error.message.replaceAll("\n", " ")}; the list: ${await page.locator("#list").textContent().catch(() => "?")}`);
    break;
  }
}
await browser.close();
