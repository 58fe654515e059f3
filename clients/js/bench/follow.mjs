// Changes of 1 kB per second through the iterator: node bench/follow.mjs [CHANGES] [URL]. Without a URL a process of its
// own serves pages that were made before, so that no other server is measured.
import { fork } from "node:child_process";
import { once } from "node:events";
import http from "node:http";
import { follow } from "../src/index.js";

const PAGE = 1000;
const count = Number(process.argv[2] ?? 500_000);

if (process.argv[2] === "serve") {
  const text = "A boat came in. ".repeat(50);
  const line = (at) =>
    JSON.stringify({
      feed: "bench",
      op: "put",
      id: `item-${at}`,
      position: `p${at}`,
      modified: "2026-01-02T03:04:05Z",
      content_type: "text/plain",
      content: text,
      item: { title: `Boat ${at}`, url: `https://www.example.com/boats/${at}`, tags: ["harbour", "boats"] },
    });
  const pages = Array.from({ length: 20 }, (_, page) =>
    Buffer.from(Array.from({ length: PAGE }, (_, at) => `${line(page * PAGE + at)}\n`).join("")),
  );
  const total = Number(process.argv[3]);
  let sent = 0;
  const server = http.createServer((request, response) => {
    response.setHeader("content-type", "application/x-ndjson");
    // The pages come round again, with cursors of their own in the last line.
    if (sent >= total) return response.end();
    const page = pages[(sent / PAGE) % pages.length];
    sent += PAGE;
    response.write(page);
    response.end(`{"feed":"bench","op":"put","id":"mark","position":"m${sent}"}\n`);
  });
  server.listen(0, "127.0.0.1", () => process.send(`http://127.0.0.1:${server.address().port}/`));
} else {
  const server = process.argv[3] ? undefined : fork(process.argv[1], ["serve", String(count)]);
  const url = process.argv[3] ?? (await once(server, "message"))[0];
  const state = {
    load: () => ({ towpath_state: 1, url, protocol: "smart", state: { protocol: "smart", url, since: undefined } }),
    save() {},
  };
  const begun = process.hrtime.bigint();
  let changes = 0;
  let bytes = 0;
  for await (const change of follow(url, { once: true, ...(server && { state }) })) {
    changes++;
    bytes += change.content?.length ?? 0;
    if (changes >= count) break;
  }
  const seconds = Number(process.hrtime.bigint() - begun) / 1e9;
  const { user, system } = process.cpuUsage();
  console.log(
    `${changes} changes, ${Math.round(bytes / changes)} bytes of content each, in ${seconds.toFixed(2)} s: ${Math.round(changes / seconds)} changes/s, ${((user + system) / 1e6).toFixed(2)} s of CPU`,
  );
  server?.kill();
}
