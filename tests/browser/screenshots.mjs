// Pictures for README.md and docs/, of a server with the quickstart's data. Arguments: its address, and a folder.
// The environment has TOWPATH_BROWSER_MODULES, the folder with node_modules.
import { createRequire } from "node:module";
import path from "node:path";

const [base, folder] = process.argv.slice(2);
const require = createRequire(path.join(process.env.TOWPATH_BROWSER_MODULES, "x.js"));
const { chromium } = require("playwright-core");

async function publish(feed, lines) {
  const body = lines.map((line) => JSON.stringify(line)).join("\n");
  const response = await fetch(`${base}/feeds/${feed}/items`, { method: "POST", body });
  if (!response.ok) throw new Error(`${response.status} ${await response.text()}`);
}

const log = (title, content) => ({ id: "boats", content_type: "text/plain", content, item: { title, tags: ["boats", "canal"] } });
await publish("notes", [log("Ten boats at the lock", "Ten boats went by today.\nThe first was blue.\nThe lock closes at eight.\n")]);
await publish("notes", [log("Eleven boats at the lock", "Eleven boats went by today.\nThe first was blue, the last one red.\nThe lock closes at eight.\nTomorrow it opens at six.\n")]);
await publish("notes", [{ id: "water", item: { title: "The water is high", summary: "Two fingers below the towpath." } }, { id: "closed", item: { title: "The lock is closed" } }]);
await publish("notes", [{ id: "closed", op: "delete" }]);

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-quic"] });
for (const colorScheme of ["light", "dark"]) {
  const context = await browser.newContext({ colorScheme, viewport: { width: 1200, height: 720 }, locale: "en-GB" });
  const page = await context.newPage();
  for (const [name, where] of [["items", "/feeds/kev"], ["difference", "/feeds/notes/items/boats?version=2&with=1"]]) {
    await page.goto(base + where);
    await page.screenshot({ path: path.join(folder, `page-${name}-${colorScheme}.png`) });
  }
  await context.close();
}
await browser.close();
