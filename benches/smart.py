"""Long polls of towpath, Nchan (nginx's long-polling module) and durable-streams-server, in one run; and pulls of 50
items.

Measures memory of idle long polls (without the kernel's memory for sockets), time from an append to the responses, CPU
for each wake and re-arm, and CPU for each pull. Servers are pinned to core 0, this client runs on core 1. Pulls are timed
on one connection: a new one for each, by Python's library, takes longer than the pull.
Usage: python3 benches/smart.py path/to/towpath path/to/durable-streams-server path/to/xtask [parts, as idle,one,crowd]
[idle polls] [items of the large feed]
"""

import json
import os
import re
import resource
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from results import Results, cpu_ns, version

NGINX_PORT, TOWPATH_PORT, STREAMS_PORT = 18083, 18084, 18085
ROUNDS = 200
CROWD = 10_000
CROWD_ROUNDS = 7
PARTS = ["idle", "one", "crowd", "fanout", "pulls"]
FANOUT_ROUNDS, FANOUT_SECONDS = 3, 4

NGINX_CONF = """
load_module /usr/lib/nginx/modules/ngx_nchan_module.so;
daemon off; worker_processes 1; worker_rlimit_nofile 100000; pid {folder}/nginx.pid;
error_log {folder}/error.log; events {{ worker_connections 50000; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 600s; nchan_shared_memory_size 256M;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{ listen 127.0.0.1:{port} backlog=4096;
    location = /pub {{ nchan_publisher; nchan_channel_id bench; nchan_message_timeout 1m; }}
    location = /sub {{ nchan_subscriber longpoll; nchan_channel_id bench;
      nchan_subscriber_first_message newest; nchan_subscriber_timeout 0; }}
    location = /fan/pub {{ nchan_publisher; nchan_channel_id $arg_channel; nchan_message_timeout 5m;
      nchan_message_buffer_length 10000000; }}
    location = /fan/sub {{ nchan_subscriber longpoll; nchan_channel_id $arg_channel;
      nchan_subscriber_first_message oldest; nchan_subscriber_timeout 1; }} }}
}}
"""

TOWPATH_CONF = """
[server]
listen = "127.0.0.1:{port}"
data = "{folder}/data"
[[feed]]
id = "bench"
[[feed]]
id = "large"
[[feed]]
id = "fan0"
[[feed]]
id = "fan1"
[[feed]]
id = "fan2"
"""

STREAM = "/v1/stream/bench"
STREAMS_CONF = {"DS_SERVER__BIND_ADDRESS": f"127.0.0.1:{STREAMS_PORT}", "RUST_LOG": "off",
                "DS_OBSERVABILITY__RUST_LOG": "off", "DS_TRANSPORT__CONNECTION__LONG_POLL_TIMEOUT_SECS": "300"}


def get(path):
    with urllib.request.urlopen(f"http://127.0.0.1:{TOWPATH_PORT}{path}") as response:
        return response.read()


