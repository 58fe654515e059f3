"""Pushes over XMPP: one append to 1,000 subscribers through Prosody, and the shares of towpath and Prosody in it.

Prints the time from an append to the last subscriber's message, messages per second, and the CPU of Prosody and towpath
as a share of one core, since Prosody has one thread. The baseline is a bare component that writes the same stanzas.
Usage: python3 benches/xmpp.py path/to/towpath [subscribers] [appends]
"""

import base64
import hashlib
import json
import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from results import Results, version

HTTP, CLIENTS, COMPONENTS = 18095, 18096, 18097
HOST, SERVICE, BARE, SECRET = "bench.localhost", "feeds.localhost", "bare.localhost", "secret"

PROSODY = """
run_as_root = true
daemonize = false
data_path = "{folder}/data"
pidfile = "{folder}/pid"
log = {{ warn = "{folder}/log" }}
interfaces = {{ "127.0.0.1" }}
c2s_ports = {{ {clients} }}
c2s_direct_tls_ports = {{ }}
s2s_ports = {{ }}
component_ports = {{ {components} }}
component_interfaces = {{ "127.0.0.1" }}
modules_enabled = {{ "roster", "saslauth", "disco" }}
modules_disabled = {{ "s2s", "tls" }}
c2s_require_encryption = false
allow_unencrypted_plain_auth = true
authentication = "internal_plain"
network_backend = "epoll"
VirtualHost "{host}"
Component "{service}"
    component_secret = "{secret}"
Component "{bare}"
    component_secret = "{secret}"
"""

TOWPATH = """
[server]
listen = "127.0.0.1:{port}"
data = "{folder}/towpath"
[[feed]]
id = "bench"
[xmpp]
server = "127.0.0.1:{components}"
jid = "{service}"
secret = "{secret}"
"""


def cpu(pid):
    """Seconds of CPU that a process has used."""
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pid}/status").read()).group(1))


def until_open(port):
    for _ in range(300):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"no server listens on port {port}")


class Client:
    """Minimal XMPP client: an account with one resource that receives pushes."""

    def __init__(self, number):
        self.jid = f"u{number}@{HOST}/r"
        self.socket = socket.create_connection(("127.0.0.1", CLIENTS))
        self.buffer = b""
        plain = base64.b64encode(f"\0u{number}\0x".encode()).decode()
        opened = f"<stream:stream xmlns='jabber:client' xmlns:stream='http://etherx.jabber.org/streams' to='{HOST}' version='1.0'>"
        self.ask(opened, b"</stream:features>")
        self.ask(f"<auth xmlns='urn:ietf:params:xml:ns:xmpp-sasl' mechanism='PLAIN'>{plain}</auth>", b"<success")
        self.ask(opened, b"</stream:features>")
        bind = "<bind xmlns='urn:ietf:params:xml:ns:xmpp-bind'><resource>r</resource></bind>"
        self.ask(f"<iq type='set' id='b'>{bind}</iq>", b"</iq>")

    def ask(self, text, needle):
        self.socket.sendall(text.encode())
        while needle not in self.buffer:
            part = self.socket.recv(65536)
            assert part, self.buffer
            self.buffer += part
        self.buffer = b""

    def subscribe(self):
        subscribe = f"<subscribe node='bench' jid='{self.jid}'/>"
        pubsub = f"<pubsub xmlns='http://jabber.org/protocol/pubsub'>{subscribe}</pubsub>"
        self.ask(f"<iq type='set' id='s' to='{SERVICE}'>{pubsub}</iq>", b"subscribed")


def wait_for_all(selector, count):
    """Reads until every client has got one more message."""
    left = count
    while left:
        for key, _ in selector.select(30) or [None]:
            data = key.fileobj.recv(1 << 16)
            assert data, "the server closed a client's connection"
            left -= data.count(b"</message>")


def append(number):
    item = json.dumps({"id": f"i{number}", "content": "x" * 500, "item": {"title": f"Title {number}"}})
    request = urllib.request.Request(f"http://127.0.0.1:{HTTP}/feeds/bench/items", data=(item + "\n").encode(), method="POST")
    urllib.request.urlopen(request).read()


