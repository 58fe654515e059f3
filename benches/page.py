"""CPU of the web page: home of many feeds, every tab of a large feed, a search, and a 304 before and after.

Usage: python3 benches/page.py path/to/towpath [ITEMS] [FEEDS…]

CPU is that of all threads of the server (`/proc/PID/task/*/schedstat`), one request at a time; medians. Nothing else asks
the server meanwhile.
"""

import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse

from results import Results, cpu_ns

PORT, TURNS = 18192, 15
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8", "Accept-Encoding": "br, gzip"}
WORDS = "lock boat canal bridge water gate towpath horse barge miller heron reed".split()


class Server:
    """A server with its own folder, which is asked over one connection."""

    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder
        self.start()

    def start(self):
        self.process = subprocess.Popen([self.binary, "serve", "--config", f"{self.folder}/towpath.toml"],
                                        stdout=subprocess.DEVNULL, env={**os.environ, "TOWPATH_LOG": "error"})
        self.connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
        while True:
            assert self.process.poll() is None, "the server ended"
            try:
                return self.ask("/livez")
            except (ConnectionError, http.client.HTTPException):
                self.connection.close()
                time.sleep(0.05)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=600)

    def ask(self, path, headers=None, body=None):
        try:
            return self.ask_once(path, headers, body)
        except http.client.RemoteDisconnected:
            # The server closes a connection after many requests.
            self.connection.close()
            return self.ask_once(path, headers, body)

    def ask_once(self, path, headers, body):
        self.connection.request("POST" if body else "GET", path, body, headers or {})
        response = self.connection.getresponse()
        return response, response.read()

    def cpu(self):
        """Seconds of CPU of all threads."""
        return cpu_ns([self.process.pid]) / 1e9

    def quiet(self):
        """Waits until the work of the background is done."""
        while True:
            before = self.cpu()
            time.sleep(0.5)
            if self.cpu() - before < 0.01:
                return

    def cost(self, path, turns=TURNS, headers=BROWSER):
        """Medians of CPU and time in ms, and the bytes of the last answer."""
        cpu, wall = [], []
        for _ in range(turns):
            before, begun = self.cpu(), time.perf_counter()
            response, body = self.ask(path, headers)
            wall.append(time.perf_counter() - begun)
            cpu.append(self.cpu() - before)
            assert response.status in (200, 304), f"{path}: {response.status} {body[:300]}"
        return 1000 * statistics.median(cpu), 1000 * statistics.median(wall), len(body), body


def row(results, name, figures, goal=""):
    cpu, wall, size = figures[:3]
    results.add(name, "ms of CPU", cpu, goal=goal.removeprefix("goal ") or None)
    print(f"  {name:<34} {cpu:8.2f} ms CPU {wall:8.2f} ms {size / 1000:8.1f} kB   {goal}", flush=True)


def configure(folder, feeds):
    with open(f"{folder}/towpath.toml", "w") as file:
        file.write(f'[server]\nlisten = "127.0.0.1:{PORT}"\ndata = "{folder}/data"\n')
        for feed in feeds:
            file.write(f'[[feed]]\nid = "{feed}"\ntitle = "Feed {feed} of the towpath"\n')


def publish(server, feed, first, count, of):
    """Publishes lines; each tenth changes an item that was published before, each hundredth removes one."""
    lines = []
    for number in range(first, first + count):
        if number % 100 == 99:
            lines.append({"id": f"item-{number - 50}", "op": "delete"})
            continue
        name = number - 7 if number % 10 == 7 and number > 10 else number
        text = " ".join(WORDS[(number * 7 + word) % len(WORDS)] for word in range(30))
        lines.append({"id": f"item-{name}", "content_type": "text/plain", "content": text,
                      "item": {"title": f"{WORDS[number % 12]} {number} of {of}", "summary": text[:80], "tags": [WORDS[number % 5]]}})
    body = "\n".join(json.dumps(line) for line in lines).encode()
    response, text = server.ask(f"/feeds/{feed}/items", body=body)
    assert response.status == 200, text[:500]


