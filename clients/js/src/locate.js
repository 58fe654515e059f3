// From the URL that a user has to those of a feed's documents (DiffDelta, sections 1 and 8).

/** URLs of a feed's documents. @param {URL} url */
export function locate(url) {
  const at = (/** @type {string} */ path) => Object.assign(new URL(url), { pathname: path }).href;
  const path = url.pathname.replace(/\/+$/, "");
  if (path === "" || path.endsWith("/.well-known/diffdelta.json"))
    return { manifest: at(path || "/.well-known/diffdelta.json") };
  const folder = path.replace(/\/(head|latest)\.json$/, "");
  // A publisher of a single file has no head beside it.
  if (folder.endsWith(".json")) return { latest: url.href };
  return { head: at(`${folder}/head.json`), latest: at(`${folder}/latest.json`) };
}

/** The source that a path names: `/diff/{source}/…` or `/diff/source/{source}/…`. @param {string} latest */
export function sourceOf(latest) {
  const [, source] = /\/diff\/(?:source\/)?([^/]+)\/[^/]*$/.exec(new URL(latest).pathname) ?? [];
  return source === undefined || source === "_global" ? undefined : decodeURIComponent(source);
}

/** URL of a feed's archive index, beside `/diff/`. @param {string} latest @param {string | undefined} source */
export function indexUrl(latest, source) {
  const url = new URL(latest);
  const above = url.pathname.slice(0, Math.max(0, url.pathname.lastIndexOf("/diff/")));
  url.pathname = `${above}/archive/${encodeURIComponent(source ?? sourceOf(latest) ?? "_global")}/index.json`;
  return url.href;
}
