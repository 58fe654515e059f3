"""A running towpath, and servers that do not behave. The environment has TOWPATH_PROGRAM."""

import http.server
import os
import re
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest
import towpath

PROGRAM = os.environ.get("TOWPATH_PROGRAM", "towpath")
FEEDS = 40


class Server:
    """A server in a folder of its own, which may be stopped and started again."""

    def __init__(self, folder, port=0):
        self.folder, self.port = folder, port
        feeds = "".join(f'[[feed]]\nid = "feed{n}"\n' for n in range(FEEDS))
        (folder / "towpath.toml").write_text(feeds)
        self.start()

    def start(self):
        args = [PROGRAM, "serve", "--listen", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(args, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                break
        else:
            raise RuntimeError("towpath serve printed no address")
        self.base = f"http://127.0.0.1:{self.port}"
        # Nothing reads on: the pipe must not fill.
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture(scope="session")
def server():
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        yield server
        server.stop()


@pytest.fixture
def own_server(tmp_path):
    """A server that the test may stop."""
    folder = tmp_path / "server"
    folder.mkdir()
    server = Server(folder)
    yield server
    server.kill()


@pytest.fixture
def feed(server, request):
    """A feed of its own: to start a server takes a second."""
    taken = getattr(server, "taken", 0)
    server.taken = taken + 1
    return towpath.Client(server.base).feed(f"feed{taken}")


@pytest.fixture
def answers():
    """Starts servers of the test: `answers(handler)`, with the path in and status, type and body out."""
    started = []

    def start(handler):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                status, kind, body = handler(self.path)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        started.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def follow_threads():
    """Threads of this process that follow, by the system's own list."""
    names = [Path(f"/proc/self/task/{task}/comm") for task in os.listdir("/proc/self/task")]
    return [name for path in names if path.exists() and (name := path.read_text().strip()).startswith(("towpath", "tokio"))]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    import gc

    gc.collect()
    # A joined thread leaves the system's list a moment later.
    for _ in range(200):
        if not follow_threads():
            return
        time.sleep(0.01)
    assert follow_threads() == []
