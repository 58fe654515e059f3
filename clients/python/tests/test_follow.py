"""Following by `for`: what comes again, what does not, what ends it."""

import base64
import copy
import datetime
import gc
import glob
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
import towpath
from conftest import follow_threads


def put(feed, *ids):
    feed.batch([{"id": id, "json": {"n": n}, "item": {"title": f"Title {id}"}} for n, id in enumerate(ids)])


def ids(changes):
    return [change.id for change in changes]


def test_members_of_a_change(feed):
    feed.put(
        "1", title="Zehn Böte", url="https://a.example/1", tags=["harbour"], json={"boats": 10, "big": 2**70},
        authors=[towpath.Author("Ann")], published=datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc),
        attachments=[towpath.Attachment("https://a.example/1.pdf", size=3)], extra={"x": 1},
    )
    feed.put("2", content="A sail.")
    feed.put("3", content=b"\xff\x00", content_type="image/x-test")
    feed.put("4", content="Fog")
    feed.delete("4")
    one, two, three, gone = towpath.follow(feed.url, once=True)
    assert (one.feed, one.op, one.id) == (feed.name, "put", "1")
    assert one.json == {"boats": 10, "big": 2**70} and one.content is None
    assert one.content_type == "application/json" and json.loads(one.data) == one.json
    assert one.item.title == "Zehn Böte" and one.item.tags == ("harbour",) and one.item.extra == {"x": 1}
    assert one.item.authors == (towpath.Author("Ann"),) and one.item.attachments[0].size == 3
    assert one.item.published == datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)
    assert one.modified.tzinfo is not None and one.modified.year >= 2024
    assert (two.content, two.json, two.item) == ("A sail.", None, towpath.Item())
    assert (three.content, three.data) == (b"\xff\x00", b"\xff\x00")
    assert (gone.op, gone.id, gone.item, gone.data) == ("delete", "4", None, None)
    assert repr(one) == '<Change put "1">' and one != two and len({one, two}) == 2
    assert one.to_dict() == json.loads(one.to_json()) and one.to_dict()["position"] == one.position
    assert ids(towpath.follow(feed.url, once=True, start=two.position)) == ["3", "4"]


def test_the_state_moves_past_what_the_loop_finished(feed, tmp_path):
    state = tmp_path / "state"
    put(feed, *"abcde")
    for change in towpath.follow(feed.url, state=state):
        if change.id == "c":
            break
    assert follow_threads() == []
    with pytest.raises(RuntimeError):
        for change in towpath.follow(feed.url, state=state):
            assert change.id in "cd"
            if change.id == "d":
                raise RuntimeError("the loop's own")
    assert ids(towpath.follow(feed.url, state=state, once=True)) == ["d", "e"]
    assert ids(towpath.follow(feed.url, state=state, once=True)) == []
    saved = json.loads(state.read_text())
    assert (saved["towpath_state"], saved["url"]) == (1, feed.url)


