// The package as users get it: names, versions, size.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import * as towpath from "towpath";
import * as node from "towpath/node";

const ROOT = process.env.TOWPATH_ROOT;
const text = (...parts) => readFileSync(path.join(...parts), "utf8");
const installed = path.resolve("node_modules/towpath");

test("the version is that of the workspace", () => {
  const [, version] = /\[workspace\.package\]\nversion = "([^"]+)"/.exec(text(ROOT, "Cargo.toml"));
  assert.equal(JSON.parse(text(installed, "package.json")).version, version);
});

test("the package has no dependencies, and its licences", () => {
  const { dependencies, peerDependencies } = JSON.parse(text(installed, "package.json"));
  assert.deepEqual([dependencies, peerDependencies], [undefined, undefined]);
  assert.deepEqual(readdirSync(installed).sort(), ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "dist", "package.json", "src", "types"]);
});

test("the module is under 12 kB compressed", () => {
  const size = gzipSync(readFileSync(path.join(installed, "dist/towpath.js")), { level: 9 }).length;
  assert.ok(size < 12_000, `${size} bytes`);
});

test("the demo page has 60 lines at most", () => {
  assert.ok(text(ROOT, "examples/live.html").trimEnd().split("\n").length <= 60);
});

test("public names agree with the declarations and the documents", () => {
  const documents = text(ROOT, "docs/javascript.md") + text(installed, "README.md");
  for (const [names, declarations] of [[towpath, "index"], [node, "node"]]) {
    const declared = [...text(installed, `types/${declarations}.d.ts`).matchAll(/^export (?:function|class) (\w+)/gm)].map(([, name]) => name);
    assert.deepEqual([...new Set(declared)].sort(), Object.keys(names).sort());
    for (const name of declared) assert.match(documents, new RegExp(`\\b${name}\\b`), `no document names ${name}`);
  }
  // Members of a change are those of its schema.
  const schema = JSON.stringify(JSON.parse(text(ROOT, "docs/change.schema.json")));
  const [, change] = /interface Content \{([^]*?)interface ResetChange/.exec(text(installed, "types/index.d.ts"));
  for (const [, member] of change.matchAll(/^ {2}(\w+)\??:/gm)) assert.ok(schema.includes(`"${member}"`), `the schema has no ${member}`);
});

test("options of the declarations are in the guide", () => {
  const [, options] = /export interface RequestOptions \{([^]*?)\/\*\* Protocol by which/.exec(text(installed, "types/index.d.ts"));
  const guide = text(ROOT, "docs/javascript.md");
  for (const [, name] of options.matchAll(/^ {2}(\w+)\??[:(]/gm)) assert.match(guide, new RegExp(`\`${name}\``), `docs/javascript.md has no ${name}`);
});
