"""A consumer that is killed at any moment: nothing is missing, nothing is there twice. TOWPATH_KILLS says how often."""

import os
import random
import sqlite3
import subprocess
import sys
import threading
import time

KILLS = int(os.environ.get("TOWPATH_KILLS", "30"))
CHANGES = 20
"""Changes that are published in each round."""

CONSUMER = """
import sqlite3, sys, towpath
database = sqlite3.connect("copy.db")
database.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT)")
for change in towpath.follow(sys.argv[1], state=towpath.SqliteState(database)):
    database.execute("INSERT INTO seen VALUES (?)", (change.id,))
"""


def test_a_consumer_survives_kills(feed, tmp_path):
    assert len(CONSUMER.strip().splitlines()) <= 6
    generator = random.Random(18)
    wanted = []

    def seen():
        database = sqlite3.connect(tmp_path / "copy.db", timeout=30)
        try:
            return [id for (id,) in database.execute("SELECT id FROM seen ORDER BY rowid")]
        except sqlite3.OperationalError:
            return []
        finally:
            database.close()

    def start():
        return subprocess.Popen([sys.executable, "-c", CONSUMER, feed.url], cwd=tmp_path)

    def publish(round):
        lines = [{"id": f"{round}-{n}", "json": {"n": n}} for n in range(CHANGES)]
        for at in range(0, CHANGES, 4):
            feed.batch(lines[at : at + 4])
        wanted.extend(line["id"] for line in lines)

    moved = 0
    for round in range(KILLS):
        before = len(seen())
        consumer = start()
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
        consumer.kill()
        consumer.wait()
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
