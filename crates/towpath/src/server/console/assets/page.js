// Makes pages livelier; every page works without it. It reads text only and never inserts markup of items.
"use strict";
(() => {
  const zone = { dateStyle: "full", timeStyle: "long" };
  // The units of the server's own words.
  const units = [[60, "s", 1], [3600, "min", 60], [86400, "h", 3600], [86400 * 60, "days", 86400], [86400 * 730, "months", 2629746], [Infinity, "years", 31556952]];
  const relative = (date) => {
    const seconds = Math.trunc((date - Date.now()) / 1000);
    if (seconds > -2 && seconds < 1) return "just now";
    const [, name, length] = units.find(([limit]) => Math.abs(seconds) < limit);
    const count = Math.trunc(Math.abs(seconds) / length);
    const unit = count === 1 && length > 1 ? name.replace(/s$/, "") : name;
    return seconds < 0 ? `${count} ${unit} ago` : `in ${count} ${unit}`;
  };
  // Times are shown in the reader's zone.
  const times = (root) => {
    for (const element of root.querySelectorAll("time[datetime]")) {
      const date = new Date(element.dateTime);
      if (isNaN(date)) continue;
      element.title = date.toLocaleString(undefined, zone);
      if (element.dataset.as === "ago") element.textContent = relative(date);
      else if (element.dataset.as === "exact") element.textContent = date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
    }
  };
  times(document);
  setInterval(() => times(document), 30000);

  for (const block of document.querySelectorAll(".copy")) {
    if (!navigator.clipboard) break;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.querySelector("pre").textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    block.append(button);
  }

  for (const form of document.querySelectorAll("form[data-confirm]")) {
    form.addEventListener("submit", (event) => {
      if (!confirm(form.dataset.confirm)) event.preventDefault();
    });
  }

  for (const slider of document.querySelectorAll("input[data-slider]")) {
    const shown = document.getElementById(slider.dataset.slider);
    slider.addEventListener("input", () => (shown.textContent = `change ${Number(slider.value).toLocaleString()} of ${Number(slider.max).toLocaleString()}`));
    slider.addEventListener("change", () => slider.form.requestSubmit());
  }

  // Parts with data-live are fetched again with the page: the numbers move by themselves.
  const parts = document.querySelectorAll("[data-live]");
  if (parts.length > 0) {
    let tag = null;
    const refresh = async () => {
      if (document.hidden) return;
      const headers = { Accept: "text/html" };
      if (tag) headers["If-None-Match"] = tag;
      try {
        const response = await fetch(location.href, { headers, cache: "no-store" });
        if (!response.ok) return;
        tag = response.headers.get("etag");
        const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
        for (const part of document.querySelectorAll("[data-live]")) {
          const other = fresh.getElementById(part.id);
          // A reader's focus or selection within a part must not be lost.
          if (!other || part.contains(document.activeElement)) continue;
          times(other);
          if (other.innerHTML !== part.innerHTML) part.replaceChildren(...document.adoptNode(other).childNodes);
        }
      } catch (_) { /* The server is away: the page stays as it is. */ }
    };
    setInterval(refresh, 5000);
  }

  const tail = document.getElementById("tail");
  if (tail) {
    const status = document.getElementById("tail-status");
    const pause = document.getElementById("tail-pause");
    const filter = document.getElementById("tail-filter");
    const seen = [];
    let waiting = [];
    let paused = false;
    const matches = (row) => row.textContent.toLowerCase().includes(filter.value.trim().toLowerCase());
    const part = (tag, name, text) => {
      const element = document.createElement(tag);
      if (name) element.className = name;
      element.textContent = text;
      return element;
    };
    const show = (row) => {
      row.hidden = !matches(row);
      tail.prepend(row);
      while (tail.children.length > 500) tail.lastChild.remove();
      document.getElementById("tail-empty")?.remove();
    };
    let ended = "";
    const rate = () => {
      if (ended) { status.textContent = ended; return; }
      const minute = Date.now() - 60000;
      while (seen.length && seen[0] < minute) seen.shift();
      const held = waiting.length ? `, ${waiting.length} held back` : "";
      status.textContent = `${paused ? "Paused" : status.dataset.state}: ${seen.length} in the last minute${held}`;
    };
    const arrived = (event) => {
      let change;
      try { change = JSON.parse(event.data); } catch (_) { return; }
      const item = change.item || change.object || change;
      const id = String(change.id || item.id || "");
      const feed = String(change.feed || tail.dataset.feed || "");
      const op = change.op || (event.type === "message" ? "put" : event.type);
      const row = document.createElement("li");
      row.className = "fresh";
      const line = part("div", "line", "");
      line.append(part("span", `op ${op === "delete" ? "removed" : op === "patch" ? "changed" : "new"}`, op));
      const at = part("time", "", "");
      at.dateTime = change.modified || change.updated || new Date().toISOString();
      at.dataset.as = "ago";
      line.append(at);
      if (!tail.dataset.feed) line.append(part("bdi", "", feed));
      line.append(part("bdi", "id mono", id.slice(0, 200)));
      const heading = document.createElement("h2");
      const link = part("a", "", String(item.title || item.displayName || item.name || id).slice(0, 300));
      link.dir = "auto";
      link.href = `${tail.dataset.root}/feeds/${encodeURIComponent(feed)}/items/${encodeURIComponent(id)}`;
      heading.append(link);
      row.append(heading, line);
      times(row);
      seen.push(Date.now());
      if (paused) { waiting.push(row); waiting = waiting.slice(-500); } else show(row);
      rate();
    };
    const source = new EventSource(tail.dataset.source);
    for (const name of ["message", "put", "patch", "delete"]) source.addEventListener(name, arrived);
    source.addEventListener("open", () => { status.dataset.state = "Connected"; rate(); });
    const end = (text) => { ended = text; status.dataset.state = "Ended"; source.close(); rate(); };
    source.addEventListener("gone", (event) => {
      let problem = {};
      try { problem = JSON.parse(event.data); } catch (_) { /* Said without a reason. */ }
      end(`Ended: ${problem.detail || "the feed was removed"}`);
    });
    source.addEventListener("error", () => {
      // Closed by the browser: the server refused the stream, and will again.
      if (source.readyState === EventSource.CLOSED) return end(ended || "Ended: load this page again to see why");
      status.dataset.state = "Connecting again";
      rate();
    });
    pause.hidden = false;
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.textContent = paused ? "Go on" : "Pause";
      pause.setAttribute("aria-pressed", String(paused));
      if (!paused) { waiting.forEach(show); waiting = []; }
      rate();
    });
    filter.addEventListener("input", () => { for (const row of tail.children) row.hidden = !matches(row); });
    setInterval(rate, 5000);
  }
})();
