"""The package: its names, its types, its examples, its start, its publishing."""

import doctest
import importlib.metadata
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import towpath


def test_publishing(feed):
    assert feed.put("1", title="Ten boats", json={"boats": 10}) == (1, 0)
    assert feed.put("1", title="Ten boats", json={"boats": 10}) == (0, 1)
    feed.patch("1", {"json": {"boats": 11}})
    assert feed.get("1")["json"] == {"boats": 11}
    assert feed.batch({"id": str(n)} for n in range(2, 5)).appended == 3
    assert feed.delete("2").appended == 1
    odd = "a/b ?#%é"
    feed.put(odd, content="x")
    assert feed.get(odd)["id"] == odd
    for wrong in (lambda: feed.get("none"), lambda: feed.delete("none")):
        with pytest.raises(towpath.HttpError) as raised:
            wrong()
        assert raised.value.status == 404
    with pytest.raises(towpath.HttpError, match="titel") as raised:
        feed.batch([{"id": "1", "titel": "x"}])
    assert raised.value.status == 400
    for wrong in ("", ".", ".."):
        with pytest.raises(towpath.UsageError):
            feed.delete(wrong)
    with pytest.raises(towpath.UsageError):
        feed.put("1", json=float("nan"))
    with pytest.raises(towpath.NetworkError):
        towpath.Client("http://127.0.0.1:1", token="secret").feed("x").delete("1")
    assert [change.id for change in feed.follow(once=True)][-1] == odd


def test_changes_of_one_feed_are_lines_of_another(feed, server):
    feed.put("1", title="Ten boats", content=b"\xff", content_type="image/x-test")
    copy = towpath.Client(server.base).feed("feed38")
    copy.batch(feed.follow(once=True))
    assert copy.get("1")["item"] == {"title": "Ten boats"}


def test_discovery_and_check(feed, answers):
    feed.put("1", title="Ten boats")
    assert [offer.protocol for offer in towpath.discover(feed.url)][:1] == ["smart"]
    report = towpath.check(feed.url)
    assert report.conforms and {finding.outcome for finding in report.findings} >= {"pass"}
    assert towpath.check(feed.url, protocol="history").protocol == "history"
    base = answers(lambda path: (200, "text/html", b"<title>x</title>"))
    with pytest.raises(towpath.ProtocolError):
        towpath.check(base)
    with pytest.raises(towpath.ProtocolError):
        towpath.discover(base)


def test_the_examples_of_the_reference_run(feed):
    feed.put("1", title="Ten boats")
    feed.put("2", title="A sail")
    names = {"FEED": feed.url, "BASE": feed.client.base}
    ran = 0
    for module in ("towpath._follow", "towpath._client"):
        # Feeds of examples are this test's.
        finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
        for test in finder.find(sys.modules[module], extraglobs=names):
            test.examples = [
                doctest.Example(example.source.replace('feed("news")', f'feed("{feed.name}")'), example.want)
                for example in test.examples
            ]
            runner.run(test)
        ran += runner.tries
        assert runner.failures == 0
    assert ran > 10


def test_names_and_versions_agree(server):
    assert towpath.__version__ == importlib.metadata.version("towpath")
    page = Path(towpath.__file__).parent
    assert (page / "py.typed").exists()
    assert all(hasattr(towpath, name) for name in towpath.__all__)
    # Installed outside of the checkout, from the wheel.
    assert "site-packages" in str(page)
    program = shutil.which("towpath", path=str(Path(sys.executable).parent))
    printed = subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert printed.split()[1].startswith(towpath.__version__)


def test_the_import_brings_what_it_needs_only():
    # Each would double the time of the import.
    code = "import sys, towpath; print([name for name in ('asyncio', 'sqlite3', 'ssl', 'socket') if name in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert printed == "[]\n"


def test_types(tmp_path):
    uses = tmp_path / "uses.py"
    uses.write_text('''
import asyncio
from datetime import datetime
from typing import Optional
import towpath

def titles(url: str) -> list[str]:
    return [change.item.title or "" for change in towpath.follow(url, state="s", once=True) if change.item]

async def waits(url: str) -> Optional[datetime]:
    async for change in towpath.follow(url, on_gap=lambda gap: print(gap.url)):
        return change.modified
    return None

class Row:
    def load(self) -> Optional[str]:
        return None
    def save(self, state: str) -> None:
        pass

towpath.follow("x", state=Row())
published: towpath.Published = towpath.Client("x", token="t").feed("news").put("1", title="x", json=[1])
conforms: bool = towpath.check("x").conforms
asyncio.run(waits("x"))
''')
    strict = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    for what in (["-p", "towpath"], [str(uses)]):
        checked = subprocess.run([*strict, *what], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        assert checked.returncode == 0, checked.stdout


def test_the_reference_is_made_without_warnings(tmp_path):
    made = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pdoc", "-o", str(tmp_path), "towpath"],
        stderr=subprocess.PIPE, text=True,
    )
    assert made.returncode == 0 and "Warn" not in made.stderr, made.stderr
    assert "Follows a feed" in (tmp_path / "towpath.html").read_text()