def test_the_command_line_goes_on_from_the_state_and_back(feed, tmp_path):
    state = tmp_path / "state"
    put(feed, "a", "b")
    assert ids(towpath.follow(feed.url, state=str(state), once=True)) == ["a", "b"]
    put(feed, "c")
    program = os.environ["TOWPATH_PROGRAM"]
    printed = subprocess.run(
        [program, "follow", feed.url, "--state", str(state), "--once"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert [json.loads(line)["id"] for line in printed.splitlines()] == ["c"]
    put(feed, "d")
    assert ids(towpath.follow(feed.url, state=state, once=True)) == ["d"]


def test_the_command_line_goes_on_within_a_unit(feed, tmp_path):
    state = tmp_path / "state"
    feed.batch({"id": id} for id in "abcd")
    for change in towpath.follow(feed.url, state=state, once=True):
        if change.id == "c":
            break
    program = os.environ["TOWPATH_PROGRAM"]
    command = [program, "follow", feed.url, "--state", str(state), "--once"]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert [json.loads(line)["id"] for line in printed.splitlines()] == ["c", "d"]


def test_a_loop_that_waits_has_saved(feed, tmp_path):
    state = tmp_path / "state"
    put(feed, "a")
    changes = towpath.follow(feed.url, state=state)
    assert next(changes).id == "a"
    publisher = threading.Thread(target=lambda: (time.sleep(0.5), put(feed, "b")))
    publisher.start()
    assert next(changes).id == "b"
    publisher.join()
    assert json.loads(state.read_text())["state"]
    changes.close()
    assert ids(towpath.follow(feed.url, state=state, once=True)) == ["b"]


def test_a_server_that_is_away(own_server, tmp_path, caplog):
    feed = towpath.Client(own_server.base).feed("feed0")
    put(feed, "a")
    changes = towpath.follow(feed.url, state=tmp_path / "state")
    assert next(changes).id == "a"

    def away():
        own_server.kill()
        time.sleep(1)
        own_server.start()
        put(feed, "b")

    with caplog.at_level(logging.WARNING, "towpath"):
        thread = threading.Thread(target=away)
        thread.start()
        assert next(changes).id == "b"
        thread.join()
    assert any("failed: http" in record.getMessage() for record in caplog.records)
    changes.close()


def test_a_server_that_answers_html_for_a_while(answers, caplog):
    """As a portal of a hotel does, or a broken deployment."""
    pages = {"since=none": b"a", "since=cursor%3A1": b"b"}
    trouble = [(200, "text/html", b"<title>Sign in</title>"), (502, "text/html", b"<title>Bad gateway</title>")]

    def handler(path):
        id = pages.get("since=" + path.split("since=")[1].split("&")[0] if "since=" in path else "since=none")
        if id == b"b" and trouble:
            return trouble.pop(0)
        item = {"id": id.decode(), "displayName": "x"} if id else None
        page = {"count": 1, "totalItems": 2, "url": "x", "items": [item] if item else []}
        page["last_cursor"] = {b"a": "1", b"b": "2", None: "2"}[id]
        return 200, "application/json", json.dumps(page).encode()

    changes = towpath.follow(answers(handler) + "/feed")
    with caplog.at_level(logging.WARNING, "towpath"):
        assert [next(changes).id, next(changes).id] == ["a", "b"]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2 and "502" in messages[1], messages
    assert 'answers an HTML page (text/html), which begins "Sign in"' in messages[0], messages
    changes.close()


def test_a_server_that_is_away_for_an_hour(answers, tmp_path):
    # Debian's libfaketime, which `cargo xtask setup` installs.
    faketime = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
    if not faketime:
        pytest.skip("libfaketime is missing")
    program = """
import sys, time, towpath
began = time.time()
for change in towpath.follow(sys.argv[1], state="state", protocol="smart"):
    print(change.id, int(time.time() - began), flush=True)
    if change.id == "c":
        break
"""
    away, attempts = threading.Event(), []
    away.set()

    def handler(path):
        since = path.split("since=")[1].split("&")[0] if "since=" in path else ""
        if since and away.is_set():
            attempts.append(path)
            return 503, "text/plain", b"down"
        names, cursor = (("c",), "3") if since.endswith("2") else ((), "3") if since else (("a", "b"), "2")
        page = {"count": len(names), "totalItems": 3, "url": "x", "items": [{"id": id} for id in names], "last_cursor": cursor}
        return 200, "application/json", json.dumps(page).encode()

    url = answers(handler) + "/feed"
    environment = {**os.environ, "LD_PRELOAD": faketime[0], "FAKETIME": "+0 x300"}
    command = [sys.executable, "-c", program, url]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    seen = [process.stdout.readline().split()[0] for _ in range(2)]
    time.sleep(12.1)
    away.clear()
    last, seconds = process.communicate(timeout=60)[0].split()
    assert [*seen, last] == ["a", "b", "c"]
    assert int(seconds) >= 3600 and 5 <= len(attempts) < 80, (seconds, len(attempts))
    assert process.returncode == 0
    assert ids(towpath.follow(url, state=tmp_path / "state", once=True)) == ["c"], "the body has not finished c"


def test_callbacks_that_raise(feed, server, answers):
    put(feed, *"abc")

    class State:
        def __init__(self, fails):
            self.fails, self.saved = fails, None

        def load(self):
            if self.fails == "load":
                raise OSError("no database")
            return self.saved

        def save(self, state):
            if self.fails == "save":
                raise OSError("the disk is full")
            self.saved = state

    for fails, why in (("load", "no database"), ("save", "disk is full")):
        with pytest.raises(OSError, match=why):
            list(towpath.follow(feed.url, state=State(fails), once=True))
    good = State(None)
    assert ids(towpath.follow(feed.url, state=good, once=True)) == ["a", "b", "c"]

    # An archive that has lost its past: changes that nobody can supply any more.
    def trimmed(path):
        with urllib.request.urlopen(server.base + path) as answer:
            body, kind = answer.read(), answer.headers["Content-Type"]
        if path.endswith("index.json"):
            body = json.dumps({"snapshots": json.loads(body)["snapshots"][-1:]}).encode()
        return 200, kind, body

    base = answers(trimmed)
    head = f"{base}/diff/{feed.name}/head.json"
    while "0000000000" in trimmed(f"/diff/{feed.name}/head.json")[2].decode().split("cursor")[1][:30]:
        pass
    put(feed, "d")
    # Minted: before, the head and the index may be of two moments.
    while '"id":"d"' not in trimmed(f"/diff/{feed.name}/latest.json")[2].decode():
        pass
    lost = {"towpath_state": 1, "url": base, "protocol": "diffdelta", "follows": head, "state": {"cursor": "sha256:" + "1" * 64}}
    behind = State(None)
    behind.saved = json.dumps(lost)

    def raises(gap):
        assert isinstance(gap, towpath.GapError)
        raise LookupError(str(gap))

    with pytest.raises(LookupError, match="no longer|cannot be"):
        list(towpath.follow(base, state=behind, once=True, on_gap=raises))
    assert behind.saved == json.dumps(lost), "the state did not move"


def test_many_follows_leave_nothing(feed):
    put(feed, "a")

    def descriptors():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    def one(how):
        changes = towpath.follow(feed.url)
        if how:
            next(changes)
        if how == 2:
            changes.close()

    one(2)
    before = descriptors()
    for n in range(60):
        one(n % 3)
    assert descriptors() <= before
    assert follow_threads() == []


def test_a_fork_neither_hangs_nor_follows(feed):
    put(feed, "a")
    program = """
import os, sys, towpath
changes = towpath.follow(sys.argv[1])
print(next(changes).id, flush=True)
if os.fork() == 0:
    try:
        next(changes)
    except RuntimeError as error:
        print(error, flush=True)
    del changes
    sys.exit()
os.wait()
changes.close()
"""
    done = subprocess.run([sys.executable, "-c", program, feed.url], stdout=subprocess.PIPE, text=True, timeout=30, check=True)
    assert done.stdout.startswith("a\na follow of the parent process"), done.stdout


@pytest.mark.parametrize("how", ["drop", "close", "with", "unused"])
def test_a_follow_that_is_dropped_leaves_no_thread(feed, how):
    put(feed, "a")
    if how == "with":
        with towpath.follow(feed.url) as changes:
            next(changes)
            assert len(follow_threads()) == 1
    else:
        changes = towpath.follow(feed.url)
        if how != "unused":
            next(changes)
        if how == "close":
            changes.close()
            assert list(changes) == []
        del changes
    gc.collect()
    assert follow_threads() == []


def test_an_interrupt_ends_a_loop_that_waits(feed):
    put(feed, "a")
    program = """
import sys, os, time, towpath
print("ready", flush=True)
started = 0
try:
    for change in towpath.follow(sys.argv[1]):
        print(change.id, flush=True)
except KeyboardInterrupt:
    print("interrupted", [n for n in os.listdir("/proc/self/task")].__len__(), flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", program, feed.url], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n" and process.stdout.readline() == "a\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.stdout.read() == "interrupted 1\n"
    assert process.wait(30) == 0


def test_an_interrupt_ends_a_request(answers):
    held = threading.Event()
    base = answers(lambda path: (held.wait(30), (200, "text/html", b""))[1])
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        towpath.check(base + "/feed")
    held.set()
    timer.join()


def test_errors(answers, server, feed, tmp_path):
    def handler(path):
        if path.startswith("/page"):
            return 200, "text/html", b"<!doctype html><title>Hello</title>"
        if path.startswith("/other"):
            return 200, "application/json", b'{"swagger": "2.0"}'
        return 503, "text/plain", b"later"

    base = answers(handler)
    for path in ("/page", "/other"):
        with pytest.raises(towpath.ProtocolError, match="not a feed") as raised:
            next(towpath.follow(base + path))
        assert raised.value.url == base + path and "--" not in str(raised.value)
    with pytest.raises(towpath.HttpError) as raised:
        next(towpath.follow(base + "/down"))
    assert raised.value.status == 503
    with pytest.raises(towpath.NetworkError, match="refused") as raised:
        next(towpath.follow("http://user:secret@127.0.0.1:1/feed"))
    assert "secret" not in str(raised.value) + str(raised.value.url)
    for wrong in ({"protocol": "gopher"}, {"start": ""}, {"start": datetime.datetime(2026, 1, 1)}, {"headers": {"a b": "c"}}):
        with pytest.raises(towpath.UsageError):
            towpath.follow(feed.url, **wrong)
    with pytest.raises(towpath.UsageError, match="URL"):
        next(towpath.follow("example.com/feed"))
    state = tmp_path / "state"
    put(feed, "a")
    list(towpath.follow(feed.url, state=state, once=True))
    with pytest.raises(towpath.StateError, match="belongs to"):
        next(towpath.follow(f"{server.base}/feeds/feed39", state=state))
    for damaged in ("{", '{"towpath_state":9,"url":"x","protocol":"smart","state":{}}'):
        state.write_text(damaged)
        with pytest.raises(towpath.StateError, match="damaged"):
            next(towpath.follow(feed.url, state=state))
    with pytest.raises(towpath.StateError, match="cannot write"):
        next(towpath.follow(feed.url, state=tmp_path / "no" / "such"))
    assert issubclass(towpath.UsageError, ValueError) and issubclass(towpath.HttpError, towpath.TowpathError)


def test_state_and_rows_in_one_transaction(feed, tmp_path):
    put(feed, *"abcde")
    database = sqlite3.connect(tmp_path / "copy.db")
    database.execute("CREATE TABLE seen (id TEXT)")
    rows = lambda: [id for (id,) in database.execute("SELECT id FROM seen ORDER BY rowid")]
    state = towpath.SqliteState(database)
    for change in towpath.follow(feed.url, state=state):
        database.execute("INSERT INTO seen VALUES (?)", (change.id,))
        if change.id == "c":
            break
    assert rows() == [], "what was not committed is rolled back, with its state"
    for change in towpath.follow(feed.url, state=state, once=True):
        database.execute("INSERT INTO seen VALUES (?)", (change.id,))
    assert rows() == list("abcde")
    for change in towpath.follow(feed.url, state=state, once=True):
        raise AssertionError(change)
    with pytest.raises(towpath.StateError, match="towpath_state of towpath"):
        next(towpath.follow(feed.url + "/smart", state=state))
    with pytest.raises(towpath.UsageError):
        towpath.SqliteState(sqlite3.connect(":memory:", isolation_level=None))
    if hasattr(sqlite3, "LEGACY_TRANSACTION_CONTROL"):
        with pytest.raises(towpath.UsageError):
            towpath.SqliteState(sqlite3.connect(":memory:", autocommit=True))


def test_a_copy_in_a_store_of_ones_own(feed):
    class Store:
        items, state = {}, None

        def load(self):
            return self.state

        def apply(self, changes, state):
            for change in changes:
                if change.op == "delete":
                    self.items.pop(change.id, None)
                else:
                    self.items[change.id] = copy.copy(change.json)
            self.state = state

    store = Store()
    put(feed, *"abc")
    feed.delete("b")
    towpath.copy(feed.url, store, once=True)
    assert store.items == {"a": {"n": 0}, "c": {"n": 2}}
    feed.patch("a", {"json": {"m": 1}})
    towpath.copy(feed.url, store, once=True)
    assert store.items["a"] == {"n": 0, "m": 1}

    class Broken(Store):
        def apply(self, changes, state):
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        towpath.copy(feed.url, Broken())


@pytest.mark.parametrize("protocol", ["smart", "diffdelta", "replication", "history"])
def test_each_protocol(feed, protocol):
    put(feed, *"abc")
    found = []
    # The server publishes DiffDelta's documents a moment after the changes.
    while not found:
        found = ids(towpath.follow(feed.url, protocol=protocol, once=True))
    assert sorted(found) == list("abc")


def test_many_changes(feed):
    names = [f"{n:05}" for n in range(5000)]
    put(feed, *names)
    assert ids(towpath.follow(feed.url, once=True)) == names


def test_large_contents_become_files(feed, tmp_path):
    # A resumable upload that has all its bytes with the creation.
    head = {"Tus-Resumable": "1.0.0", "Upload-Length": "6", "Content-Type": "application/offset+octet-stream"}
    head["Upload-Metadata"] = "id " + base64.b64encode(b"film").decode()
    urllib.request.urlopen(urllib.request.Request(f"{feed.url}/uploads", b"a film", head)).close()
    (film,) = towpath.follow(feed.url, once=True)
    assert film.item.attachments[0].url.startswith("http://")
    folder = tmp_path / "films"
    (film,) = towpath.follow(feed.url, once=True, large_content=folder)
    (file,) = film.item.attachments
    assert (film.content, file.size) == (None, 6)
    assert file.url == (folder / file.sha256).resolve().as_uri()
    assert (folder / file.sha256).read_bytes() == b"a film"
    towpath.copy(feed.url, f"dir:{tmp_path}/copy", once=True, large_content=str(folder))
    (line,) = (tmp_path / "copy").glob("*/film.json")
    assert json.loads(line.read_text())["item"]["attachments"][0]["url"] == file.url
