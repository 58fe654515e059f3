"""CPU for each request of towpath, and of nginx serving the same bytes as static files.

nginx runs with its defaults, and with sendfile: then the kernel sends its cached pages without a copy, which matters
for large bodies.

One run, server pinned to core 0 and load (wrk, 64 connections) to core 1, alternating rounds, medians.
Usage: python3 benches/nginx.py path/to/towpath
"""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from results import Results, cpu_ns, version

ROUNDS = 5
SECONDS = 3
CONNECTIONS = 64
NGINX_PORT, SENDFILE_PORT, TOWPATH_PORT = 18081, 18084, 18082

NGINX_CONF = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000000; default_type application/json;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  add_header Cache-Control "public, max-age=60, must-revalidate";
  add_header CDN-Cache-Control "public, max-age=60, must-revalidate";
  server {{ listen 127.0.0.1:{port}; root {folder}/www; }}
  server {{ listen 127.0.0.1:{sendfile_port}; root {folder}/www; sendfile on; tcp_nopush on; }}
}}
"""

TOWPATH_CONF = """
[server]
listen = "127.0.0.1:{port}"
data = "{folder}/data"
[[feed]]
id = "bench"
"""


def get(url):
    with urllib.request.urlopen(url) as response:
        return response.read(), response.headers["ETag"]


def load(url, etag):
    """Runs wrk; returns the number of completed requests."""
    headers = ["-H", f"If-None-Match: {etag}"] if etag else []
    command = ["taskset", "-c", "1", "wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", "--latency", *headers, url]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in out and not etag:
        sys.exit(f"errors from {url}:\n{out}")
    return int(re.search(r"(\d+) requests in", out).group(1))


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def wait_for(url):
    for _ in range(200):
        try:
            return get(url)
        except OSError:
            time.sleep(0.05)
    sys.exit(f"{url} does not answer")


def publish(count, size):
    lines = "".join(
        json.dumps({"id": f"item-{n}", "content_type": "text/plain",
                    "content": f"{n:05} ".ljust(size, "x"), "item": {"title": f"Item {n}"}}) + "\n"
        for n in range(count))
    request = urllib.request.Request(
        f"http://127.0.0.1:{TOWPATH_PORT}/feeds/bench/items", data=lines.encode(), method="POST")
    urllib.request.urlopen(request).read()


def compare(results, name, path, conditional, goal, servers):
    per_request = {server: [] for server in servers}
    for _ in range(ROUNDS):
        for server, (port, pids) in servers.items():
            url = f"http://127.0.0.1:{port}{path}"
            etag = get(url)[1] if conditional else None
            before = cpu_ns(pids)
            done = load(url, etag)
            per_request[server].append((cpu_ns(pids) - before) / done / 1000)
    for server, values in per_request.items():
        results.add(name, "µs of CPU", values, server, goal=goal)
    medians = {server: statistics.median(values) for server, values in per_request.items()}
    ratio = medians["towpath"] / medians["nginx"]
    shown = ", ".join(f"{server} {value:.2f} µs" for server, value in medians.items())
    print(f"{name}: {shown}; towpath/nginx {ratio:.3f} (to reach: {goal})", flush=True)


def main(binary):
    results = Results("http", binary, "cargo xtask bench http", nginx=version("nginx", "-v"), wrk=version("wrk", "-v"))
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        try:
            with open(f"{folder}/towpath.toml", "w") as file:
                file.write(TOWPATH_CONF.format(folder=folder, port=TOWPATH_PORT))
            processes.append(subprocess.Popen(
                ["taskset", "-c", "0", binary, "serve", "--config", f"{folder}/towpath.toml"],
                stdout=subprocess.DEVNULL))
            wait_for(f"http://127.0.0.1:{TOWPATH_PORT}/healthz.json")
            publish(75, 300)
            time.sleep(2)
            os.makedirs(f"{folder}/www/diff/bench")
            for name in ("head.json", "latest.json"):
                body, _ = get(f"http://127.0.0.1:{TOWPATH_PORT}/diff/bench/{name}")
                print(f"{name}: {len(body)} bytes")
                with open(f"{folder}/www/diff/bench/{name}", "wb") as file:
                    file.write(body)
            os.chmod(folder, 0o755)
            with open(f"{folder}/nginx.conf", "w") as file:
                file.write(NGINX_CONF.format(folder=folder, port=NGINX_PORT, sendfile_port=SENDFILE_PORT))
            processes.append(subprocess.Popen(
                ["taskset", "-c", "0", "nginx", "-c", f"{folder}/nginx.conf", "-p", folder]))
            wait_for(f"http://127.0.0.1:{NGINX_PORT}/diff/bench/head.json")
            time.sleep(0.5)
            towpath, nginx = processes
            workers = children(nginx.pid)
            servers = {"nginx": (NGINX_PORT, workers), "nginx with sendfile": (SENDFILE_PORT, workers),
                       "towpath": (TOWPATH_PORT, [towpath.pid])}
            compare(results, "304 on head", "/diff/bench/head.json", True, "0.95", servers)
            compare(results, "200 of latest", "/diff/bench/latest.json", False, "0.80", servers)
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=30)
    results.save()


if __name__ == "__main__":
    main(sys.argv[1])
