// Canonical JSON of DiffDelta (section 3): RFC 8785, and the form of Python's json.dumps.
import { UsageError } from "./errors.js";

/** Top-level members that a cursor does not cover (section 3.1, step 2). */
const VOLATILE = new Set(["generated_at", "hash", "prev_hash", "cursor", "prev_cursor", "cursor_basis"]);

/** Order by code point, where UTF-16 has surrogates before the characters from U+E000 on. @param {string} a @param {string} b */
function byCodePoint(a, b) {
  const [x, y] = [a, b].map((text) => text.replace(/[\ud800-\udfff]/g, "\uffff$&"));
  return x < y ? -1 : 1;
}

/**
 * @param {any} value @param {(leaf: any) => string} leaf @param {((a: string, b: string) => number) | undefined} order
 * @param {(key: string) => boolean} [keeps]
 * @returns {string}
 */
function write(value, leaf, order, keeps = () => true) {
  if (Array.isArray(value)) return `[${value.map((one) => write(one, leaf, order)).join()}]`;
  if (value === null || typeof value !== "object") return leaf(value);
  // Without a function, sort compares UTF-16 code units, as RFC 8785 wants.
  const keys = Object.keys(value).filter(keeps).sort(order);
  return `{${keys.map((key) => `${leaf(key)}:${write(value[key], leaf, order)}`).join()}}`;
}

/** RFC 8785, without the volatile members. @param {any} document */
export const canonical = (document) => write(document, JSON.stringify, undefined, (key) => !VOLATILE.has(key));

/** A number as Python writes it. @param {string} text */
function pythonNumber(text) {
  if (!/[.eE]/.test(text)) return text === "-0" ? "0" : text;
  const value = Number(text);
  if (!Number.isFinite(value)) return `${value}`;
  const [digits, power] = value.toExponential().split("e");
  const exponent = Number(power);
  // Python has exponents below -4 and from 16 on, of two digits at least.
  if (exponent < -4 || exponent >= 16) return `${digits}e${power.replace(/^(.)(.)$/, "$10$2")}`;
  const plain = Object.is(value, -0) ? "-0" : `${value}`;
  return plain.includes(".") ? plain : `${plain}.0`;
}

/** Python's form, without the volatile members. @param {string} text of a document */
export function pythonCanonical(text) {
  // Numbers become strings, so that they keep their text; a letter in front tells them from strings.
  const marked = text.replace(/"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g, (token) =>
    token[0] === '"' ? `"s${token.slice(1)}` : `"n${token}"`,
  );
  /** @param {any} leaf */
  const show = (leaf) => {
    if (typeof leaf !== "string") return JSON.stringify(leaf);
    return leaf[0] === "s" ? JSON.stringify(leaf.slice(1)) : pythonNumber(leaf.slice(1));
  };
  return write(JSON.parse(marked), show, byCodePoint, (key) => !VOLATILE.has(key.slice(1)));
}

/** Returns a SHA-256 in hex digits. @param {Uint8Array | string} data */
export async function sha256(data) {
  // Node 18 has it in a module only. Put together, so that bundlers for browsers do not look for the module.
  const crypto = globalThis.crypto ?? (await import(/* @vite-ignore */ ["node", "crypto"].join(":"))).webcrypto;
  if (!crypto.subtle)
    throw new UsageError("DiffDelta needs crypto.subtle: https or localhost");
  const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", /** @type {BufferSource} */ (bytes)));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
