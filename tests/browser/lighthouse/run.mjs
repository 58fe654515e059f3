// Lighthouse on pages of a server. Arguments: its address, and paths. Fails where performance or accessibility is below 95.
// The environment has TOWPATH_BROWSER_MODULES, the folder with node_modules.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import path from "node:path";

const LEAST = 95;
const [base, ...paths] = process.argv.slice(2);
const require = createRequire(path.join(process.env.TOWPATH_BROWSER_MODULES, "x.js"));
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { default: lighthouse } = await load("lighthouse");
const { launch } = await load("chrome-launcher");

const chrome = await launch({
  chromePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  chromeFlags: ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic"],
});
let failed = 0;
for (const where of paths) {
  const options = { port: chrome.port, output: "json", logLevel: "error", onlyCategories: ["performance", "accessibility", "best-practices"] };
  const { lhr } = await lighthouse(base + where, options);
  const scores = Object.values(lhr.categories).map(({ title, score }) => [title, Math.round(100 * score)]);
  const isEnough = scores.every(([title, score]) => score >= LEAST || !/Performance|Accessibility/.test(title));
  failed += isEnough ? 0 : 1;
  console.log(`${isEnough ? "ok  " : "FAIL"} ${where.padEnd(48)} ${scores.map(([title, score]) => `${title} ${score}`).join(", ")} (goal ${LEAST})`);
  for (const audit of Object.values(lhr.audits)) {
    if (audit.score !== null && audit.score < 0.9 && audit.scoreDisplayMode === "binary") console.log(`       ${audit.id}: ${audit.title}`);
  }
}
chrome.kill();
process.exit(failed ? 1 : 0);
