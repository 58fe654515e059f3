// A running towpath, and servers that do not behave. The environment has TOWPATH_PROGRAM.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import { tmpdir } from "node:os";
import path from "node:path";
import { after } from "node:test";

const PROGRAM = process.env.TOWPATH_PROGRAM ?? "towpath";

/** What the end of the file's tests ends. A hook within a test would end it with that test. */
const endings = [];
after(async () => { for (const end of endings.reverse()) await end(); });

/** A folder that goes with the tests of a file. */
export function folder() {
  const made = mkdtempSync(path.join(tmpdir(), "towpath-js-"));
  endings.push(() => rmSync(made, { recursive: true, force: true }));
  return made;
}

/** Starts a server; `port` 0 is a free one. */
export async function towpath({ config = '[[feed]]\nid = "news"\n', at = folder(), port = 0 } = {}) {
  writeFileSync(path.join(at, "towpath.toml"), config);
  const args = ["serve", "--listen", `127.0.0.1:${port}`];
  const child = spawn(PROGRAM, args, { cwd: at, stdio: ["ignore", "pipe", "ignore"] });
  const ended = once(child, "exit");
  let printed = "";
  for await (const chunk of child.stdout) {
    printed += chunk;
    if (/http:\/\/\S+\/\n/.test(printed)) break;
  }
  const base = /http:\/\/[\d.]+:\d+/.exec(printed)?.[0];
  if (!base) throw new Error(`towpath serve printed ${printed}`);
  const stop = async (signal = "SIGTERM") => {
    child.kill(signal);
    await ended;
  };
  endings.push(() => child.exitCode === null && child.signalCode === null && stop("SIGKILL"));
  return { base, feed: `${base}/feeds/news`, port: Number(new URL(base).port), at, stop };
}

let shared;
let taken = 0;

/** A feed of its own on a server that the tests of a file share: to start one takes a second. */
export async function fresh() {
  shared ??= towpath({ config: Array.from({ length: 12 }, (_, at) => `[[feed]]\nid = "feed${at}"\n`).join("") });
  const { base } = await shared;
  const id = `feed${taken++}`;
  return { base, id, feed: `${base}/feeds/${id}` };
}

/** Runs the command line. */
export async function run(...args) {
  const child = spawn(PROGRAM, args, { stdio: ["ignore", "pipe", "inherit"] });
  let printed = "";
  child.stdout.on("data", (chunk) => { printed += chunk; });
  await once(child, "close");
  return printed;
}

/** Starts an HTTP server of the test. */
export async function server(handle, port = 0) {
  const made = http.createServer(handle);
  made.listen(port, "127.0.0.1");
  await once(made, "listening");
  const stop = async () => {
    made.closeAllConnections();
    made.close();
    await once(made, "close");
  };
  endings.push(() => made.listening && stop());
  return { base: `http://127.0.0.1:${made.address().port}`, port: made.address().port, stop };
}

/** A page of a Smart Feed that is not towpath's. */
export function page(ids, cursor) {
  return JSON.stringify({ count: ids.length, totalItems: 9, url: "x", last_cursor: cursor, items: ids.map((id) => ({ id, displayName: `Title ${id}` })) });
}

export function json(response, body, status = 200, headers = {}) {
  response.writeHead(status, { "content-type": "application/json", ...headers }).end(body);
}

/** The first changes of a follow. */
export async function take(changes, count) {
  const taken = [];
  if (count === 0) return taken;
  for await (const change of changes) {
    taken.push(change);
    if (taken.length === count) break;
  }
  return taken;
}

/** A state in memory. */
export function memory(saved) {
  return { saved, load() { return this.saved; }, save(state) { this.saved = JSON.parse(JSON.stringify(state)); } };
}

/** Warnings, kept. */
export function quiet() {
  const warnings = [];
  return { warnings, warn: (text) => warnings.push(text) };
}

export const ids = (changes) => changes.map((change) => `${change.op} ${change.id}`);
