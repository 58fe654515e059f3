"""Cost of a hot backup: publishing alone, and while the whole data folder is backed up, in turns.

Usage: python3 benches/backup.py path/to/towpath [GIGABYTES]

Fills a feed with texts that do not compress until the data folder has the size, then publishes items of 1 kB to another
feed over 16 connections. Prints the items published per second in each turn, the ratio of the medians, and how long a
backup takes. Needs three times the size of free disk under TMPDIR.
"""

import http.client
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from growth import disk, random_contents
from nginx import wait_for
from results import Results

PORT, FILLERS, CONTENT_BYTES, BATCH = 18193, 4, 100_000, 20
TURNS, TURN_SECONDS, CONNECTIONS = 5, 20, 16

PUBLISH = """
local thread, count = 0, 0
function setup(t) t:set("number", thread); thread = thread + 1 end
function init() content = string.rep("0123456789abcde ", 62) end
function request()
  count = count + 1
  local body = '{"id":"' .. number .. "-" .. os.time() .. "-" .. count .. '","content":"' .. content .. '"}'
  return wrk.format("POST", "/feeds/notes/items", {["Content-Type"] = "application/x-ndjson"}, body)
end
"""


def fill(count, name):
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
    for first in range(0, count, BATCH):
        lines = [json.dumps({"id": f"{name}-{first + n}", "content": content})
                 for n, content in enumerate(random_contents(BATCH, CONTENT_BYTES))]
        connection.request("POST", "/feeds/archive/items", "\n".join(lines), {"Content-Type": "application/x-ndjson"})
        response = connection.getresponse()
        body = response.read()
        assert response.status < 300, (response.status, body)


def filled(folder, gigabytes):
    """Size of the data folder in gigabytes once it has the size that was asked for."""
    part = 0
    while disk(f"{folder}/data") < gigabytes * 1e9:
        # Each content is in the log and in DiffDelta's documents, which are written later.
        count = 100_000_000 // CONTENT_BYTES // FILLERS
        threads = [threading.Thread(target=fill, args=(count, f"{part}-{name}")) for name in range(FILLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        part += 1
    time.sleep(30)  # for what is still published and merged
    return disk(f"{folder}/data") / 1e9


def published(folder):
    """Items published per second during a turn."""
    done = subprocess.run(["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{TURN_SECONDS}s", "--timeout", "60s", "-s",
                           f"{folder}/publish.lua", f"http://127.0.0.1:{PORT}"],
                          capture_output=True, text=True, check=True).stdout
    assert "Non-2xx" not in done, done
    return float(done.split("Requests/sec:")[1].split()[0])


def turn_beside_backup(binary, folder):
    """Items published per second while a backup is made; its duration in seconds."""
    place = f"{folder}/backups"
    begun = time.time()
    backup = subprocess.Popen([binary, "backup", place, "--config", f"{folder}/towpath.toml"],
                              stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    time.sleep(1)
    rate = published(folder)
    is_whole_turn = backup.poll() is None
    assert backup.wait(timeout=3600) == 0
    took = time.time() - begun
    shutil.rmtree(place)
    if not is_whole_turn:
        print(f"the backup took {took:.0f} s, less than a turn: take more gigabytes", flush=True)
    return rate, took


def main(binary, gigabytes):
    results = Results("backup", binary, f"cargo xtask bench backup {gigabytes}")
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/towpath.toml", "w") as file:
            file.write(f'[server]\nlisten = "127.0.0.1:{PORT}"\ndata = "{folder}/data"\n'
                       '[[feed]]\nid = "archive"\n[[feed]]\nid = "notes"\n')
        with open(f"{folder}/publish.lua", "w") as file:
            file.write(PUBLISH)
        server = subprocess.Popen([binary, "serve", "--config", f"{folder}/towpath.toml"], stdout=subprocess.DEVNULL,
                                  env={**os.environ, "TOWPATH_LOG": "warn"})
        try:
            wait_for(f"http://127.0.0.1:{PORT}/healthz.json")
            filled_size = filled(folder, gigabytes)
            print(f"a data folder of {filled_size:.1f} GB", flush=True)
            alone, beside, durations = [], [], []
            for turn in range(TURNS):
                alone.append(published(folder))
                rate, took = turn_beside_backup(binary, folder)
                beside.append(rate)
                durations.append(took)
                print(f"turn {turn + 1}: {alone[-1]:.0f} items/s alone, {rate:.0f} beside a backup of {took:.0f} s",
                      flush=True)
            ratio = statistics.median(beside) / statistics.median(alone)
            results.add("items published beside a backup", "items/s", beside, goal=0.9)
            results.add("items published beside a backup", "items/s", alone, "without one")
            results.add("data folder", "GB", filled_size)
            results.add("backup", "s", durations)
            results.save([server.pid])
            print(f"publishing beside a backup: {ratio:.2f} of publishing alone (medians)", flush=True)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=60)


main(os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10)
