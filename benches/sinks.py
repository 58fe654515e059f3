"""First sync of a feed into SQLite and PostgreSQL beside the least that it costs; steady state and latency of a follow.

usage: sinks.py TOWPATH BARE_SQLITE [ITEMS] [sqlite] [postgres]

The peer of SQLite is a bare loop of inserts. That of PostgreSQL is psql: COPY into a staging table, then a merge. Both
write equal rows into equal tables in equal transactions, and have the rows ready in a file. A first sync also makes
and reads the publisher's pages, on the same cores: the CPU seconds of each process say what is the limit.
"""

import glob
import http.client
import json
import os
import pwd
import re
import shutil
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

from results import Results

TOWPATH, BARE = sys.argv[1], sys.argv[2]
NUMBERS = [word for word in sys.argv[3:] if word.isdigit()]
ITEMS = int(NUMBERS[0]) if NUMBERS else 1_000_000
PARTS = [word for word in sys.argv[3:] if not word.isdigit()] or ["sqlite", "postgres"]
# Rows of one transaction, as the sink's queue merges them.
BATCH = 10_000
STEADY_SECONDS = 10
LATENCIES = 200
PROTOCOLS = ("smart", "replication")
TICK = os.sysconf("SC_CLK_TCK")


def cpu(pid):
    """CPU seconds of a process and those of its children that have ended."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        # It has ended since it was listed, and counts with its parent.
        return 0.0
    return sum(int(field) for field in fields[11:15]) / TICK


def cpu_of_group(pid):
    """CPU seconds of a process and all its children, also of those that run."""
    children = subprocess.run(["pgrep", "-P", str(pid)], stdout=subprocess.PIPE, text=True).stdout.split()
    return cpu(pid) + sum(cpu(child) for child in children)


def publish(connection, lines):
    body = "".join(json.dumps(line) + "\n" for line in lines)
    connection.request("POST", "/feeds/notes/items", body)
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status in (200, 201), text


def item(number):
    return {"id": f"item-{number}", "content": f"{number} " + "x" * 1000, "item": {"title": f"Item {number}"}}


def wait_for(query, expected, limit=300):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if query() == expected:
            return
        time.sleep(0.001)
    raise SystemExit(f"never: {expected}")


class Publisher:
    def __init__(self, folder):
        self.folder = folder
        with open(f"{folder}/towpath.toml", "w") as config:
            config.write('[[feed]]\nid = "notes"\n[[feed]]\nid = "empty"\n')
        self.process = subprocess.Popen([TOWPATH, "serve", "--listen", "127.0.0.1:0"], cwd=folder,
                                        stdout=subprocess.PIPE, stderr=open(f"{folder}/log", "w"), text=True)
        base = re.search(r"http://\S+", self.process.stdout.readline()).group().rstrip("/")
        self.url = f"{base}/feeds/notes"
        self.connection = http.client.HTTPConnection(base.removeprefix("http://"))

    def publish(self, lines):
        publish(self.connection, lines)

    def fill(self):
        for start in range(0, ITEMS, 5000):
            self.publish([item(n) for n in range(start, min(start + 5000, ITEMS))])
        self.lines = f"{self.folder}/lines"
        with open(self.lines, "wb") as lines:
            subprocess.run([TOWPATH, "follow", self.url, "--once"], stdout=lines, stderr=subprocess.DEVNULL, check=True)


class Sqlite:
    name, steady_rate = "SQLite", 10_000

    def __init__(self, folder):
        self.folder = folder

    def bare(self, publisher):
        """Seconds of a bare loop."""
        return float(subprocess.check_output([BARE, f"{self.folder}/bare.db", publisher.lines, str(BATCH)]))

    def address(self, name):
        return f"sqlite:{self.folder}/{name}.db"

    into = address

    def cpu(self):
        return 0.0

    def connect(self, name):
        self.database = sqlite3.connect(f"{self.folder}/{name}.db")
        self.database.execute("PRAGMA busy_timeout = 10000")

    def one(self, sql):
        row = self.database.execute(sql).fetchone()
        return row and str(row[0])

    def stop(self):
        pass


class Postgres:
    name, steady_rate = "PostgreSQL", 5_000

    def __init__(self, folder):
        self.folder = f"{folder}/postgres"
        os.mkdir(self.folder, 0o755)
        os.chmod(folder, 0o755)
        programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        self.programs = programs[-1] + "/" if programs else ""
        # The server refuses to run as root.
        self.user = []
        if os.getuid() == 0:
            shutil.chown(self.folder, "postgres")
            self.user = ["setpriv", "--reuid", "postgres", "--regid", str(pwd.getpwnam("postgres").pw_gid),
                         "--clear-groups"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])
        data = f"{self.folder}/data"
        subprocess.run(self.user + [self.programs + "initdb", "--no-sync", "-U", "owner", "--auth=trust", "--locale=C",
                                    "--encoding=UTF8", "-D", data], stdout=subprocess.DEVNULL, check=True)
        settings = ["listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}", "shared_buffers=256MB",
                    "max_wal_size=4GB"]
        settings = [word for setting in settings for word in ("-c", setting)]
        self.process = subprocess.Popen(self.user + [self.programs + "postgres", "-D", data, "-p", self.port] + settings,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.psql = ["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", self.port, "-U", "owner", "-d"]
        while subprocess.run(self.psql + ["postgres", "-c", "SELECT 1"], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL).returncode:
            assert self.process.poll() is None, "PostgreSQL does not start"
            time.sleep(0.1)
        self.session = None

    def address(self, name):
        return f"postgres://owner@127.0.0.1:{self.port}/{name}"

    def into(self, name):
        """Address of a new database."""
        subprocess.run(self.psql + ["postgres", "-c", f"CREATE DATABASE {name}"], check=True)
        return self.address(name)

    def bare(self, publisher):
        """Seconds of psql."""
        into = self.into("bare")
        # The sink's own tables, so that columns and indexes are the same.
        empty = publisher.url.replace("/notes", "/empty")
        subprocess.run([TOWPATH, "follow", empty, "--protocol", "smart", "--into", into, "--once"],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        script = f"{self.folder}/script.sql"
        os.mkdir(f"{self.folder}/rows")
        with open(script, "w") as sql, open(publisher.lines) as lines:
            sql.write("CREATE TEMP TABLE staging (feed text, id text, title text, content_type text, content text, "
                      "modified timestamptz, position text, change json);\n")
            for part in range(0, ITEMS, BATCH):
                rows = f"{self.folder}/rows/{part}"
                with open(rows, "w") as out:
                    for _ in range(min(BATCH, ITEMS - part)):
                        line = next(lines).rstrip("\n")
                        row = json.loads(line)
                        values = [row["feed"], row["id"], row["item"]["title"], row["content_type"], row["content"],
                                  row["modified"], row["position"], line]
                        out.write("\t".join(value.replace("\\", "\\\\") for value in values) + "\n")
                sql.write(f"BEGIN; TRUNCATE staging;\n\\copy staging FROM '{rows}'\n"
                          "INSERT INTO items (feed, id, title, content_type, content, authors, tags, extra, modified, "
                          "position) SELECT feed, id, title, content_type, content, '[]', '[]', '{}', modified, position "
                          "FROM staging ON CONFLICT (feed, id) DO UPDATE SET title = excluded.title, "
                          "content = excluded.content, modified = excluded.modified, position = excluded.position;\n"
                          "INSERT INTO changes (feed, op, id, position, modified, change) "
                          "SELECT feed, 'put', id, position, modified, change FROM staging; COMMIT;\n")
        start = time.monotonic()
        subprocess.run(self.psql + ["bare", "-f", script], check=True)
        spent = time.monotonic() - start
        shutil.rmtree(f"{self.folder}/rows")
        subprocess.run(self.psql + ["postgres", "-c", "DROP DATABASE bare"], check=True)
        return spent

    def cpu(self):
        return cpu_of_group(self.process.pid)

    def connect(self, name):
        self.session = subprocess.Popen(self.psql + [name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def one(self, sql):
        # psql says nothing about no rows, so each answer ends with a line of its own.
        self.session.stdin.write(sql + ";\n\\echo end\n")
        self.session.stdin.flush()
        lines = list(iter(self.session.stdout.readline, "end\n"))
        return lines[0].strip() if lines else None

    def stop(self):
        for process in (self.session, self.process):
            if process:
                process.kill()
                process.wait()


def first_sync(results, publisher, to, protocol, bare):
    publisher_before, database_before, start = cpu(publisher.process.pid), to.cpu(), time.monotonic()
    follow = subprocess.Popen([TOWPATH, "follow", publisher.url, "--protocol", protocol, "--into", to.into(protocol),
                               "--once"], stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(follow.pid, 0)
    assert status == 0, status
    spent = time.monotonic() - start
    seconds = [("publisher", cpu(publisher.process.pid) - publisher_before),
               ("follower", usage.ru_utime + usage.ru_stime), ("database", to.cpu() - database_before)]
    seconds = ", ".join(f"{name} {used:.1f} s" for name, used in seconds if used)
    results.add(f"{to.name}, first sync", "items/s", ITEMS / spent, "towpath" if protocol == "smart" else f"towpath, by {protocol}")
    print(f"{to.name}, first sync by {protocol}: {spent:.1f} s, {ITEMS / spent:.0f} items/s, ratio {bare / spent:.2f} "
          f"(CPU: {seconds})", flush=True)


def running(results, publisher, to):
    follower = subprocess.Popen([TOWPATH, "follow", publisher.url, "--into", to.address("smart")], cwd=publisher.folder,
                                stderr=open(f"{publisher.folder}/follow.log", "w"))
    try:
        # The server has closed it during the first syncs; the next request opens it again.
        publisher.connection.close()
        to.connect("smart")
        time.sleep(1)
        # By the key: a search for the item by its id alone would read the whole table, and be what is measured.
        newest, latencies = "SELECT max(n) FROM changes", []
        publisher.publish([{"id": f"start of {to.name}"}])
        wait_for(lambda: to.one("SELECT id FROM changes ORDER BY n DESC LIMIT 1"), f"start of {to.name}")
        before = int(to.one(newest))
        for number in range(LATENCIES):
            publisher.publish([{"id": "latency", "content": str(number)}])
            appended = time.monotonic()
            wait_for(lambda: int(to.one(newest)), before + number + 1)
            latencies.append((time.monotonic() - appended) * 1000)
        results.add(f"{to.name}, from acknowledged append to committed row", "ms", latencies)
        print(f"{to.name}, latency from acknowledged append to committed row: median {statistics.median(latencies):.1f} ms, "
              f"p99 {statistics.quantiles(latencies, n=100)[98]:.1f} ms", flush=True)

        before, rate = int(to.one(newest)), to.steady_rate
        count, batch, start = STEADY_SECONDS * rate, rate // 20, time.monotonic()
        for number in range(0, count, batch):
            publisher.publish([{"id": f"s{n}", "content": f"{to.name} " + "y" * 100} for n in range(number, number + batch)])
            due = start + (number + batch) / rate
            time.sleep(max(0, due - time.monotonic()))
        published = time.monotonic() - start
        wait_for(lambda: int(to.one(newest)) >= before + count, True)
        behind = time.monotonic() - start - published
        results.add(f"{to.name}, complete after {to.steady_rate} changes/s for {STEADY_SECONDS} s", "ms", behind * 1000)
        print(f"{to.name}, steady state: {count / published:.0f} changes/s published for {published:.1f} s, "
              f"the copy was complete {behind * 1000:.0f} ms later", flush=True)
    finally:
        follower.kill()
        follower.wait()


def main():
    folder = tempfile.mkdtemp(prefix="sinks-")
    publisher, copies = None, []
    results = Results("sinks", TOWPATH, "cargo xtask bench sinks")
    try:
        publisher = Publisher(folder)
        publisher.fill()
        for part, kind in (("sqlite", Sqlite), ("postgres", Postgres)):
            if part not in PARTS:
                continue
            to = kind(folder)
            copies.append(to)
            bare = to.bare(publisher)
            peer = "bare loop" if kind is Sqlite else "psql's COPY and merge"
            results.add(f"{to.name}, first sync", "items/s", ITEMS / bare, peer)
            print(f"{to.name}, {peer}: {ITEMS} items of 1 kB in {bare:.1f} s, {ITEMS / bare:.0f} items/s", flush=True)
            for protocol in PROTOCOLS:
                first_sync(results, publisher, to, protocol, bare)
        # Last: it publishes more.
        for to in copies:
            running(results, publisher, to)
    finally:
        for to in copies:
            to.stop()
        if publisher:
            publisher.process.kill()
            publisher.process.wait()
        shutil.rmtree(folder, ignore_errors=True)
    results.save()


main()
