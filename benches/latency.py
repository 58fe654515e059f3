"""Latency from an append to the answers of 1,000 long polls, at half of what each server carries: towpath, Nchan and
durable-streams-server in one run.

First, each server publishes as fast as it can to 1,000 followers, in turn. It carries as many messages a second as all
followers received. Then messages are published at half of that rate, and at half of the least server's rate, at fixed times:
a late publisher does not move them. Servers are pinned to core 0; the client runs on core 1.
Usage: python3 benches/latency.py path/to/towpath path/to/durable-streams-server path/to/xtask
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

import smart
from nginx import wait_for
from results import Results, version

FOLLOWERS, ROUNDS, SECONDS = 1_000, 3, 5
CONF = """
[server]
listen = "127.0.0.1:{port}"
data = "{folder}/data"
create_feeds = true
"""


def start(folder, binary, streams):
    """Starts the servers; returns them with their names and ports."""
    with open(f"{folder}/towpath.toml", "w") as file:
        file.write(CONF.format(folder=folder, port=smart.TOWPATH_PORT))
    with open(f"{folder}/nginx.conf", "w") as file:
        file.write(smart.NGINX_CONF.format(folder=folder, port=smart.NGINX_PORT))
    # Short polls, so that followers notice the end of a run soon.
    environment = {**os.environ, **smart.STREAMS_CONF, "DS_TRANSPORT__CONNECTION__LONG_POLL_TIMEOUT_SECS": "1"}
    commands = {"towpath": (smart.TOWPATH_PORT, [binary, "serve", "--config", f"{folder}/towpath.toml"]),
                "nchan": (smart.NGINX_PORT, ["nginx", "-c", f"{folder}/nginx.conf", "-p", folder]),
                "durable-streams-server": (smart.STREAMS_PORT, [streams])}
    return {name: (port, subprocess.Popen(["taskset", "-c", "0", *command], stdout=subprocess.DEVNULL, cwd=folder,
                                          env=environment))
            for name, (port, command) in commands.items()}


class Client:
    """Runs the client against one server at a time, each time on a new channel."""

    def __init__(self, program):
        self.program, self.runs = program, 0

    def run(self, name, port, rate=None):
        self.runs += 1
        channel = f"channel{self.runs}"
        if name == "durable-streams-server":
            urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/v1/stream/{channel}", method="PUT",
                                                          headers={"Content-Type": "text/plain"}))
        if name == "towpath":
            urllib.request.urlopen(f"http://127.0.0.1:{port}/feeds/{channel}/items", b'{"id":"first","content":""}').read()
        options = [str(FOLLOWERS)] + ([f"{rate:.2f}"] if rate else [])
        done = subprocess.run([self.program, "fanout", name, str(port), channel, str(SECONDS), *options],
                              capture_output=True, text=True)
        assert done.returncode == 0, f"{name}: {done.stderr[-500:]}"
        found = json.loads(done.stdout)
        print(f"{name}{f' at {rate:.0f} messages/s' if rate else ''}: {found}", flush=True)
        return found


def latencies(results, client, servers, rates, name):
    """Alternates the servers at their rates, and records percentiles of each round."""
    found = {server: [] for server in servers}
    for _ in range(ROUNDS):
        for server, (port, _) in servers.items():
            found[server].append(client.run(server, port, rates[server]))
    for percentile, key in (("p50", "p50_us"), ("p99", "p99_us"), ("p99.9", "p999_us")):
        for server, rounds in found.items():
            results.add(f"{percentile} of append to answer, {name}", "ms", [one[key] / 1000 for one in rounds], server)
    for server, rounds in found.items():
        results.add(f"share of messages that came, {name}", "×",
                    [one["delivered"] / one["published"] / FOLLOWERS for one in rounds], server)


def main(binary, streams, program):
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    results = Results("latency", binary, "cargo xtask bench latency", nginx=version("nginx", "-v"),
                      **{"durable-streams-server": "0.3.0"})
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        servers = start(folder, binary, streams)
        try:
            wait_for(f"http://127.0.0.1:{smart.TOWPATH_PORT}/healthz.json")
            time.sleep(2)
            os.sched_setaffinity(0, {1})
            client, carried = Client(program), {name: [] for name in servers}
            for _ in range(ROUNDS):
                for name, (port, _) in servers.items():
                    carried[name].append(client.run(name, port)["deliveries_per_second"] / FOLLOWERS)
            for name, rounds in carried.items():
                results.add("messages carried to 1,000 followers", "messages/s", rounds, name)
            half = {name: statistics.median(rounds) / 2 for name, rounds in carried.items()}
            for name, rate in half.items():
                results.add("published, half of the own capacity", "messages/s", rate, name)
            latencies(results, client, servers, half, "half of the own capacity")
            least = min(half.values())
            for name in servers:
                results.add("published, half of the least capacity", "messages/s", least, name)
            latencies(results, client, servers, dict.fromkeys(servers, least), "half of the least capacity")
        finally:
            for _, process in servers.values():
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=60)
    results.save()


if __name__ == "__main__":
    main(*sys.argv[1:])
