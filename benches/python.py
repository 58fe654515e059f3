"""Changes a second through the Python package's loop, beside the command line: python3 benches/python.py PROGRAM WHEEL [CHANGES]

A server has a feed of CHANGES items (200,000) of 1 kB. The command line and a loop follow it whole, in turn, three times. The
medians of rates and processor times are printed, with the ratio of the processor times, and the time of the import. Then the
loop follows pages that were made before, so that no server's work is measured.
"""

import http.server
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
import zipfile

from results import Results

PORT, ROUNDS, BATCH, PAGE = 18191, 3, 5000, 200
URL = f"http://127.0.0.1:{PORT}/feeds/bench"
LOOP = """
import sys
import towpath

count = size = 0
for change in towpath.follow(sys.argv[1], once=True, protocol="smart"):
    count += 1
    size += len(change.content)
print(count, size)
"""


def serve(program, folder):
    with open(f"{folder}/towpath.toml", "w") as config:
        config.write(f'[server]\nlisten = "127.0.0.1:{PORT}"\ndata = "data"\n[[feed]]\nid = "bench"\n')
    server = subprocess.Popen([program, "serve", "--config", f"{folder}/towpath.toml"], stdout=subprocess.DEVNULL,
                              env={**os.environ, "TOWPATH_LOG": "warn"})
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/livez").close()
            return server
        except OSError:
            time.sleep(0.05)


def publish(changes):
    text = "A boat came in. " * 64
    for first in range(0, changes, BATCH):
        lines = (json.dumps({"id": f"item-{n}", "content_type": "text/plain", "content": text,
                             "item": {"title": f"Boat {n}", "tags": ["harbour"]}})
                 for n in range(first, min(first + BATCH, changes)))
        body = "\n".join(lines).encode()
        urllib.request.urlopen(urllib.request.Request(f"{URL}/items", body, {"Content-Type": "application/x-ndjson"})).close()


class MadeBefore(http.server.BaseHTTPRequestHandler):
    """Pages of a Smart Feed, with the same items again and again, and cursors of their own."""

    protocol_version = "HTTP/1.1"
    changes = 0
    items = json.dumps([{"objectType": "article", "id": f"item-{n}", "displayName": f"Boat {n}", "content": "A boat came in. " * 64,
                         "updated": "2026-01-02T03:04:05Z"} for n in range(PAGE)]).encode()

    def do_GET(self):
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        at = int(query.get("since", ["cursor:0"])[0].removeprefix("cursor:"))
        items, at = (self.items, at + PAGE) if at < self.changes else (b"[]", at)
        head = b'{"count":%d,"last_cursor":"%d","items":' % (PAGE, at)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(head) + len(items) + 1))
        if at < self.changes:
            self.send_header("Link", f'</?order=modified&since=cursor%3A{at}>; rel="next"')
        self.end_headers()
        self.wfile.write(head + items + b"}")

    def log_message(self, *_):
        pass


def made_before(changes, python):
    """Follows pages that were made before; returns the seconds and the processor seconds."""
    MadeBefore.changes = changes
    pages = http.server.ThreadingHTTPServer(("127.0.0.1", 0), MadeBefore)
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{pages.server_port}/"
    runs = []
    for _ in range(ROUNDS):
        seconds, cpu, last = run([sys.executable, "-c", LOOP, address], python)
        assert int(last.split()[0]) == changes, last
        runs.append((seconds, cpu))
    pages.shutdown()
    return runs


def run(command, environment=None):
    """Returns the seconds and the processor seconds of a command, and its output's last line."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    with tempfile.TemporaryFile() as out:
        subprocess.run(command, check=True, stdout=out, env={**os.environ, **(environment or {})})
        seconds = time.time() - begun
        out.seek(max(0, out.tell() - 200))
        last = out.read().splitlines()[-1]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, last


def main():
    program, wheel = sys.argv[1:3]
    changes = int(sys.argv[3]) if len(sys.argv) > 3 else 200_000
    results = Results("python", program, "cargo xtask bench python", Python=sys.version.split()[0])
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(wheel).extractall(f"{folder}/package")
        python = {"PYTHONPATH": f"{folder}/package", "PYTHONDONTWRITEBYTECODE": "1"}
        server = serve(program, folder)
        try:
            publish(changes)
            of_program, of_python = [], []
            for _ in range(ROUNDS):
                of_program.append(run([program, "follow", URL, "--once"])[:2])
                seconds, cpu, last = run([sys.executable, "-c", LOOP, URL], python)
                assert int(last.split()[0]) == changes, last
                of_python.append((seconds, cpu))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=60)
        of_pages = made_before(changes, python)
        imports = [run([sys.executable, "-c", f"{what}print()"], python)[0] for what in ("", "import towpath;") * 10]
    rates = {}
    for name, runs in (("command line", of_program), ("Python", of_python), ("Python, pages made before", of_pages)):
        results.add("a change of 1 kB", "µs of CPU", [cpu / changes * 1e6 for _, cpu in runs], name)
        results.add("changes of 1 kB", "changes/s", [changes / seconds for seconds, _ in runs], name)
        seconds, cpu = (statistics.median(column) for column in zip(*runs))
        rates[name] = cpu
        print(f"{name:25}  {changes / seconds:9,.0f} changes/s  {cpu / changes * 1e6:6.2f} µs of CPU each")
    print(f"CPU of Python / of the command line: {rates['Python'] / rates['command line']:.2f}")
    import_time = statistics.median(imports[1::2]) - statistics.median(imports[::2])
    results.add("import", "ms", import_time * 1000, "Python")
    results.save()
    print(f"import: {import_time * 1000:.0f} ms")


main()
