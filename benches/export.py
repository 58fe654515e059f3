"""Exports of many feeds: a full one, one without changes, one with a few changed feeds.

Usage: python3 benches/export.py path/to/towpath [FEEDS] [CHANGED]

Publishes some items to each feed through a running server, and exports into a folder. Prints the documents that each
export wrote, the duration of the command, its CPU time and its peak memory.
"""

import http.client
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

from results import Results

PORT, THREADS, ITEMS = 18189, 16, 5


def serve(binary, folder):
    process = subprocess.Popen([binary, "serve", "--config", f"{folder}/towpath.toml"], stdout=subprocess.DEVNULL,
                               env={**os.environ, "TOWPATH_LOG": "warn"})
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
            connection.request("GET", "/healthz.json")
            connection.getresponse().read()
            return process
        except ConnectionError:
            time.sleep(0.05)


def publish(feeds, round):
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
    for number in feeds:
        lines = [json.dumps({"id": f"{round}-{n}", "content": "some text " * 20, "item": {"title": f"T{n}"}})
                 for n in range(ITEMS)]
        connection.request("POST", f"/feeds/feed-{number:07}/items", "\n".join(lines),
                           {"Content-Type": "application/x-ndjson"})
        response = connection.getresponse()
        body = response.read()
        assert response.status < 300, (response.status, body)


def published(binary, folder, feeds, round):
    server = serve(binary, folder)
    threads = [threading.Thread(target=publish, args=(feeds[n::THREADS], round)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.send_signal(signal.SIGTERM)
    server.wait(timeout=3600)


def export(results, binary, folder, name):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.time()
    done = subprocess.run([binary, "export", f"{folder}/tree", "--config", f"{folder}/towpath.toml"],
                          capture_output=True, text=True, check=True)
    took = time.time() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    results.add(f"export, {name}", "s", took)
    results.add(f"export, {name}, CPU", "s of CPU", cpu)
    print(f"{name}: {done.stderr.strip().splitlines()[-1]}; command {took:.2f} s, CPU {cpu:.2f} s", flush=True)


def main():
    binary = os.path.abspath(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    changed = int(sys.argv[3]) if len(sys.argv) > 3 else 10
    results = Results("export", binary, "cargo xtask bench export")
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/towpath.toml", "w") as file:
            file.write(f'[server]\nlisten = "127.0.0.1:{PORT}"\ncreate_feeds = true\n')
        published(binary, folder, range(count), 0)
        export(results, binary, folder, f"{count} feeds")
        export(results, binary, folder, "no changes")
        published(binary, folder, range(0, count, count // changed), 1)
        export(results, binary, folder, f"{changed} feeds changed")
        export(results, binary, folder, "no changes again")
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        results.add("memory of the largest process, at most", "MB", peak / 1024)
        print(f"peak memory of the largest process: {peak / 1024:.0f} MB")
    results.save()


main()
