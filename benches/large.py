"""A feed of ten million items: time to find a page by time and to pull 50 items, and the memory of a snapshot.

Usage: python3 benches/large.py path/to/towpath [ITEMS]
"""

import signal
import subprocess
import sys
import tempfile
import time

import replication
import smart
from nginx import wait_for

PORT = 18186
ITEM_BYTES = 100


def main(binary, items):
    replication.PORT = smart.TOWPATH_PORT = PORT
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/towpath.toml", "w") as file:
            file.write(replication.CONF.format(folder=folder, port=PORT))
        towpath = subprocess.Popen([binary, "serve", "--config", f"{folder}/towpath.toml"],
                                   stdout=subprocess.DEVNULL)
        try:
            wait_for(f"http://127.0.0.1:{PORT}/healthz.json")
            began, done, shown = time.time(), 0, 1000
            while done < items:
                connection = replication.KeepAliveConnection(PORT)
                while done < min(shown, items):
                    replication.publish(connection, done, 1000, ITEM_BYTES)
                    done += 1000
                shown *= 10
                replication.wait_until_idle(towpath.pid)
                replication.lookups(replication.KeepAliveConnection(PORT), towpath, done, began)
            print(f"published {items} items in {time.time() - began:.0f} s", flush=True)
            smart.pulls(smart.BenchServer("towpath", PORT, [towpath.pid]), folder, "bench", items)
            replication.snapshot(replication.KeepAliveConnection(PORT), towpath, items)
        finally:
            towpath.send_signal(signal.SIGTERM)
            towpath.wait(timeout=120)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10_000_000)
