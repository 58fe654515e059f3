"""Cost of reading from a cluster's node and from a single server, and growth of the cluster's log.

One run. Reading: CPU for each request of both, pinned to core 0, load (wrk) on core 1, alternating rounds, medians. The
log: bytes of the stream for each poll, append, subscriber and delivery, as the NATS server counts them.
Usage: python3 benches/cluster.py path/to/towpath path/to/nats-server [reading | growth]
"""

import http.client
import http.server
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

from results import Results, version

ROUNDS, SECONDS = 7, 2
NATS, PLAIN, NODE, SOURCE = 18391, 18392, 18393, 18394
ITEMS, SMALL, SOURCES, SUBSCRIBERS = 2000, 75, 50, 100

SERVER = """
[server]
listen = "127.0.0.1:{port}"
data = "{folder}/{port}"
allow_private_callbacks = true
{more}
[[feed]]
id = "bench"
[[feed]]
id = "large"
"""
POLLED = """
[[feed]]
id = "polled-{n}"
[feed.source]
url = "http://127.0.0.1:{port}/{n}"
every = "1s"
"""


class SourceAndCallback(http.server.BaseHTTPRequestHandler):
    """An unchanging source, and a callback that accepts every delivery."""

    protocol_version = "HTTP/1.1"
    deliveries = verified = 0

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in [*headers, ("Content-Length", str(len(body)))]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        query = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)
        if "hub.challenge" in query:
            SourceAndCallback.verified += 1
            return self.answer(200, query["hub.challenge"][0].encode())
        if self.headers.get("If-None-Match"):
            return self.answer(304, headers=[("ETag", '"1"')])
        items = [{"id": str(n), "content_text": "x" * 300} for n in range(20)]
        feed = {"version": "https://jsonfeed.org/version/1.1", "title": "T", "items": items}
        self.answer(200, json.dumps(feed).encode(), [("ETag", '"1"'), ("Content-Type", "application/feed+json")])

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        SourceAndCallback.deliveries += 1
        self.answer(200)

    def log_message(self, *_):
        pass


class Nats:
    """Minimal NATS client that sends requests."""

    def __init__(self):
        self.socket = socket.create_connection(("127.0.0.1", NATS))
        self.file = self.socket.makefile("rb")
        self.file.readline()
        self.socket.sendall(b'CONNECT {"verbose":false}\r\nSUB answer 1\r\n')

    def ask(self, subject):
        self.socket.sendall(f"PUB {subject} answer 0\r\n\r\n".encode())
        while not (line := self.file.readline()).startswith(b"MSG"):
            if line.startswith(b"PING"):
                self.socket.sendall(b"PONG\r\n")
        return json.loads(self.file.read(int(line.split()[-1])))

    def log(self):
        """Returns the numbers of messages and bytes in the log."""
        state = self.ask("$JS.API.STREAM.INFO.towpath")["state"]
        return state["messages"], state["bytes"]


def cpu(pid):
    """CPU time of a process with all its threads, also ended ones, in microseconds."""
    with open(f"/proc/{pid}/stat") as stat:
        user, system = stat.read().rpartition(") ")[2].split()[11:13]
    return (int(user) + int(system)) * 1e6 / os.sysconf("SC_CLK_TCK")


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as response:
        return response.read(), response.headers["ETag"]


def wait_for(what, is_so):
    for _ in range(600):
        try:
            if is_so():
                return
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit(f"timeout while waiting: {what}")


def publish(port, first, count, each, feed="bench"):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for start in range(first, first + count, each):
        lines = "".join(
            json.dumps({"id": f"item-{n}", "content_type": "text/plain", "content": f"{n:06} ".ljust(1000, "x"),
                        "item": {"title": f"Item {n}"}}) + "\n" for n in range(start, start + each))
        connection.request("POST", f"/feeds/{feed}/items", lines.encode())
        response = connection.getresponse()
        response.read()
        assert response.status == 200, response.status


def load(port, path, extra):
    url = f"http://127.0.0.1:{port}{path}"
    command = ["taskset", "-c", "1", "wrk", "-t1", "-c64", f"-d{SECONDS}s", *extra, url]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(re.search(r"(\d+) requests in", out).group(1))


def compare(results, name, path, extra_of, nodes):
    each = {port: [] for port, _ in nodes}
    for turn in range(ROUNDS):
        for port, pid in nodes if turn % 2 else reversed(nodes):
            extra = extra_of(port)
            before = cpu(pid)
            done = load(port, path, extra)
            each[port].append((cpu(pid) - before) / max(done, 1))
    results.add(name, "µs of CPU", each[NODE], "towpath", goal="1.05")
    results.add(name, "µs of CPU", each[PLAIN], "a single server", goal="1.05")
    plain, node = (statistics.median(each[port]) for port in (PLAIN, NODE))
    print(f"{name:<24} {plain:8.2f} µs {node:8.2f} µs   {plain / node:.3f} (to reach: 0.95)", flush=True)


def reading(results, folder, nodes):
    script = f"{folder}/anew.lua"
    pull = f"/feeds/large/items?order=created&max=50&since=id:item-{ITEMS // 2}"
    with open(script, "w") as file:
        file.write(f"""local n = math.random(1000000000)
function request() n = n + 1; return wrk.format("GET", "{pull}&n=" .. n) end""")
    head, latest = "/diff/bench/head.json", "/diff/bench/latest.json"
    print("reading: CPU for each request; alone, in a cluster, throughput in a cluster to that alone")
    compare(results, "304 of head.json", head, lambda port: ["-H", f"If-None-Match: {get(port, head)[1]}"], nodes)
    compare(results, "200 of latest.json", latest, lambda _: [], nodes)
    compare(results, "a pull of 50, computed", pull, lambda _: ["-s", script], nodes)


