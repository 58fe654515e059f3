"""Data Replication: sealed pages compared with nginx, a cold follower with plain GETs, pages found by time.

1. CPU per byte of a sealed page, and of nginx serving the same bytes as a static file, with and without sendfile.
2. A cold follower of every item, and a client that only reads the same pages one after the other. Both start with
   pages that are not in the server's memory.
3. The server's CPU and memory for a snapshot.
4. The server's CPU for finding the page of a random time, as the feed grows.

Usage: python3 benches/replication.py path/to/towpath [ITEMS]
"""

import datetime
import http.client
import json
import os
import random
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from nginx import children, wait_for
from results import Results, cpu_ns, version

PORT, NGINX_PORT, SENDFILE_PORT = 18182, 18181, 18184
ROUNDS, SECONDS, CONNECTIONS = 3, 3, 8
LOOKUPS = 500

NGINX_CONF = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000000; default_type application/octet-stream;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{ listen 127.0.0.1:{port}; root {folder}/www; }}
  server {{ listen 127.0.0.1:{sendfile_port}; root {folder}/www; sendfile on; tcp_nopush on; }}
}}
"""

CONF = """
[server]
listen = "127.0.0.1:{port}"
data = "{folder}/data"
[[feed]]
id = "bench"
"""


class KeepAliveConnection:
    """A keep-alive connection to the server."""

    def __init__(self, port=PORT):
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=600)

    def ask(self, path, method="GET", body=None):
        self.http.request(method, path, body)
        response = self.http.getresponse()
        return response, response.read()


def publish(connection, first, count, size):
    body = "".join(
        json.dumps({"id": f"item-{n}", "content_type": "text/plain", "content": f"{n:09} ".ljust(size, "x")}) + "\n"
        for n in range(first, first + count))
    response, answer = connection.ask("/feeds/bench/items", "POST", body)
    assert response.status == 200, answer


def has_next(response):
    """Returns true if a page names the next one: then it is sealed."""
    return re.search('rel="?next', str(response.headers)) is not None


def wait_until_idle(pid):
    """Waits until the server has published all items and uses hardly any CPU."""
    while True:
        before = cpu_ns([pid])
        time.sleep(1)
        if cpu_ns([pid]) - before < 20_000_000:
            return


def sealed_page(results, folder, towpath):
    path = "/feeds/bench/replication/pages/1"
    response, body = KeepAliveConnection().ask(path)
    assert has_next(response), "the page is not sealed"
    os.makedirs(f"{folder}/www{os.path.dirname(path)}")
    with open(f"{folder}/www{path}", "wb") as file:
        file.write(body)
    os.chmod(folder, 0o755)
    with open(f"{folder}/nginx.conf", "w") as file:
        file.write(NGINX_CONF.format(folder=folder, port=NGINX_PORT, sendfile_port=SENDFILE_PORT))
    nginx = subprocess.Popen(["nginx", "-c", f"{folder}/nginx.conf", "-p", folder])
    try:
        wait_for(f"http://127.0.0.1:{NGINX_PORT}{path}")
        time.sleep(0.3)
        workers = children(nginx.pid)
        servers = {"nginx": (NGINX_PORT, workers), "nginx with sendfile": (SENDFILE_PORT, workers),
                   "towpath": (PORT, [towpath.pid])}
        spent = {server: [] for server in servers}
        for _ in range(ROUNDS):
            for server, (port, pids) in servers.items():
                url = f"http://127.0.0.1:{port}{path}"
                before = cpu_ns(pids)
                out = subprocess.run(["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", url],
                                     capture_output=True, text=True, check=True).stdout
                done = int(re.search(r"(\d+) requests in", out).group(1))
                spent[server].append((cpu_ns(pids) - before) / done / len(body))
        for server, values in spent.items():
            results.add("a sealed page, per byte", "ns of CPU", values, server, goal="1")
        medians = {server: statistics.median(values) for server, values in spent.items()}
        shown = ", ".join(f"{server} {value:.3f} ns" for server, value in medians.items())
        ratio = medians["towpath"] / medians["nginx"]
        print(f"CPU per byte of a sealed page of {len(body)} bytes: {shown}; towpath/nginx {ratio:.2f} (to reach: 1)",
              flush=True)
    finally:
        nginx.send_signal(signal.SIGTERM)
        nginx.wait(timeout=30)


def cold_follower(results, binary, towpath, items):
    connection = KeepAliveConnection()
    before, began = cpu_ns([towpath.pid]), time.monotonic()
    number, size = 1, 0
    while True:
        response, body = connection.ask(f"/feeds/bench/replication/pages/{number}")
        assert response.status == 200
        size += len(body)
        if not has_next(response):
            break
        number += 1
    plain = time.monotonic() - began
    spent = (cpu_ns([towpath.pid]) - before) / 1e9
    print(f"plain GETs: {number} pages, {size >> 20} MiB in {plain:.1f} s, {items / plain:.0f} items/s; "
          f"server CPU {spent:.1f} s", flush=True)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    before, began = cpu_ns([towpath.pid]), time.monotonic()
    url = f"http://127.0.0.1:{PORT}/feeds/bench/replication"
    counted = subprocess.run(f"{binary} follow {url} --protocol replication --once | wc -l",
                             shell=True, capture_output=True, text=True, check=True)
    assert int(counted.stdout) == items, counted.stdout
    took = time.monotonic() - began
    spent = (cpu_ns([towpath.pid]) - before) / 1e9
    results.add("a cold follower", "items/s", items / plain, "plain GETs", goal="0.5")
    results.add("a cold follower", "items/s", items / took, goal="0.5")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
    print(f"cold follower: {items} items in {took:.1f} s, {items / took:.0f} items/s, {plain / took:.2f} of the plain "
          f"GETs (to reach: 0.5); its CPU {own:.1f} s, {own / took:.0%} of the time; server CPU {spent:.1f} s; "
          f"largest child {after.ru_maxrss >> 10} MiB", flush=True)


def snapshot(results, connection, towpath, items):
    """Measures a snapshot: its duration, and the process's memory before and at its peak."""
    def memory(name):
        with open(f"/proc/{towpath.pid}/status") as status:
            return int(re.search(name + r":\s+(\d+)", status.read()).group(1)) >> 10
    with open(f"/proc/{towpath.pid}/clear_refs", "w") as file:
        file.write("5")
    before, began = memory("VmRSS"), time.monotonic()
    response, index = connection.ask("/feeds/bench/snapshots", "POST")
    assert response.status == 201, index
    took = time.monotonic() - began
    results.add("snapshot", "items/s", items / took)
    results.add("memory before a snapshot", "MiB", before)
    results.add("memory during a snapshot, at most", "MiB", memory("VmHWM"))
    print(f"snapshot of {items} items: {len(json.loads(index)['pages'])} pages in {took:.1f} s, "
          f"{items / took:.0f} items/s; memory {before} MiB before, at most {memory('VmHWM')} MiB meanwhile", flush=True)


