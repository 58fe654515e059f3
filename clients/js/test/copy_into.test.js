// Copies into destinations of the command line, by the program of the environment.
import assert from "node:assert/strict";
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { spawn } from "node:child_process";
import { once } from "node:events";
import path from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Client, TowpathError, UsageError } from "towpath";
import { copyInto } from "towpath/node";
import { folder, fresh, quiet, server } from "./helpers.js";

const program = process.env.TOWPATH_PROGRAM;

/** The lines that `tee` has written. */
const lines = (file) => (existsSync(file) ? readFileSync(file, "utf8").split("\n").slice(0, -1).map((line) => JSON.parse(line).id) : []);

async function until(isDone) {
  for (let waited = 0; !isDone(); waited++) {
    assert.ok(waited < 1500, "it takes too long");
    await sleep(20);
  }
}

/** A feed with items. */
async function published(...ids) {
  const { base, id, feed } = await fresh();
  const client = new Client(base).feed(id);
  await client.batch(ids.map((id) => ({ id })));
  return { client, feed };
}

test("a copy into a folder and into a program goes on where it was", async () => {
  const at = folder();
  const { client, feed } = await published("a", "b");
  const out = path.join(at, "out");
  const options = { once: true, program, state: path.join(at, "state") };
  await copyInto(feed, `exec:tee -a ${out}`, options);
  await client.put("c", {});
  await copyInto(new URL(feed), `exec:tee -a ${out}`, options);
  assert.deepEqual(lines(out), ["a", "b", "c"]);
  await copyInto(feed, `dir:${path.join(at, "items")}`, { once: true, program });
  const files = readdirSync(path.join(at, "items"), { recursive: true }).filter((name) => name.endsWith(".json") && !name.includes(".towpath"));
  assert.equal(files.length, 3);
});

test("a signal ends a copy, and what it had is written", async () => {
  const { client, feed } = await published("a");
  const out = path.join(folder(), "out");
  const aborter = new AbortController();
  const log = quiet();
  const copy = copyInto(feed, `exec:tee -a ${out}`, { program, log, signal: aborter.signal });
  await until(() => lines(out).length === 1);
  await client.put("b", {});
  await until(() => lines(out).length === 2);
  aborter.abort(new Error("enough"));
  await assert.rejects(copy, /enough/);
  assert.match(log.warnings.join("\n"), /keeps no position/);
  await assert.rejects(copyInto(feed, "dir:x", { program, signal: aborter.signal }), /enough/);
});

test("errors are the package's own", async () => {
  const { feed } = await published("a");
  const log = quiet();
  const copy = (...[destination, at = feed, options = {}]) => copyInto(at, destination, { once: true, program, log, ...options });
  const refused = async (promise, kind, text) => {
    const error = await promise.then(() => assert.fail("it was accepted"), (error) => error);
    assert.ok(error instanceof kind, error.stack);
    assert.match(error.message, text);
    assert.doesNotMatch(error.message, /secret/);
  };
  await refused(copy("mysql://me:secret@host/"), UsageError, /sqlite:PATH|not a destination/);
  await refused(copy("sqlite:no/such/copy.db"), TowpathError, /check that its folder exists/);
  await refused(copy("dir:x", feed + "none"), TowpathError, /404/);
  await refused(copy("dir:x", feed, { program: "no-such-towpath" }), UsageError, /no-such-towpath is not installed/);
  await refused(copy("dir:x", feed, { program: "/" }), Error, /EACCES/);
  const html = await server((_, response) => response.writeHead(200, { "content-type": "text/html" }).end("<title>x</title>"));
  await refused(copy("dir:x", html.base), TowpathError, /feed/);
});

test("a log that throws ends the copy with its own error", async () => {
  const { feed } = await published("a");
  const log = { warn: () => { throw new RangeError("no log"); } };
  // Without a state the program warns that it keeps no position.
  await assert.rejects(copyInto(feed, `exec:tee -a ${path.join(folder(), "out")}`, { program, log }), /no log/);
});

test("the program ends with the process that started it", async () => {
  const { client, feed } = await published("a");
  const out = path.join(folder(), "out");
  const code = `import { copyInto } from "towpath/node"; await copyInto(...${JSON.stringify([feed, `exec:tee -a ${out}`, { program }])});`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", code], { stdio: "ignore" });
  await until(() => lines(out).length === 1);
  const programs = () => readdirSync("/proc").filter((id) => {
    try {
      return readFileSync(`/proc/${id}/cmdline`, "utf8").includes(out);
    } catch {
      return false;
    }
  });
  assert.ok(programs().length > 1);
  child.kill("SIGKILL");
  await once(child, "exit");
  await until(() => programs().length === 0);
  await client.put("b", {});
});
