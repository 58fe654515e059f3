// Makes the npm package: node pack.mjs FOLDER. Prints the path of the tarball.
// The environment has TOWPATH_JS_MODULES, the folder with node_modules of package.json beside this file.
import { execFileSync } from "node:child_process";
import { copyFileSync, cpSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const root = path.resolve(here, "../..");
const out = path.resolve(process.argv[2]);
const require = createRequire(path.join(process.env.TOWPATH_JS_MODULES, "x.js"));
const { build } = require("esbuild");
const { minify } = require("terser");

const stage = path.join(out, "package");
rmSync(out, { recursive: true, force: true });
mkdirSync(path.join(stage, "dist"), { recursive: true });
for (const name of ["package.json", "README.md"]) copyFileSync(path.join(here, name), path.join(stage, name));
for (const name of ["LICENSE-APACHE", "LICENSE-MIT"]) copyFileSync(path.join(root, name), path.join(stage, name));
for (const name of ["src", "types"]) cpSync(path.join(here, name), path.join(stage, name), { recursive: true });
// One small file for browsers; `check` is another, loaded when it is used.
for (const [from, to] of [
  ["index", "towpath"],
  ["check", "check"],
  ["node", "node"],
]) {
  const {
    outputFiles: [{ text }],
  } = await build({
    entryPoints: [path.join(here, `src/${from}.js`)],
    bundle: true,
    // Before terser: both together are smaller than either.
    minifyIdentifiers: true,
    minifySyntax: true,
    // Names that only one of the files uses, and no document, state or option of a program has.
    mangleProps:
      /^(answer|beganAnew|chunks|gaps|isChained|isNew|isPlaced|keep|link|links|number|offers|options|retry|session|states|walk|what|worked|wrong)$/,
    write: false,
    format: "esm",
    target: "es2022",
    charset: "utf8",
    external: ["./check.js", "node:*", "towpath"],
    logLevel: "warning",
  });
  // A fiftieth smaller than esbuild's own, which counts against the limit that a test holds.
  const shorter = async (/** @type {string} */ given) =>
    (
      await minify(given, {
        module: true,
        ecma: 2020,
        compress: { passes: 3, sequences: false },
        format: { ascii_only: true },
      })
    ).code;
  // Twice: names are chosen anew by how often the first run left them.
  const code = await shorter(await shorter(text));
  writeFileSync(path.join(stage, `dist/${to}.js`), code);
}
const packed = execFileSync(
  "npm",
  ["pack", "--json", "--ignore-scripts", "--loglevel=error", "--pack-destination", out],
  { cwd: stage, encoding: "utf8" },
);
console.log(path.join(out, JSON.parse(packed)[0].filename));
