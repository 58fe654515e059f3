"""Memory of a towpath that polls 1,000 sources of 100 items each. Usage: python3 benches/memory.py path/to/towpath"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

from results import Results

SOURCES, ITEMS, PORT = 1000, 100, 18187
SECONDS = 60


def feed(number):
    return f"""
[[feed]]
id = "feed-{number:04}"
[feed.source]
url = "feed-{number:04}.json"
every = "20s"
"""


def document(number, round_):
    items = [{"id": f"{number}-{n}", "title": f"Item {n}", "content_text": f"{round_ if n == 0 else 0} ".ljust(400, "x"),
              "url": f"https://example.com/{number}/{n}", "date_published": "2025-01-01T00:00:00Z"}
             for n in range(ITEMS)]
    return json.dumps({"version": "https://jsonfeed.org/version/1.1", "title": f"Feed {number}", "items": items})


def memory(pid):
    with open(f"/proc/{pid}/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    return int(lines["VmRSS"].split()[0]) / 1024, int(lines["VmHWM"].split()[0]) / 1024


def main(binary):
    results = Results("memory", binary, "cargo xtask bench poll")
    with tempfile.TemporaryDirectory() as folder:
        def write(round_):
            for number in range(SOURCES):
                with open(f"{folder}/feed-{number:04}.json", "w") as file:
                    file.write(document(number, round_))
        write(0)
        with open(f"{folder}/towpath.toml", "w") as file:
            file.write(f'[server]\nlisten = "127.0.0.1:{PORT}"\n' + "".join(map(feed, range(SOURCES))))
        process = subprocess.Popen([binary, "serve", "--config", f"{folder}/towpath.toml"],
                                   stdout=subprocess.DEVNULL, env={**os.environ, "TOWPATH_LOG": "warn"})
        try:
            until = time.time() + SECONDS
            round_ = 0
            while time.time() < until:
                time.sleep(SECONDS / 4)
                round_ += 1
                write(round_)
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/healthz.json") as response:
                health = json.load(response)
            resident, peak = memory(process.pid)
            results.add(f"memory with {SOURCES} sources of {ITEMS} items", "MB", resident, goal="below 200")
            results.add(f"memory with {SOURCES} sources of {ITEMS} items, at most", "MB", peak)
            print(f"{SOURCES} sources of {ITEMS} items, {health['sources_ok']} ok: "
                  f"{resident:.0f} MB resident, {peak:.0f} MB at most (to reach: below 200)")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
    results.save()


if __name__ == "__main__":
    main(sys.argv[1])
