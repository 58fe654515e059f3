// Consumers that are killed at any moment: nothing is missing, and nothing is there twice where data and position are one
// file. TOWPATH_KILLS says how often.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readFileSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { Client } from "towpath";
import { folder, towpath } from "./helpers.js";

const KILLS = Number(process.env.TOWPATH_KILLS ?? 20);
/** Changes that are published in each round. */
const CHANGES = 30;
const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Six lines at most: what a user writes to keep a copy that survives. */
const CONSUMERS = {
  "a loop whose data and position are one file": `
    import { follow } from "towpath";
    import { fileState } from "towpath/node";
    const file = fileState("copy.json", { log: [] });
    for await (const change of follow(process.argv[1], { state: file, saveEvery: 5 })) file.data.log.push(change.id);`,
  "a copy into a store": `
    import { copy } from "towpath";
    import { fileStore } from "towpath/node";
    await copy(process.argv[1], fileStore("copy.json"));`,
  "a loop whose lines and position are two files": `
    import { appendFileSync } from "node:fs";
    import { follow } from "towpath";
    import { fileState } from "towpath/node";
    const state = fileState("state");
    for await (const { id } of follow(process.argv[1], { state })) appendFileSync("lines", id + "\\n");`,
};

for (const [name, program] of Object.entries(CONSUMERS)) {
  test(`${name} survives ${KILLS} kills`, async () => {
    assert.ok(program.trim().split("\n").length <= 6);
    const { base, feed } = await towpath();
    const at = folder();
    const isExact = !name.includes("two files");
    const file = path.join(at, isExact ? "copy.json" : "lines");
    const news = new Client(base).feed("news");
    const wanted = [];
    const publish = async (round) => {
      const lines = Array.from({ length: CHANGES }, (_, at) => ({ id: `${round}-${at}`, json: { round, at } }));
      for (let from = 0; from < lines.length; from += 5) await news.batch(lines.slice(from, from + 5));
      wanted.push(...lines.map(({ id }) => id));
    };
    // Ids in the order of the copy. A line that comes again after a kill counts once.
    const copied = () => {
      const text = existsSync(file) ? readFileSync(file, "utf8") : "";
      if (!isExact) return [...new Set(text.split("\n").slice(0, -1))];
      const { data } = text ? JSON.parse(text) : {};
      return data?.log ?? Object.keys(data ?? {});
    };
    const start = () => spawn(process.execPath, ["--input-type=module", "-e", program, "--", feed], { cwd: at, stdio: "ignore", env: { ...process.env } });
    // Where the package is found from: a program on the command line has its working folder as its place.
    writeFileSync(path.join(at, "package.json"), "{}");
    symlinkSync(path.resolve("node_modules"), path.join(at, "node_modules"));
    const saved = () => (existsSync(file) ? statSync(file).ino + statSync(file).mtimeMs : 0);
    let moved = 0;
    for (let round = 0; round < KILLS; round++) {
      const consumer = start();
      const ended = once(consumer, "exit");
      const published = publish(round);
      // At random lines: while it loads or asks in every other round, while it applies or saves in the others.
      const before = saved();
      for (let tries = 0; round % 2 === 1 && saved() === before && tries < 500; tries++) await wait(4);
      await wait(round % 2 === 1 ? Math.random() * 15 : 50 + Math.random() * 150);
      if (saved() !== before) moved++;
      consumer.kill("SIGKILL");
      await Promise.all([ended, published]);
    }
    assert.ok(moved >= KILLS / 4, `only ${moved} of ${KILLS} rounds saved something before the kill`);
    const last = start();
    while (copied().length < wanted.length) {
      assert.equal(last.exitCode, null, "the consumer ended by itself");
      await wait(20);
    }
    last.kill("SIGKILL");
    await once(last, "exit");
    assert.deepEqual(copied(), wanted);
    console.log(`${name}: ${KILLS} kills, ${moved} of them after progress, ${wanted.length} changes`);
  });
}
