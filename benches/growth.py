"""Growth of one feed, and of a node with many feeds: what starts, appends, pulls and memory cost at each tenfold size.

Usage: python3 benches/growth.py path/to/towpath items|feeds [LARGEST SIZE] [BYTES OF AN ITEM] [random|text]

CPU is that of all threads of the server, over requests one after the other, at random places, after the server's work in the
background is done. Random contents are what no compression makes much smaller; text has the words of this repository's
documents. The raw results are written after each size.
"""

import base64
import datetime
import glob
import http.client
import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import replication
from results import Results, cpu_ns

BATCH, FEED_ITEMS, WRITERS = 1000, 10, 16
ROUNDS, REQUESTS, STARTS = 15, 20, 5
SMALLEST = {"items": 10_000, "feeds": 1_000}
LARGEST = {"items": 10_000_000, "feeds": 100_000}
BYTES = {"items": 100, "feeds": 300}
# Folders of the engine's tables, which are numbered as the store creates them.
TABLES = {"log": [2], "indexes": [1, 3, 4, 5, 6], "DiffDelta's archive and other documents": [7, 8]}


def random_contents(count, size):
    """Texts that no compression makes smaller than three quarters."""
    text = base64.b64encode(os.urandom(count * size * 3 // 4 + 3)).decode()
    return [text[n * size:(n + 1) * size] for n in range(count)]


def text_contents():
    """Returns a function that makes texts of words as often as they are in the documents."""
    words = []
    for path in sorted(glob.glob(f"{os.path.dirname(os.path.abspath(__file__))}/../docs/*.md")):
        with open(path) as file:
            words += re.findall(r"[A-Za-z]+[,.]?", file.read())

    def contents(count, size):
        return [" ".join(random.choices(words, k=size // 4)).ljust(size)[:size] for _ in range(count)]
    return contents


def memory(pid):
    with open(f"/proc/{pid}/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    return int(lines["VmRSS"].split()[0]) / 1024


def disk(folder):
    """Bytes that files take on the disk."""
    return sum(os.stat(f"{where}/{name}").st_blocks * 512 for where, _, names in os.walk(folder) for name in names)


def disk_shares(results, folder, size, content):
    """Records the space on the disk, in all and by what it holds, as multiples of the content."""
    whole, rest = disk(folder), 0
    results.add("disk / content", "×", whole / content, at=size)
    for name, numbers in TABLES.items():
        part = sum(disk(f"{folder}/engine/keyspaces/{number}") for number in numbers)
        results.add(f"disk / content, {name}", "×", part / content, at=size)
        rest += part
    results.add("disk / content, journals", "×", (whole - rest) / content, at=size)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    """A server that is started again from time to time, with its own folder."""

    def __init__(self, binary, folder, configuration):
        self.binary, self.folder, self.port = binary, folder, free_port()
        with open(f"{folder}/towpath.toml", "w") as file:
            file.write(f'[server]\nlisten = "127.0.0.1:{self.port}"\ndata = "{folder}/data"\n{configuration}')
        self.start()

    def start(self):
        """Returns the seconds until the first answer and until all feeds are there, and the seconds of CPU until then."""
        begun = time.perf_counter()
        self.process = subprocess.Popen([self.binary, "serve", "--config", f"{self.folder}/towpath.toml"],
                                        stdout=subprocess.DEVNULL, env={**os.environ, "TOWPATH_LOG": "error"})
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        first = None
        while True:
            assert self.process.poll() is None, "the server ended"
            try:
                # 503 is an answer, too: feeds are still read.
                response, _ = self.ask("/healthz.json", status=(200, 503))
                first = first or time.perf_counter() - begun
                if response.status == 200:
                    return first, time.perf_counter() - begun, self.cpu()
                time.sleep(0.02)
            except (ConnectionError, http.client.HTTPException):
                self.connection.close()
                time.sleep(0.005)

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait(timeout=3600)

    def cpu(self):
        return cpu_ns([self.process.pid]) / 1e9

    def ask(self, path, method="GET", body=None, status=(200, 201, 307)):
        for is_last in (False, True):
            try:
                self.connection.request(method, path, body)
                response = self.connection.getresponse()
                text = response.read()
                break
            except (http.client.RemoteDisconnected, ConnectionError):
                # The server closes a connection that was idle, or after many requests.
                self.connection.close()
                if is_last:
                    raise
        assert response.status in status, f"{method} {path}: {response.status} {text[:300]}"
        return response, text

    def quiet(self, last=None, limit=3600):
        """Waits until the server used hardly any CPU for a second.

        With `last`, an item, DiffDelta's documents must show it first: a large feed is minted seldom, and waits for that
        without work.
        """
        until = time.monotonic() + limit
        for path in ("/diff/bench/latest.json", "/diff/latest.json") if last else ():
            while time.monotonic() < until and f'"id":"{last}"'.encode() not in self.ask(path)[1]:
                time.sleep(2)
        while time.monotonic() < until:
            before = self.cpu()
            time.sleep(1)
            if self.cpu() - before < 0.02:
                return
        print("  the server still works in the background", flush=True)

    def minted(self, calm=20):
        """Waits until DiffDelta has no document left to mint.

        With many feeds the server is never quiet soon: it counts the changes of each by hour, slowly, beside all else.
        """
        before = None
        while (now := re.search(rb"\ntowpath_diffdelta_mints_total (\d+)", self.ask("/metrics")[1]).group(1)) != before:
            before = now
            time.sleep(calm)

    def cost(self, request, requests=REQUESTS):
        """Microseconds of CPU for each request, in each round."""
        self.ask("/livez")
        values = []
        for _ in range(ROUNDS):
            before = self.cpu()
            for _ in range(requests):
                request()
            values.append((self.cpu() - before) / requests * 1e6)
        return values


def post(server, feed, first, count, size, contents):
    lines = "".join(f'{{"id":"item-{first + n}","content_type":"text/plain","content":"{text}"}}\n'
                    for n, text in enumerate(contents(count, size)))
    server.ask(f"/feeds/{feed}/items", "POST", lines.encode())


def starts(results, server, size):
    """Measures starts after an orderly end, and one after `kill -9`. Leaves the server running."""
    taken = []
    for how in [signal.SIGTERM] * STARTS + [signal.SIGKILL]:
        server.end(how)
        taken.append([1000 * seconds for seconds in server.start()])
    first, ready, cpu = (list(column) for column in zip(*taken))
    results.add("start to the first answer", "ms", first[:STARTS], at=size)
    results.add("start until all feeds are there", "ms", ready[:STARTS], at=size)
    results.add("start until all feeds are there, CPU", "ms of CPU", cpu[:STARTS], at=size)
    results.add("start after kill -9, until all feeds are there", "ms", ready[STARTS:], at=size)
    server.minted(1)
    results.add("memory after the start", "MiB", memory(server.process.pid), at=size)


def verify(results, server, size, changes):
    """Checks the whole folder; the server is stopped meanwhile."""
    server.end()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen([server.binary, "verify", "--format", "json", "--data", f"{server.folder}/data"],
                               stdout=subprocess.PIPE)
    peak = 0.0
    while process.poll() is None:
        try:
            peak = max(peak, memory(process.pid))
        except (FileNotFoundError, KeyError):
            pass  # It ended just now.
        time.sleep(0.02)
    report = json.loads(process.stdout.read())
    assert process.returncode == 0 and report["problem_count"] == 0, report
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    results.add("verify", "µs of CPU per change", spent / changes * 1e6, at=size)
    results.add("memory of verify", "MiB", peak, at=size)
    server.start()


class Appends:
    """CPU and time of appends from one size to the next, with the work in the background that they cause."""

    def __init__(self, server):
        self.server, self.cpu, self.begun = server, server.cpu(), time.perf_counter()

    def record(self, results, size, count, name, wait):
        took = time.perf_counter() - self.begun
        wait()
        results.add(name, "µs of CPU per item", (self.server.cpu() - self.cpu) / count * 1e6, at=size)
        results.add(f"{name}, rate", "items/s", count / took, at=size)


def items(results, binary, folder, largest, item_bytes, contents):
    """One feed: at ten thousand items, and at each tenfold of them."""
    server = Server(binary, folder, 'cache_mib = 64\n[[feed]]\nid = "bench"\n')
    begun, done, size = time.time(), 0, SMALLEST["items"]
    try:
        while size <= largest:
            appends, first = Appends(server), done
            while done < size:
                post(server, "bench", done, BATCH, item_bytes, contents)
                done += BATCH
                if done % 1_000_000 == 0:
                    print(f"  {done} items after {time.time() - begun:.0f} s", flush=True)
            appends.record(results, size, done - first, "append, 1,000 in a request",
                           lambda: server.quiet(f"item-{done - 1}"))
            results.add("memory after publishing", "MiB", memory(server.process.pid), at=size)
            starts(results, server, size)
            reads(results, server, size, begun, time.time())
            single = server.cost(lambda: server.ask("/feeds/bench/items", "POST", json.dumps(
                {"id": f"single-{random.random()}", "content_type": "text/plain",
                 "content": contents(1, item_bytes)[0]}).encode()))
            results.add("append, one in a request", "µs of CPU", single, at=size)
            results.add("memory after reading", "MiB", memory(server.process.pid), at=size)
            verify(results, server, size, done)
            disk_shares(results, f"{server.folder}/data", size, done * item_bytes)
            results.save([server.process.pid])
            print(f"{size} items measured after {time.time() - begun:.0f} s", flush=True)
            size *= 10
        # Last: it takes space of its own.
        replication.snapshot(results, replication.KeepAliveConnection(server.port), server.process, done)
        results.save([server.process.pid])
    finally:
        server.end()


def reads(results, server, size, begun, ended):
    parts = {"beginning": (0, size // 100), "middle": (size * 2 // 5, size * 3 // 5), "end": (size * 99 // 100, size - 60)}
    for name, (low, high) in parts.items():
        since = lambda: f"since=id:item-{random.randint(low, high)}"
        pull = lambda: server.ask(f"/feeds/bench/items?order=created&max=50&timeout=0&{since()}")
        results.add(f"pull of 50 items, {name}", "µs of CPU", server.cost(pull), at=size)

    def page():
        at = datetime.datetime.fromtimestamp(random.uniform(begun, ended), datetime.timezone.utc)
        server.ask(f"/feeds/bench/replication?since={at.isoformat().replace('+00:00', 'Z')}")
    results.add("page by time", "µs of CPU", server.cost(page), at=size)
    item = lambda: server.ask(f"/feeds/bench/items/item-{random.randrange(size)}")
    results.add("one item by id", "µs of CPU", server.cost(item), at=size)


def fill_feeds(port, first, count, item_bytes, contents):
    """Publishes to new feeds, one request each."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    for number in range(first, first + count):
        lines = "".join(f'{{"id":"item-{n}","content_type":"text/plain","content":"{text}"}}\n'
                        for n, text in enumerate(contents(FEED_ITEMS, item_bytes)))
        connection.request("POST", f"/feeds/feed-{number:07}/items", lines)
        response = connection.getresponse()
        text = response.read()
        assert response.status == 200, f"{response.status} {text[:300]}"
        if response.will_close:
            connection.close()
    connection.close()


def feeds(results, binary, folder, largest, item_bytes, contents):
    """One node: with a thousand feeds, and with each tenfold of them."""
    server = Server(binary, folder, "cache_mib = 64\ncreate_feeds = true\n")
    done, size, begun = 0, SMALLEST["feeds"], time.time()
    try:
        while size <= largest:
            appends, count = Appends(server), size - done
            shares = [(done + n * count // WRITERS, done + (n + 1) * count // WRITERS) for n in range(WRITERS)]
            writers = [threading.Thread(target=fill_feeds, args=(server.port, low, high - low, item_bytes, contents))
                       for low, high in shares]
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join()
            done = size
            appends.record(results, size, count * FEED_ITEMS, "append to new feeds, 10 in a request", server.minted)
            results.add("memory after publishing", "MiB", memory(server.process.pid), at=size)
            starts(results, server, size)
            feed = lambda: f"feed-{random.randrange(size):07}"
            pull = lambda: server.ask(f"/feeds/{feed()}/items?order=created&timeout=0")
            results.add("pull of 10 items of any feed", "µs of CPU", server.cost(pull), at=size)
            append = lambda: server.ask(f"/feeds/{feed()}/items", "POST", json.dumps(
                {"id": f"single-{random.random()}", "content_type": "text/plain",
                 "content": contents(1, item_bytes)[0]}).encode())
            results.add("append to any feed, one in a request", "µs of CPU", server.cost(append), at=size)
            latest = lambda: server.ask(f"/diff/{feed()}/latest.json")
            results.add("latest.json of any feed", "µs of CPU", server.cost(latest), at=size)
            results.add("memory after reading", "MiB", memory(server.process.pid), at=size)
            verify(results, server, size, done * FEED_ITEMS)
            disk_shares(results, f"{server.folder}/data", size, done * FEED_ITEMS * item_bytes)
            results.save([server.process.pid])
            print(f"{size} feeds measured after {time.time() - begun:.0f} s", flush=True)
            size *= 10
    finally:
        server.end()


def main(binary, what, largest=None, item_bytes=None, kind="random"):
    largest, item_bytes = int(largest or LARGEST[what]), int(item_bytes or BYTES[what])
    command = f"cargo xtask bench growth {what} {largest} {item_bytes} {kind}"
    results = Results(f"growth-{what}-of-{item_bytes}-bytes-of-{kind}", binary, command)
    contents = text_contents() if kind == "text" else random_contents
    with tempfile.TemporaryDirectory() as folder:
        {"items": items, "feeds": feeds}[what](results, binary, folder, largest, item_bytes, contents)


if __name__ == "__main__":
    main(*sys.argv[1:])
