// Subscribes to a topic with the package pubsubhubbub, a WebSub subscriber that shares nothing with towpath.
//
// Usage: websub.mjs TOPIC. The hub is discovered from the topic. Prints a line of JSON for each success and delivery.
// Unsubscribes at the end of its input, and ends when the hub has verified that. It has no secret: this package verifies
// signatures with another secret than the one that it sends.

import { createServer } from "node:net";
import { createRequire } from "node:module";

const { createServer: createSubscriber } = createRequire(import.meta.url)("pubsubhubbub");
const [topic] = process.argv.slice(2);
const say = (line) => console.log(JSON.stringify(line));

const free = createServer().listen(0, "127.0.0.1");
await new Promise((listening) => free.once("listening", listening));
const { port } = free.address();
await new Promise((closed) => free.close(closed));

const links = (await fetch(topic)).headers.get("link");
const hub = /<([^>]*)>; *rel="?hub/.exec(links)[1];
const subscriber = createSubscriber({ callbackUrl: `http://127.0.0.1:${port}/callback` });
const failed = (error) => error && say({ error: String(error), topic });
subscriber.on("subscribe", ({ topic }) => say({ mode: "subscribe", topic }));
subscriber.on("unsubscribe", ({ topic }) => {
  say({ mode: "unsubscribe", topic });
  process.exit(0);
});
subscriber.on("denied", ({ topic }) => say({ error: "denied", topic }));
subscriber.on("error", failed);
subscriber.on("feed", ({ topic, feed }) => say({ topic, body: feed.toString() }));
subscriber.on("listen", () => subscriber.subscribe(topic, hub, failed));
subscriber.listen(port, "127.0.0.1");
process.stdin.resume().on("end", () => subscriber.unsubscribe(topic, hub, failed));