def measure(results, what, rounds, count, selector, begin, processes):
    before, times = [cpu(pid) for _, pid in processes], []
    start = time.perf_counter()
    for number in range(rounds):
        began = time.perf_counter()
        begin(number)
        wait_for_all(selector, count)
        times.append(time.perf_counter() - began)
    elapsed = time.perf_counter() - start
    results.add(f"messages to {count} subscribers", "messages/s", rounds * count / elapsed, what)
    results.add(f"to the last of {count} subscribers", "ms", [one * 1000 for one in times], what)
    shares = ", ".join(
        f"{name} {100 * (cpu(pid) - used) / elapsed:.0f}% of a core"
        for (name, pid), used in zip(processes, before)
    )
    print(f"{what}: {1000 * statistics.median(times):.0f} ms to the last of {count}, {rounds * count / elapsed:,.0f} messages/s; {shares}")
    return elapsed


def bare_component():
    """Connects a component that writes the same messages as fast as Prosody accepts them."""
    stream = until_open(COMPONENTS)
    stream.sendall(f"<stream:stream xmlns='jabber:component:accept' xmlns:stream='http://etherx.jabber.org/streams' to='{BARE}'>".encode())
    data = b""
    while not (found := re.search(rb"id='([^']+)'", data)):
        data += stream.recv(4096)
    digest = hashlib.sha1(found.group(1) + SECRET.encode()).hexdigest()
    stream.sendall(f"<handshake>{digest}</handshake>".encode())
    while b"<handshake" not in data:
        data += stream.recv(4096)
    return stream


def main():
    towpath = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 20
    results = Results("xmpp", towpath, "cargo xtask bench xmpp", prosody=version("prosodyctl", "--version"))
    with tempfile.TemporaryDirectory() as folder:
        accounts = os.path.join(folder, "data", HOST.replace(".", "%2e"), "accounts")
        os.makedirs(accounts)
        for number in range(count):
            with open(os.path.join(accounts, f"u{number}.dat"), "w") as file:
                file.write('return { ["password"] = "x"; };\n')
        names = {"folder": folder, "clients": CLIENTS, "components": COMPONENTS, "host": HOST, "service": SERVICE,
                 "bare": BARE, "secret": SECRET, "port": HTTP}
        for name, text in [("prosody.cfg.lua", PROSODY), ("towpath.toml", TOWPATH)]:
            with open(os.path.join(folder, name), "w") as file:
                file.write(text.format(**names))
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
        prosody = subprocess.Popen(["prosody", "-F", "--config", os.path.join(folder, "prosody.cfg.lua")], **quiet)
        server = subprocess.Popen([towpath, "serve", "--config", "towpath.toml"], **quiet)
        try:
            run(results, prosody.pid, server.pid, count, rounds)
        finally:
            for process in (server, prosody):
                process.terminate()
                process.wait()
    results.save()


def run(results, prosody, towpath, count, rounds):
    for port in (CLIENTS, COMPONENTS, HTTP):
        until_open(port).close()
    time.sleep(3)
    clients = [Client(number) for number in range(count)]
    idle = rss(towpath)
    for client in clients:
        client.subscribe()
    print(f"{count} subscriptions: towpath has {idle} kB before, {rss(towpath)} kB after")
    selector = selectors.DefaultSelector()
    for client in clients:
        selector.register(client.socket, selectors.EVENT_READ)
    processes = [("Prosody", prosody), ("towpath", towpath)]
    append("first")
    wait_for_all(selector, count)
    ours = measure(results, "towpath", rounds, count, selector, append, processes)
    # Of the size of towpath's messages, as a client received them.
    content = "<entry xmlns='http://www.w3.org/2005/Atom'>" + "<a/>" * 20 + f"<content type='text'>{'x' * 900}</content></entry>"
    items = f"<event xmlns='http://jabber.org/protocol/pubsub#event'><items node='bench'><item id='i'>{content}</item></items></event>"
    messages = "".join(f"<message from='{BARE}' to='{client.jid}' type='headline'>{items}</message>" for client in clients).encode()
    stream = bare_component()
    bare = measure(results, "bare writer", rounds, count, selector, lambda _: stream.sendall(messages), processes[:1])
    print(f"ratio of rates: {bare / ours:.2f}")


main()
