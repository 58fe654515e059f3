"""Consumers that are killed at any moment: nothing is missing, and nothing is there twice where the store is transactional.

TOWPATH_KILLS says how often.
"""

import os
import random
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

KILLS = int(os.environ.get("TOWPATH_KILLS", "20"))
CHANGES = 20
"""Changes that are published in each round."""

LOOP = """
import sqlite3, sys, towpath
database = sqlite3.connect("copy.db")
database.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT)")
for change in towpath.follow(sys.argv[1], state=towpath.SqliteState(database)):
    database.execute("INSERT INTO seen VALUES (?)", (change.id,))
"""
COPY = """
import sys, towpath
towpath.copy(sys.argv[1], "sqlite:copy.db")
"""
LINES = """
import sys, towpath
for change in towpath.follow(sys.argv[1], state="state"):
    print(change.id, file=open("lines", "a"))
"""


def rows(path, sql):
    if not path.exists():
        return []
    database = sqlite3.connect(path, timeout=30)
    try:
        return [id for (id,) in database.execute(sql)]
    except sqlite3.OperationalError:
        return []
    finally:
        database.close()


def lines(path):
    # A line that comes again after a kill comes after the others: what is first is in order.
    return list(dict.fromkeys(path.read_text().split())) if path.exists() else []


CONSUMERS = {
    "loop": (LOOP, lambda folder: rows(folder / "copy.db", "SELECT id FROM seen ORDER BY rowid")),
    "copy": (COPY, lambda folder: rows(folder / "copy.db", "SELECT id FROM changes ORDER BY n")),
    "lines": (LINES, lambda folder: lines(folder / "lines")),
}


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_kills_lose_nothing(feed, tmp_path, consumer):
    program, read = CONSUMERS[consumer]
    assert len(program.strip().splitlines()) <= 6
    generator = random.Random(18)
    wanted = []

    def seen():
        return read(tmp_path)

    def start():
        return subprocess.Popen([sys.executable, "-c", program, feed.url], cwd=tmp_path)

    def publish(round):
        lines = [{"id": f"{round}-{n}", "json": {"n": n}} for n in range(CHANGES)]
        for at in range(0, CHANGES, 4):
            feed.batch(lines[at : at + 4])
        wanted.extend(line["id"] for line in lines)

    moved = 0
    for round in range(KILLS):
        before = len(seen())
        running = start()
        publisher = threading.Thread(target=publish, args=(round,))
        publisher.start()
        if round % 2:
            # At random lines: while it applies or saves in every other round, while it loads or asks in the others.
            deadline = time.monotonic() + 10
            while len(seen()) == before and time.monotonic() < deadline:
                time.sleep(0.004)
            time.sleep(generator.random() * 0.02)
        else:
            time.sleep(0.05 + generator.random() * 0.3)
        running.kill()
        running.wait()
        publisher.join()
        moved += len(seen()) > before
    assert moved >= KILLS // 4, f"only {moved} of {KILLS} rounds saved something before the kill"
    last = start()
    while len(seen()) < len(wanted):
        assert last.poll() is None, "the consumer ended by itself"
        time.sleep(0.02)
    last.kill()
    last.wait()
    assert seen() == wanted
    print(f"{KILLS} kills, {moved} of them after progress, {len(wanted)} changes")
