"""Copies into the destinations of the command line."""

import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
import towpath


def rows(path, sql="SELECT id FROM items ORDER BY id"):
    database = sqlite3.connect(path, timeout=30)
    try:
        return [row[0] for row in database.execute(sql)]
    except sqlite3.OperationalError:
        return []
    finally:
        database.close()


def test_a_database_has_each_change_once(feed, tmp_path):
    copy = tmp_path / "copy.db"
    feed.batch({"id": id} for id in "abc")
    towpath.copy(feed.url, f"sqlite:{copy}", once=True)
    feed.delete("b")
    # The command line goes on from what the package keeps, and back.
    program = [os.environ["TOWPATH_PROGRAM"], "follow", feed.url, "--into", f"sqlite:{copy}", "--once"]
    subprocess.run(program, check=True)
    feed.put("d")
    towpath.copy(feed.url, f"sqlite:{copy}", once=True)
    assert rows(copy) == ["a", "c", "d"]
    assert rows(copy, "SELECT id FROM changes ORDER BY rowid") == ["a", "b", "c", "b", "d"]


def test_a_folder_and_a_program(feed, tmp_path, caplog):
    feed.batch({"id": id, "item": {"title": id.upper()}} for id in "ab")
    towpath.copy(feed.url, f"dir:{tmp_path / 'items'}", once=True)
    files = [path for path in (tmp_path / "items").rglob("*.json") if ".towpath" not in path.parts]
    assert sorted(json.loads(path.read_text())["item"]["title"] for path in files) == ["A", "B"]
    out, state = tmp_path / "out", tmp_path / "state"
    for _ in range(2):
        towpath.copy(feed.url, f"exec:tee -a {out}", state=state, once=True)
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == ["a", "b"]
    with caplog.at_level(logging.WARNING, logger="towpath"):
        towpath.copy(feed.url, f"exec:tee -a {out}", once=True)
    assert "keeps no position" in caplog.text


def test_errors(feed, tmp_path, answers):
    feed.put("a")
    mine = tmp_path / "mine.db"
    database = sqlite3.connect(mine)
    database.execute("CREATE TABLE items (x)")
    database.close()
    with pytest.raises(towpath.DestinationError, match="not towpath's"):
        towpath.copy(feed.url, f"sqlite:{mine}", once=True)
    for destination in ("mysql://me:secret@host/", "copy.db", "sqlite:"):
        with pytest.raises(towpath.UsageError) as raised:
            towpath.copy(feed.url, destination, once=True)
        assert "secret" not in str(raised.value)
    copy = f"sqlite:{tmp_path / 'copy.db'}"
    with pytest.raises(towpath.UsageError, match="keeps the position itself"):
        towpath.copy(feed.url, copy, state=tmp_path / "state", once=True)
    with pytest.raises(towpath.HttpError) as status:
        towpath.copy(feed.url + "none", copy, once=True)
    assert status.value.status == 404
    base = answers(lambda path: (200, "text/html", b"<title>x</title>"))
    with pytest.raises(towpath.ProtocolError):
        towpath.copy(base, copy, once=True)
    with pytest.raises(towpath.NetworkError):
        towpath.copy("http://127.0.0.1:1/", copy, once=True)
    towpath.copy(feed.url, copy, once=True)
    with pytest.raises(towpath.UsageError, match="by the protocol smart"):
        towpath.copy(feed.url, copy, protocol="history", once=True)

    class Store:
        def load(self):
            return None

    with pytest.raises(towpath.UsageError):
        towpath.copy(feed.url, Store(), state=tmp_path / "state", once=True)


def test_a_message_that_raises_ends_the_copy(feed, tmp_path):
    feed.put("a")

    class Handler(logging.Handler):
        def emit(self, record):
            raise RuntimeError("of the handler")

    handler = Handler()
    logger = logging.getLogger("towpath")
    logger.addHandler(handler)
    try:
        # Its folder is missing: the copy says so, and would try again.
        with pytest.raises(RuntimeError, match="of the handler"):
            towpath.copy(feed.url, "exec:exit 1", once=True)
    finally:
        logger.removeHandler(handler)


def test_an_interrupt_ends_a_copy(feed, tmp_path):
    feed.put("a")
    program = """
import sys, os, towpath
try:
    towpath.copy(sys.argv[1], "sqlite:copy.db")
except KeyboardInterrupt:
    print("interrupted", len(os.listdir("/proc/self/task")), flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", program, feed.url], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: rows(tmp_path / "copy.db") == ["a"], process)
    process.send_signal(signal.SIGINT)
    assert process.stdout.read() == "interrupted 1\n"
    assert process.wait(30) == 0


def wait_for(is_done, process):
    while not is_done():
        assert process.poll() is None, "the copy ended by itself"
        time.sleep(0.02)
