// Copies into the destinations of the command line, which a child process makes.
import { spawn } from "node:child_process";
// Of the package itself: its errors must be the same classes for those who catch them.
import { GapError, TowpathError, UsageError } from "towpath";

/** Time that the program has to end by itself, in milliseconds. It needs up to five seconds to write what it has received. */
const GRACE = 8000;
/** Exit codes of the program. */
const USAGE = 2;
const INCOMPLETE = 3;

/** @param {string | URL} url @param {string} destination @param {import("../types/node.js").CopyIntoOptions} options */
function argumentsOf(url, destination, { from, once, protocol, state, stopOnRefusedItem }) {
  const start = from instanceof Date ? from.toISOString() : from;
  const flags = [
    // The program ends with this one, even if that is killed.
    "--stop-with-stdin",
    ...(once ? ["--once"] : []),
    ...(stopOnRefusedItem ? ["--stop-on-refused-item"] : []),
  ];
  const values = { into: destination, from: start, protocol, state };
  const given = Object.entries(values).flatMap(([name, value]) => (value === undefined ? [] : [`--${name}=${value}`]));
  return ["follow", ...flags, ...given, "--", String(url)];
}

/** Calls `act` with each line. @param {NodeJS.ReadableStream} stream @param {(line: string) => void} act */
async function eachLine(stream, act) {
  let rest = "";
  stream.setEncoding("utf8");
  for await (const text of stream) {
    const lines = (rest + text).split("\n");
    rest = /** @type {string} */ (lines.pop());
    lines.forEach(act);
  }
  if (rest) act(rest);
}

/** @param {string | URL} url @param {string} destination @param {import("../types/node.js").CopyIntoOptions} [options] */
export async function copyInto(url, destination, options = {}) {
  const { signal, token, program = "towpath", log = console, onGap } = options;
  signal?.throwIfAborted();
  const env = token === undefined ? process.env : { ...process.env, TOWPATH_READ_TOKEN: token };
  const child = spawn(program, argumentsOf(url, destination, options), { env, stdio: ["pipe", "ignore", "pipe"] });
  /** @type {Promise<number | null>} */
  const exited = new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("close", resolve);
  });
  /** @type {NodeJS.Timeout | undefined} */
  let patience;
  /** @param {unknown} reason */
  const end = (reason) => {
    thrown ??= { reason };
    child.kill("SIGTERM");
    patience ??= setTimeout(() => child.kill("SIGKILL"), GRACE);
  };
  /** What ended the copy from here. @type {{ reason: unknown } | undefined} */
  let thrown;
  const abort = () => end(signal?.reason);
  signal?.addEventListener("abort", abort, { once: true });
  let last = "";
  const told = eachLine(child.stderr, (line) => {
    const own = /^towpath: (.*)/.exec(line)?.[1];
    // The last one is the error, if the program fails. A refused argument is left out: it may have a password.
    last = own ?? /^error: (?:.*' for '--\S+ <\w+>': )?(.*)/.exec(line)?.[1] ?? last;
    if (own) pass(own);
  });
  /** @param {string} line */
  const pass = (line) => {
    try {
      if (line.startsWith("incomplete: ") && onGap) onGap(new GapError(line));
      else log.warn(line);
    } catch (error) {
      end(error);
    }
  };
  try {
    const code = await exited;
    await told;
    const failed = code !== 0 && code !== INCOMPLETE;
    if (thrown) throw thrown.reason;
    if (!failed) return;
    const what = last || `${program} ended with ${code === null ? `the signal ${child.signalCode}` : `the exit code ${code}`}`;
    throw code === USAGE ? new UsageError(what) : new TowpathError(what);
  } catch (error) {
    if (/** @type {NodeJS.ErrnoException} */ (error)?.code !== "ENOENT" || child.pid !== undefined) throw error;
    throw new UsageError(`the program ${program} is not installed; put it on the path, or name it in the option program`, undefined, error);
  } finally {
    clearTimeout(patience);
    signal?.removeEventListener("abort", abort);
  }
}