def resident(pids):
    """Proportional set size, in bytes: each process has its share of the pages that it shares."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            total += int(re.search(r"Pss:\s+(\d+) kB", file.read()).group(1)) * 1024
    return total


class BenchServer:
    """Requests of one server: publishing, and long polls for the next message."""

    def __init__(self, name, port, pids):
        self.name, self.port, self.pids, self.count = name, port, pids, 0
        self.publisher = self.connect()
        self.cursor = None

    def connect(self):
        stream = socket.create_connection(("127.0.0.1", self.port))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return stream

    def send_publish(self):
        self.count += 1
        if self.name == "towpath":
            line = json.dumps({"id": f"item-{self.count}", "item": {"title": "t"}}).encode()
            path = "/feeds/bench/items"
        else:
            line, path = b"x" * 300, "/pub" if self.name == "nchan" else STREAM
        kind = "Content-Type: text/plain\r\n" if self.name == "durable-streams-server" else ""
        self.publisher.sendall(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{kind}Content-Length: {len(line)}\r\n\r\n".encode() + line)

    def poll_request(self):
        if self.name == "durable-streams-server":
            return f"GET {STREAM}?offset={self.cursor}&live=long-poll HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        if self.name == "nchan":
            return f"GET /sub HTTP/1.1\r\nHost: localhost\r\n{self.cursor or ''}\r\n".encode()
        since = f"&since=cursor:{self.cursor}" if self.cursor else ""
        return f"GET /feeds/bench/items?order=modified{since}&timeout=300 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()

    def refresh(self):
        """Moves the cursor of the next polls to the end of the feed."""
        if self.name == "towpath":
            page = json.loads(get("/feeds/bench/items?order=-modified&max=1&timeout=0"))
            self.cursor = page.get("last_cursor")
        if self.name == "durable-streams-server":
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{STREAM}") as response:
                self.cursor = response.headers["Stream-Next-Offset"]

    def move_past(self, answer):
        """Moves Nchan's position to the message of a response, so that its next poll misses nothing, as towpath's."""
        if self.name == "nchan":
            etag, modified = (re.search(name + r": (.*)\r\n", answer.decode()).group(1)
                              for name in ("Etag", "Last-Modified"))
            self.cursor = f"If-None-Match: {etag}\r\nIf-Modified-Since: {modified}\r\n"

    def publish(self):
        self.send_publish()
        self.publisher.recv(65536)


def fanout(results, client):
    """Measures deliveries per second with 100 followers and 4 publishers."""
    rates = {"nchan": [], "towpath": []}
    for channel in range(FANOUT_ROUNDS):
        for name, port in (("nchan", NGINX_PORT), ("towpath", TOWPATH_PORT)):
            out = subprocess.run([client, "fanout", name, str(port), f"fan{channel}", str(FANOUT_SECONDS)],
                                 capture_output=True, text=True, check=True).stdout
            print(f"100 followers, 4 publishers: {name} {out.strip()}", flush=True)
            rates[name].append(json.loads(out)["deliveries_per_second"])
    for name, values in rates.items():
        results.add("deliveries to 100 followers, 4 publishers", "deliveries/s", values, name, goal="3.5")
    nchan, towpath = (statistics.median(rates[name]) for name in ("nchan", "towpath"))
    print(f"deliveries: towpath/nchan {towpath / nchan:.2f} (to reach: 3.5)", flush=True)


def idle(results, server, count):
    server.publisher = server.connect()
    server.publish()
    server.refresh()
    before = resident(server.pids)
    streams = []
    for _ in range(count):
        stream = server.connect()
        stream.sendall(server.poll_request())
        streams.append(stream)
    time.sleep(3)
    each = (resident(server.pids) - before) / count
    results.add("memory of an idle long poll", "kB", each / 1000, server.name)
    print(f"{count} idle long polls: {server.name} {each / 1000:.2f} kB each", flush=True)
    for stream in streams:
        stream.close()
    time.sleep(2)


def one(results, server):
    """Measures the time to the response of a single long poll, in microseconds: from publishing, and from its
    acknowledgement."""
    server.publisher = server.connect()
    from_publish, from_ack = [], []
    waiter = server.connect()
    for _ in range(ROUNDS):
        server.refresh()
        waiter.sendall(server.poll_request())
        time.sleep(0.01)
        begun = time.perf_counter()
        server.send_publish()
        acknowledged = answered = None
        while not (acknowledged and answered):
            ready, _, _ = select.select([server.publisher, waiter], [], [])
            now = time.perf_counter()
            if server.publisher in ready:
                server.publisher.recv(65536)
                acknowledged = now
            if waiter in ready:
                server.move_past(waiter.recv(65536))
                answered = now
        from_publish.append((answered - begun) * 1e6)
        from_ack.append((answered - acknowledged) * 1e6)
    waiter.close()
    results.add("1 waiter answered, from publishing", "µs", from_publish, server.name)
    results.add("1 waiter answered, from the acknowledgement", "µs", from_ack, server.name)
    return statistics.median(from_publish), statistics.median(from_ack)


class ManyPolls:
    """Many long polls of one feed, each on a keep-alive connection."""

    def __init__(self, server, count):
        self.server, self.count = server, count
        self.from_publish, self.from_ack, self.cpu = [], [], []
        server.publisher = server.connect()
        self.poller = select.epoll()
        self.streams = {}
        for _ in range(count):
            stream = server.connect()
            self.streams[stream.fileno()] = stream
            self.poller.register(stream, select.EPOLLIN)

    def round(self):
        """Records the milliseconds until all are answered, and the microseconds of CPU for each wake and re-arm.

        Nchan acknowledges when it has written to nearly all, towpath as soon as the item is on disk. So only the
        time from publishing on contains the whole work of both.
        """
        self.server.refresh()
        before = cpu_ns(self.server.pids)
        request = self.server.poll_request()
        for stream in self.streams.values():
            stream.sendall(request)
        time.sleep(1.5)
        begun, answered = time.perf_counter(), 0
        self.server.publish()
        acknowledged = time.perf_counter()
        while answered < self.count:
            for number, _ in self.poller.poll():
                answer = self.streams[number].recv(65536)
                answered += 1
        end = time.perf_counter()
        self.from_publish.append((end - begun) * 1e3)
        self.from_ack.append((end - acknowledged) * 1e3)
        self.server.move_past(answer)
        time.sleep(0.2)
        self.cpu.append((cpu_ns(self.server.pids) - before) / self.count / 1e3)


def crowds(results, servers, count):
    """Alternates rounds between the servers; the first round is a warm-up."""
    all_of_them = [ManyPolls(server, count) for server in servers]
    for _ in range(CROWD_ROUNDS + 1):
        for one in all_of_them:
            one.round()
    medians = []
    for one in all_of_them:
        lists = [values[1:] for values in (one.from_publish, one.from_ack, one.cpu)]
        medians.append([statistics.median(values) for values in lists])
        for name, unit, values, goal in zip(("all answered, from publishing", "all answered, from the acknowledgement",
                                             "a wake and re-arm"), ("ms", "ms", "µs of CPU"), lists, ("0.9", None, "1")):
            results.add(f"{count} waiters: {name}", unit, values, one.server.name, goal=goal)
        publish, ack, cpu = (f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"
                             for values in lists)
        print(f"{count} waiters: {one.server.name} answers all in {publish} ms after publishing, {ack} ms after the "
              f"acknowledgement; {cpu} µs of CPU for each wake and re-arm", flush=True)
        for stream in one.streams.values():
            stream.close()
    publish, ack, cpu = (towpath / nchan for nchan, towpath in zip(*medians))
    print(f"crowd: towpath/nchan {publish:.2f} of the time after publishing (to reach: 0.9), {ack:.2f} after the "
          f"acknowledgement, {cpu:.2f} of the CPU (to reach: 1)", flush=True)
    time.sleep(1)


def fill(feed, count):
    for start in range(0, count, 10_000):
        lines = "".join(
            json.dumps({"id": f"item-{n}", "content_type": "text/plain", "content": f"{n:08} ".ljust(200, "x"),
                        "item": {"title": f"Item {n}"}}) + "\n"
            for n in range(start, min(start + 10_000, count)))
        request = urllib.request.Request(
            f"http://127.0.0.1:{TOWPATH_PORT}/feeds/{feed}/items", data=lines.encode(), method="POST")
        urllib.request.urlopen(request).read()


class PullConnection:
    """A connection that is kept for one request after another."""

    def __init__(self, port):
        self.stream = socket.create_connection(("127.0.0.1", port))
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get(self, path):
        """Reads a whole response with a length, and returns its body."""
        self.stream.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        received = self.stream.recv(1 << 20)
        while (end := received.find(b"\r\n\r\n")) < 0:
            received += self.stream.recv(1 << 20)
        head, body = received[:end], received[end + 4:]
        assert head.startswith(b"HTTP/1.1 200 "), head
        length = int(re.search(rb"(?i)content-length: (\d+)", head).group(1))
        while len(body) < length:
            body += self.stream.recv(1 << 20)
        return body


def pulls(results, server, folder, feed, count):
    """Measures the CPU of a pull of 50 items, computed and repeated, and its time at several positions."""
    base = f"/feeds/{feed}/items?order=created&max=50&since=id:item-{{}}"
    script = f"{folder}/unique.lua"
    with open(script, "w") as file:
        file.write(f"""local n = 0