def metric(name):
    text = get(NODE, "/metrics")[0].decode()
    found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\d+)$", text, re.M)
    return sum(map(int, found))


def growth(results, what, nats, count, act):
    """Prints the growth of the log for each of `count` actions of `act`."""
    time.sleep(1)
    messages, size = nats.log()
    done = act() or count
    messages, size = (now - before for now, before in zip(nats.log(), (messages, size)))
    results.add(f"growth of the log: {what}", "bytes", size / done)
    print(f"{what:<44} {size / done:8.0f} bytes, {messages / done:.2f} messages", flush=True)


def polls(seconds):
    before = metric("towpath_polls_ok_total")
    time.sleep(seconds)
    return metric("towpath_polls_ok_total") - before


def subscribe():
    for n in range(SUBSCRIBERS):
        form = urllib.parse.urlencode({
            "hub.mode": "subscribe", "hub.topic": f"http://127.0.0.1:{NODE}/feeds/bench/items?order=modified",
            "hub.callback": f"http://127.0.0.1:{SOURCE}/{n}"})
        urllib.request.urlopen(f"http://127.0.0.1:{NODE}/feeds/bench/hub", form.encode()).read()
    wait_for("all are subscribed", lambda: SourceAndCallback.verified >= SUBSCRIBERS)
    time.sleep(3)


def deliver():
    before, appends = SourceAndCallback.deliveries, 10
    for n in range(appends):
        publish(NODE, 900_000 + n, 1, 1)
        wait_for("all is delivered", lambda: SourceAndCallback.deliveries >= before + SUBSCRIBERS * (n + 1))
    time.sleep(5)
    return SUBSCRIBERS * appends


def start(command, processes):
    processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "TOWPATH_LOG": "error"}))
    return processes[-1]


def main(binary, server, part="all"):
    http.server.ThreadingHTTPServer.request_queue_size = 256
    source = http.server.ThreadingHTTPServer(("127.0.0.1", SOURCE), SourceAndCallback)
    threading.Thread(target=source.serve_forever, daemon=True).start()
    processes = []
    results = Results("cluster", binary, "cargo xtask bench cluster", **{"nats-server": version(server, "--version")})
    with tempfile.TemporaryDirectory() as folder:
        def config(port, more):
            path = f"{folder}/{port}.toml"
            with open(path, "w") as file:
                file.write(SERVER.format(port=port, folder=folder, more=more[0]) + more[1])
            return path

        def serve(port, more, cores):
            process = start(["taskset", "-c", cores, binary, "serve", "--config", config(port, more)], processes)
            wait_for(f"{port} answers", lambda: get(port, "/healthz.json"))
            return process

        def stop(process):
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
            processes.remove(process)

        try:
            with open(f"{folder}/nats.conf", "w") as file:
                file.write(f'listen: "127.0.0.1:{NATS}"\njetstream {{ store_dir: "{folder}/nats" }}\n')
            start(["taskset", "-c", "1", server, "-c", f"{folder}/nats.conf", "-l", f"{folder}/nats.log"], processes)
            wait_for("NATS answers", lambda: socket.create_connection(("127.0.0.1", NATS)).close() or True)
            cluster = f'cluster = "nats://127.0.0.1:{NATS}"\nbase_url = "http://127.0.0.1:{NODE}"'
            nodes = [(PLAIN, serve(PLAIN, ("", ""), "0")), (NODE, serve(NODE, (cluster, ""), "0"))]
            for port, _ in nodes:
                publish(port, 0, SMALL, SMALL)
                publish(port, 0, ITEMS, 100, "large")
            time.sleep(2)
            if part in ("all", "reading"):
                reading(results, folder, [(port, process.pid) for port, process in nodes])
            if part == "reading":
                return
            for _, process in nodes:
                stop(process)

            polled = "".join(POLLED.format(n=n, port=SOURCE) for n in range(SOURCES))
            node = serve(NODE, (cluster, polled), "0,1")
            nats = Nats()
            wait_for("all are polled", lambda: metric("towpath_polls_ok_total") >= SOURCES)
            time.sleep(15)
            print("the log grows by")
            growth(results, "a poll that finds nothing", nats, 1, lambda: polls(20))
            stop(node)
            serve(NODE, (cluster, ""), "0,1")
            time.sleep(15)
            growth(results, "a minute of nothing", nats, 1, lambda: time.sleep(60))
            growth(results, "an append of 1 kB, each alone", nats, 200, lambda: publish(NODE, 100_000, 200, 1))
            time.sleep(12)
            growth(results, "an item of 1 kB, 100 together", nats, 2000, lambda: publish(NODE, 200_000, 2000, 100))
            time.sleep(12)
            growth(results, "a subscriber by WebSub", nats, SUBSCRIBERS, subscribe)
            growth(results, "a delivery to one of them", nats, 1, deliver)
        finally:
            for process in reversed(processes):
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=60)
    results.save()


if __name__ == "__main__":
    main(*sys.argv[1:])
