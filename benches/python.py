"""Changes a second through the Python package's loop, beside the command line: python3 benches/python.py PROGRAM WHEEL [CHANGES]

A server has a feed of CHANGES items (200,000) of 1 kB. The command line and a loop follow it whole, in turn, three times. The
medians of rates and processor times are printed, with the ratio of the processor times, and the time of the import.
"""

import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile

PORT, ROUNDS, BATCH = 18191, 3, 5000
URL = f"http://127.0.0.1:{PORT}/feeds/bench"
LOOP = """
import sys
import towpath

count = size = 0
for change in towpath.follow(sys.argv[1], once=True):
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
        imports = [run([sys.executable, "-c", f"{what}print()"], python)[0] for what in ("", "import towpath;") * 10]
    rates = {}
    for name, runs in (("command line", of_program), ("Python", of_python)):
        seconds, cpu = (statistics.median(column) for column in zip(*runs))
        rates[name] = cpu
        print(f"{name:12}  {changes / seconds:9,.0f} changes/s  {cpu / changes * 1e6:6.2f} µs of CPU each")
    print(f"CPU of Python / of the command line: {rates['Python'] / rates['command line']:.2f}")
    import_time = statistics.median(imports[1::2]) - statistics.median(imports[::2])
    print(f"import: {import_time * 1000:.0f} ms")


main()
