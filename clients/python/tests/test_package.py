"""The package: its names, its types, its examples, its start, its publishing."""

import datetime
import doctest
import glob
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import packaging.tags
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
    # The programs of the guide, too.
    guide = Path(os.environ["TOWPATH_ROOT"], "docs/python.md").read_text()
    programs = re.findall(r"^```python (\S+)\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    for name, program in programs:
        (tmp_path / name).write_text(program)
    assert len(programs) > 5
    strict = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    for what in (["-p", "towpath"], [str(uses), *(name for name, _ in programs)]):
        checked = subprocess.run([*strict, *what], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        assert checked.returncode == 0, checked.stdout


def test_the_stub_says_what_the_module_has():
    checked = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "towpath._towpath", "--concise"], stdout=subprocess.PIPE, text=True
    )
    assert checked.returncode == 0, checked.stdout


def test_the_tag_of_the_wheel():
    metadata = importlib.metadata.distribution("towpath")
    (tag,) = re.findall(r"^Tag: (.*)$", metadata.read_text("WHEEL"), re.MULTILINE)
    assert re.fullmatch(r"cp39-abi3-manylinux_2_\d+_\w+", tag), tag
    assert metadata.metadata["Requires-Python"] == ">=3.9"
    assert f"towpath-{towpath.__version__}-{tag}.whl" == Path(os.environ["TOWPATH_WHEEL"]).name

    def is_accepted(python, abi):
        # By the rules of pip, which has a copy of this library.
        accepted = packaging.tags.cpython_tags(python, [abi], [tag.split("-")[2]])
        return not packaging.tags.parse_tag(tag).isdisjoint(accepted)

    assert all(is_accepted((3, minor), f"cp3{minor}") for minor in range(9, 16))
    # Builds without the lock have another interface: pip must not install what cannot be imported.
    assert not any(is_accepted((3, minor), abi) for minor, abi in ((8, "cp38"), (13, "cp313t"), (14, "cp314t")))


def other_pythons():
    """Interpreters on the path and in pyenv's folder, from the first on that the wheel is for."""
    names = [shutil.which(f"python3.{minor}") for minor in range(9, 20)]
    names += glob.glob(os.path.expanduser(os.environ.get("PYENV_ROOT", "~/.pyenv") + "/versions/*/bin/python3"))
    code = "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
    found = {}
    for name in filter(None, names):
        told = subprocess.run([name, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        # A stand-in of pyenv for a version that is not chosen fails.
        if told.returncode == 0:
            major, minor, has_no_lock = map(int, told.stdout.split())
            if (major, minor) >= (3, 9) and not has_no_lock:
                found[major, minor] = name
    return found


def test_every_interpreter_at_hand_can_use_it(feed):
    feed.put("1", title="Ten boats", json={"boats": 10}, published=datetime.datetime(2026, 1, 2, 3, 4, 5, 678, datetime.timezone.utc))
    code = """
import asyncio, sys, towpath
change, = towpath.follow(sys.argv[1], once=True)
assert (change.item.title, change.json, change.item.published.year) == ("Ten boats", {"boats": 10}, 2026)
async def main():
    return [change.id async for change in towpath.follow(sys.argv[1], once=True)]
assert asyncio.run(main()) == ["1"]
"""
    # The folder into which the wheel was unpacked, and nothing else of this interpreter.
    site = {"PYTHONPATH": str(Path(towpath.__file__).parent.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    for version, python in other_pythons().items():
        ran = subprocess.run([python, "-c", code, feed.url], env={**os.environ, **site}, stderr=subprocess.PIPE, text=True)
        assert ran.returncode == 0, f"{version}: {ran.stderr}"


def test_the_reference_is_made_without_warnings(tmp_path):
    made = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pdoc", "-o", str(tmp_path), "towpath"],
        stderr=subprocess.PIPE, text=True,
    )
    assert made.returncode == 0 and "Warn" not in made.stderr, made.stderr
    assert "Follows a feed" in (tmp_path / "towpath.html").read_text()
