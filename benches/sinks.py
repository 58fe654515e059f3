"""First sync of a feed into SQLite beside a bare loop; steady state and latency of a running follow.

usage: sinks.py TOWPATH BARE_SQLITE [ITEMS]
"""

import http.client
import json
import os
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

TOWPATH, BARE = sys.argv[1], sys.argv[2]
ITEMS = int(sys.argv[3]) if len(sys.argv) > 3 else 1_000_000
# Batches of the sink's queue.
BATCH = "10000"
STEADY_SECONDS, STEADY_RATE = 10, 10_000
LATENCIES = 200


def publish(connection, lines):
    body = "".join(json.dumps(line) + "\n" for line in lines)
    connection.request("POST", "/feeds/notes/items", body)
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status in (200, 201), text


def item(number):
    return {"id": f"item-{number}", "content": f"{number} " + "x" * 1000, "item": {"title": f"Item {number}"}}


def wait_for(database, sql, expected, limit=300):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        row = database.execute(sql).fetchone()
        if row and row[0] == expected:
            return
        time.sleep(0.001)
    raise SystemExit(f"never: {sql} is {expected}")


def main():
    folder = tempfile.mkdtemp(prefix="sinks-")
    path = lambda name: os.path.join(folder, name)
    with open(path("towpath.toml"), "w") as config:
        config.write('[[feed]]\nid = "notes"\n')
    server = subprocess.Popen([TOWPATH, "serve", "--listen", "127.0.0.1:0"], cwd=folder, stdout=subprocess.PIPE,
                              stderr=open(path("log"), "w"), text=True)
    follower = None
    try:
        base = re.search(r"http://\S+", server.stdout.readline()).group().rstrip("/")
        host = base.removeprefix("http://")
        connection = http.client.HTTPConnection(host)
        for start in range(0, ITEMS, 5000):
            publish(connection, [item(n) for n in range(start, min(start + 5000, ITEMS))])
        url = f"{base}/feeds/notes"

        with open(path("lines"), "wb") as lines:
            subprocess.run([TOWPATH, "follow", url, "--once"], stdout=lines, stderr=subprocess.DEVNULL, check=True)
        bare = float(subprocess.check_output([BARE, path("bare.db"), path("lines"), BATCH]))
        print(f"bare loop: {ITEMS} items of 1 kB in {bare:.1f} s, {ITEMS / bare:.0f} items/s")
        for protocol in ("smart", "replication"):
            start = time.monotonic()
            into = f"sqlite:{path(protocol + '.db')}"
            subprocess.run([TOWPATH, "follow", url, "--protocol", protocol, "--into", into, "--once"],
                           stderr=subprocess.DEVNULL, check=True)
            spent = time.monotonic() - start
            print(f"first sync by {protocol}: {spent:.1f} s, {ITEMS / spent:.0f} items/s, ratio {bare / spent:.2f}")

        follower = subprocess.Popen([TOWPATH, "follow", url, "--into", f"sqlite:{path('smart.db')}"], cwd=folder,
                                    stderr=open(path("follow.log"), "w"))
        database = sqlite3.connect(path("smart.db"))
        database.execute("PRAGMA busy_timeout = 10000")
        time.sleep(1)
        latencies = []
        for number in range(LATENCIES):
            publish(connection, [{"id": "latency", "content": str(number)}])
            appended = time.monotonic()
            wait_for(database, "SELECT content FROM items WHERE id = 'latency'", str(number))
            latencies.append((time.monotonic() - appended) * 1000)
        print(f"latency from acknowledged append to committed row: median {statistics.median(latencies):.1f} ms, "
              f"p99 {statistics.quantiles(latencies, n=100)[98]:.1f} ms")

        before = database.execute("SELECT max(n) FROM changes").fetchone()[0]
        count, batch, start = STEADY_SECONDS * STEADY_RATE, STEADY_RATE // 20, time.monotonic()
        for number in range(0, count, batch):
            publish(connection, [{"id": f"s{n}", "content": "y" * 100} for n in range(number, number + batch)])
            due = start + (number + batch) / STEADY_RATE
            time.sleep(max(0, due - time.monotonic()))
        published = time.monotonic() - start
        wait_for(database, "SELECT max(n) FROM changes", before + count)
        behind = time.monotonic() - start - published
        print(f"steady state: {count / published:.0f} changes/s published for {published:.1f} s, "
              f"the copy was complete {behind * 1000:.0f} ms later")
    finally:
        for process in (follower, server):
            if process:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


main()