def fast_path(server, name):
    """CPU of a 304 in µs, over many requests."""
    path = f"/diff/{name}/head.json"
    response, _ = server.ask(path)
    headers, turns = {"If-None-Match": response.getheader("etag")}, 3000
    server.ask(path, headers)
    before = server.cpu()
    for _ in range(turns):
        response, _ = server.ask(path, headers)
    assert response.status == 304, response.status
    return 1e6 * (server.cpu() - before) / turns


TABS = [("items", ""), ("items, deep", "?before={deep}"), ("items, tag and time", "?tag=boat&from=2000-01-01"),
        ("items at a past moment", "?at={past}"), ("changes", "/changes"), ("changes, deep", "/changes?before={deep}"),
        ("changes at a past moment", "/changes?at={past}"), ("history", "/history"), ("history by hour", "/history?unit=hour"),
        ("follow", "/follow"), ("subscribers", "/subscribers"), ("live", "/live"), ("item", "/items/item-{deep}"),
        ("item, compared", "/items/item-10?version={version}&with=11")]


def large(results, binary, items):
    print(f"A feed of {items:,} changes")
    with tempfile.TemporaryDirectory() as folder:
        configure(folder, ["big"])
        server = Server(binary, folder)
        try:
            begun, past = time.time(), ""
            for first in range(0, items, 1000):
                publish(server, "big", first, min(1000, items - first), items)
                if first <= items // 2 < first + 1000:
                    past = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                    time.sleep(1)
            print(f"  published in {time.time() - begun:.0f} s", flush=True)
            server.quiet()
            before = fast_path(server, "big")
            values = {"deep": items // 3 // 10 * 10, "past": past, "version": 18}
            for name, path in TABS:
                row(results, f"{items} changes: {name}", server.cost(f"/feeds/big{path.format(**values)}"), "goal 20")
            search(results, server, items)
            after = fast_path(server, "big")
            print(f"  304: {before:.1f} µs before the pages, {after:.1f} µs after them   goal: the same", flush=True)
            server.stop()
            server.start()
            row(results, f"{items} changes: home, first view after a start", server.cost("/", 1))
            begun = server.cpu()
            server.quiet()
            print(f"  {1000 * (server.cpu() - begun):.0f} ms CPU beside it, to count 30 days", flush=True)
            row(results, f"{items} changes: home", server.cost("/"), "goal 50")
        finally:
            server.stop()


def search(results, server, items):
    for name, words in [("search, found at once", "heron"), ("search, one of the last", f"{items - 2}"), ("search, found nowhere", "nowhere")]:
        figures = server.cost(f"/feeds/big?{urllib.parse.urlencode({'q': words})}", 5, {**BROWSER, "Accept-Encoding": "identity"})
        is_looking = b"Still looking" in figures[3]
        row(results, f"{items} changes: {name}", figures, f"goal 300 of time{', says that it is still looking' if is_looking else ''}")


def many(results, binary, feeds):
    print(f"{feeds:,} feeds of 30 items each")
    with tempfile.TemporaryDirectory() as folder:
        names = [f"feed-{number:05}" for number in range(feeds)]
        configure(folder, names)
        server = Server(binary, folder)
        try:
            for name in names:
                publish(server, name, 0, 30, 30)
            server.quiet()
            goal = "goal 50 and 60 kB" if feeds <= 1000 else "usable"
            row(results, f"{feeds} feeds: home, first view", server.cost("/", 1), goal)
            server.quiet()
            for name, path in [("home", "/"), ("home, last page", f"/?page={feeds // 100}"), ("home by state", "/?sort=state"),
                               ("home, last change", "/?sort=changed"), ("home, a search", "/?q=feed+feed-00077")]:
                row(results, f"{feeds} feeds: {name}", server.cost(path), goal)
        finally:
            server.stop()


def main(binary, items, feeds):
    results = Results("page", binary, "cargo xtask bench page")
    large(results, binary, items)
    for count in feeds:
        many(results, binary, count)
    results.save()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000,
         [int(count) for count in sys.argv[3:]] or [1_000, 10_000])
