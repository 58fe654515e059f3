"""Memory and start-up time of a towpath with many idle feeds. Usage: python3 benches/feeds.py path/to/towpath [FEEDS]

Publishes one item to each feed through a running server, starts the server again, and asks it for the SUP document.
The memory is the difference to an empty server, with the store's and the global DiffDelta documents' memory.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from results import Results

PORT, THREADS = 18188, 16


def memory(pid):
    with open(f"/proc/{pid}/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    return int(lines["VmRSS"].split()[0]) * 1024


def serve(binary, folder):
    begun = time.time()
    process = subprocess.Popen([binary, "serve", "--config", f"{folder}/towpath.toml"], stdout=subprocess.DEVNULL,
                               env={**os.environ, "TOWPATH_LOG": "warn"})
    while True:
        try:
            get("/healthz.json")
            return process, time.time() - begun
        except (ConnectionError, socket.timeout):
            time.sleep(0.05)


def get(path):
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.headers, body


def publish(first, count):
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
    for number in range(first, first + count):
        connection.request("PUT", f"/feeds/feed-{number:07}/items/a?title=T", b"x", {"Content-Type": "text/plain"})
        response = connection.getresponse()
        response.read()
        assert response.status == 201, response.status
    connection.close()


def stop(process):
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=3600)


def document(results, seconds):
    begun = time.time()
    _, body = get(f"/sup.json?seconds={seconds}")
    first = time.time() - begun
    begun = time.time()
    get(f"/sup.json?seconds={seconds}")
    results.add(f"/sup.json?seconds={seconds} of {len(json.loads(body)['updates'])} feeds", "ms", first * 1000)
    print(f"/sup.json?seconds={seconds}: {len(json.loads(body)['updates'])} feeds, {first * 1000:.1f} ms, "
          f"{(time.time() - begun) * 1000:.1f} ms from memory", flush=True)


def main(binary, feeds):
    results = Results("feeds", binary, "cargo xtask bench sup")
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/towpath.toml", "w") as file:
            file.write(f'[server]\nlisten = "127.0.0.1:{PORT}"\ncreate_feeds = true\ncache_mib = 1\n')
        process, _ = serve(binary, folder)
        empty = memory(process.pid)
        begun = time.time()
        share = feeds // THREADS
        threads = [threading.Thread(target=publish, args=(n * share, share)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"{share * THREADS} feeds published in {time.time() - begun:.0f} s", flush=True)
        stop(process)
        process, started = serve(binary, folder)
        try:
            time.sleep(5)
            used = (memory(process.pid) - empty) / (share * THREADS)
            results.add(f"start with {share * THREADS} feeds", "s", started)
            results.add("memory of an idle feed", "bytes", used)
            print(f"start in {started:.1f} s, {used:.0f} bytes for each idle feed", flush=True)
            document(results, 60)
            document(results, 86400)
        finally:
            stop(process)
    results.save()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 50_000)