def lookups(results, connection, towpath, items, began):
    span = time.time() - began
    spent, took = [], []
    for _ in range(LOOKUPS):
        at = datetime.datetime.fromtimestamp(began + random.random() * span, datetime.timezone.utc)
        path = f"/feeds/bench/replication?since={at.isoformat().replace('+00:00', 'Z')}"
        before, start = cpu_ns([towpath.pid]), time.perf_counter()
        response, _ = connection.ask(path)
        took.append(time.perf_counter() - start)
        spent.append(cpu_ns([towpath.pid]) - before)
        assert response.status == 307
    results.add("page by time", "µs of CPU", [value / 1000 for value in spent], at=items)
    print(f"the page of a time among {items} items: {statistics.median(spent) / 1000:.0f} µs of the server's CPU, "
          f"{statistics.median(took) * 1e6:.0f} µs in all (medians)", flush=True)


def main(binary, items):
    results = Results("replication", binary, "cargo xtask bench replication", nginx=version("nginx", "-v"), wrk=version("wrk", "-v"))
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/towpath.toml", "w") as file:
            file.write(CONF.format(folder=folder, port=PORT))
        towpath = subprocess.Popen([binary, "serve", "--config", f"{folder}/towpath.toml"],
                                   stdout=subprocess.DEVNULL)
        try:
            wait_for(f"http://127.0.0.1:{PORT}/healthz.json")
            connection = KeepAliveConnection()
            began, done, shown = time.time(), 0, 1000
            while done < items:
                publish(connection, done, 1000, 1000)
                done += 1000
                if done == shown:
                    wait_until_idle(towpath.pid)
                    # The server closes a connection that was idle for 30 seconds.
                    connection = KeepAliveConnection()
                    lookups(results, connection, towpath, done, began)
                    shown *= 10
            print(f"published in {time.time() - began:.0f} s", flush=True)
            wait_until_idle(towpath.pid)
            connection = KeepAliveConnection()
            if shown != items * 10:
                lookups(results, connection, towpath, done, began)
            snapshot(results, connection, towpath, items)
            cold_follower(results, binary, towpath, items)
            sealed_page(results, folder, towpath)
        finally:
            towpath.send_signal(signal.SIGTERM)
            towpath.wait(timeout=60)
    results.save()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000)
