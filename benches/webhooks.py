"""Deliveries to many webhooks of one server, without and with endpoints that never answer.

usage: webhooks.py TOWPATH

Each change is a message of its own (`batch = 1`), so a change makes as many deliveries as there are webhooks. The peer is a
bare loop: as many keep-alive connections, each posting the same body and waiting for the answer, to the same receiver.
"""

import asyncio
import http.client
import json
import multiprocessing
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from results import Results

TOWPATH = sys.argv[1]
WEBHOOKS, ITEMS = 40, 1_000
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
TAKEN = b"HTTP/1.1 204 x\r\n\r\n"


def receive(port, count):
    """Takes every message, and counts them."""

    class Receiver(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport, self.held = transport, b""

        def data_received(self, data):
            self.held += data
            while (end := self.held.find(b"\r\n\r\n")) >= 0:
                length = re.search(rb"content-length: (\d+)", self.held[:end], re.I)
                end += 4 + int(length.group(1))
                if len(self.held) < end:
                    return
                self.held = self.held[end:]
                count.value += 1
                self.transport.write(TAKEN)

    async def serve():
        server = await asyncio.get_running_loop().create_server(Receiver, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(serve())


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def bare(port, deliveries):
    """The rate of a bare loop with a message like ours."""
    body = json.dumps({"type": "towpath.changes", "data": {"changes": [
        {"feed": "notes", "op": "put", "id": "i1", "position": "1", "content": "x" * 200}]}}).encode()
    request = (b"POST /bare HTTP/1.1\r\nhost: x\r\nwebhook-id: msg_0123456789abcdef0123456789abcdef\r\n"
               b"webhook-timestamp: 1767225600\r\ncontent-length: %d\r\n\r\n" % len(body)) + body

    async def one(times):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(times):
            writer.write(request)
            await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async def all_of_them():
        await asyncio.gather(*(one(deliveries // WEBHOOKS) for _ in range(WEBHOOKS)))

    start = time.monotonic()
    asyncio.run(all_of_them())
    return deliveries / (time.monotonic() - start)


def measure(port, count, dead):
    """The rate at which all living webhooks get everything, with so many dead ones beside them."""
    folder = tempfile.mkdtemp(prefix="webhooks-")
    silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(dead)]
    ports = [port] * WEBHOOKS + [one.getsockname()[1] for one in silent]
    with open(os.path.join(folder, "towpath.toml"), "w") as config:
        config.write('[[feed]]\nid = "notes"\n')
        for number, at in enumerate(ports):
            config.write(f'[[sink]]\nname = "hook-{number}"\nfeeds = ["notes"]\nbatch = 1\nallow_private = true\n'
                         f'into = "webhook:http://127.0.0.1:{at}/hook-{number}"\nsecrets = ["{SECRET}"]\n')
    server = subprocess.Popen([TOWPATH, "serve", "--listen", "127.0.0.1:0"], cwd=folder, stdout=subprocess.PIPE,
                              stderr=open(os.path.join(folder, "log"), "w"), text=True)
    try:
        base = re.search(r"http://\S+", server.stdout.readline()).group().rstrip("/")
        connection = http.client.HTTPConnection(base.removeprefix("http://"))
        before, start = count.value, time.monotonic()
        for first in range(0, ITEMS, 100):
            lines = "".join(json.dumps({"id": f"i{n}", "content": "x" * 200}) + "\n" for n in range(first, first + 100))
            connection.request("POST", "/feeds/notes/items", lines)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 200, text
        wanted = WEBHOOKS * ITEMS
        while count.value - before < wanted:
            assert time.monotonic() - start < 300, f"{count.value - before} of {wanted} deliveries"
            time.sleep(0.01)
        spent = time.monotonic() - start
        connection.request("GET", "/sinks")
        sinks = json.loads(connection.getresponse().read())["sinks"]
        behind = [sink["name"] for sink in sinks if sink["lag"]]
        assert len(behind) <= dead or time.monotonic() - start < spent + 5, behind
        return wanted / spent
    finally:
        server.kill()
        server.wait()
        for one in silent:
            one.close()
        shutil.rmtree(folder, ignore_errors=True)


def main():
    results = Results("webhooks", TOWPATH, "cargo xtask bench webhooks")
    port, count = free_port(), multiprocessing.Value("Q", 0, lock=False)
    receiver = multiprocessing.Process(target=receive, args=(port, count), daemon=True)
    receiver.start()
    time.sleep(1)
    peer = bare(port, WEBHOOKS * ITEMS)
    print(f"bare loop of {WEBHOOKS} connections: {peer:.0f} deliveries/s")
    alone = measure(port, count, 0)
    print(f"{WEBHOOKS} webhooks: {alone:.0f} deliveries/s, signed, ratio {alone / peer:.2f}")
    beside = measure(port, count, 1)
    results.add(f"deliveries to {WEBHOOKS} webhooks", "deliveries/s", peer, "bare loop")
    results.add(f"deliveries to {WEBHOOKS} webhooks", "deliveries/s", alone)
    results.add("the same with a dead one beside them", "deliveries/s", alone, "without it")
    results.add("the same with a dead one beside them", "deliveries/s", beside)
    results.save()
    print(f"with a dead one beside them: {beside:.0f} deliveries/s, ratio {beside / alone:.2f}")


if __name__ == "__main__":
    main()