function request() n = n + 1; return wrk.format("GET", "{base.format(count // 2)}&n=" .. n) end""")
    for name, extra in (("computed", ["-s", script]), ("repeated", [])):
        url = f"http://127.0.0.1:{TOWPATH_PORT}{base.format(count // 2)}"
        before = cpu_ns(server.pids)
        out = subprocess.run(["taskset", "-c", "1", "wrk", "-t1", "-c16", "-d4s", *extra, url],
                             capture_output=True, text=True, check=True).stdout
        done = int(re.search(r"(\d+) requests in", out).group(1))
        each = (cpu_ns(server.pids) - before) / done / 1e3
        results.add(f"pull of 50 items, {name}", "µs of CPU", each)
        print(f"pull of 50 items, {name}: {each:.1f} µs of CPU, {1e6 / each:.0f} a second on one core", flush=True)
    connection = PullConnection(TOWPATH_PORT)
    for part in (0, 0.01, 0.25, 0.5, 0.75, 0.999):
        times = []
        for n in range(30):
            begun = time.perf_counter()
            connection.get(f"{base.format(min(int(count * part), count - 90) + n)}&timeout=0")
            times.append((time.perf_counter() - begun) * 1e6)
        results.add(f"pull of 50 items at {part:.1%} of {count}", "µs", times)
        print(f"pull of 50 items at {part:.1%} of {count}: {statistics.median(times):.0f} µs", flush=True)


def main(binary, streams, client, parts=PARTS, polls=20_000, items=1_000_000):
    # The shell's limit of open files bounds the servers and this client: raise it (ulimit -n) for more polls.
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    # towpath leaves a share of its descriptors to other things than connections.
    polls = min(polls, limit * 9 // 10)
    results = Results("smart", binary, "cargo xtask bench smart", nginx=version("nginx", "-v"),
                      **{"durable-streams-server": version(streams, "--version")})
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        os.chmod(folder, 0o755)
        try:
            with open(f"{folder}/towpath.toml", "w") as file:
                file.write(TOWPATH_CONF.format(folder=folder, port=TOWPATH_PORT))
            with open(f"{folder}/nginx.conf", "w") as file:
                file.write(NGINX_CONF.format(folder=folder, port=NGINX_PORT))
            for command in ([binary, "serve", "--config", f"{folder}/towpath.toml"],
                            ["nginx", "-c", f"{folder}/nginx.conf", "-p", folder], [streams]):
                processes.append(subprocess.Popen(["taskset", "-c", "0", *command], stdout=subprocess.DEVNULL,
                                                  env={**os.environ, **STREAMS_CONF}, cwd=folder))
            time.sleep(3)
            urllib.request.urlopen(urllib.request.Request(
                f"http://127.0.0.1:{STREAMS_PORT}{STREAM}", method="PUT", headers={"Content-Type": "text/plain"}))
            os.sched_setaffinity(0, {1})
            towpath, nginx, streams = (process.pid for process in processes)
            with open(f"/proc/{nginx}/task/{nginx}/children") as file:
                workers = [int(child) for child in file.read().split()]
            servers = [BenchServer("nchan", NGINX_PORT, workers), BenchServer("towpath", TOWPATH_PORT, [towpath])]
            if "idle" in parts:
                for server in [*servers, BenchServer("durable-streams-server", STREAMS_PORT, [streams])]:
                    idle(results, server, polls)
            for server in servers if "one" in parts else []:
                publish, ack = one(results, server)
                print(f"1 waiter: {server.name} answers {publish:.0f} µs after publishing, "
                      f"{ack:.0f} µs after the acknowledgement", flush=True)
            if "crowd" in parts:
                crowds(results, servers, min(CROWD, (limit - 500) // 2))
            if "fanout" in parts:
                fanout(results, client)
            if "pulls" in parts:
                fill("large", items)
                pulls(results, servers[1], folder, "large", items)
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=60)
    results.save()


if __name__ == "__main__":
    main(*sys.argv[1:4], sys.argv[4].split(",") if sys.argv[4:] else PARTS, *map(int, sys.argv[5:]))
