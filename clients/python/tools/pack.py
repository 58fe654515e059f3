"""Builds the wheel, with the command line inside: `pack.py OUT PROGRAM [maturin's arguments]`. Prints its path.

maturin makes the module. The program is added to the wheel as a script, which installers put on the path.
"""

import base64
import functools
import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import zopfli

PROJECT = Path(__file__).resolve().parent.parent


def build(out: Path, arguments: "list[str]") -> Path:
    """Lets maturin build the wheel in an empty folder; returns its path."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.whl"):
        old.unlink()
    command = [sys.executable, "-m", "maturin", "build", "--quiet", "--out", str(out), *arguments]
    subprocess.run(command, cwd=PROJECT, check=True, stdout=sys.stderr)
    (wheel,) = out.glob("*.whl")
    return wheel


def add_program(wheel: Path, program: bytes, is_release: bool) -> None:
    """Adds a script to a wheel, and to the wheel's list of files."""
    # Zopfli makes Deflate a thirtieth smaller, and takes minutes. What only tests install is packed in a tenth of the time.
    archive = functools.partial(zopfli.ZipFile, iterations=1) if is_release else zipfile.ZipFile
    level = 9 if is_release else 1
    name, version = wheel.name.split("-")[:2]
    script = f"{name}-{version}.data/scripts/towpath"
    record = f"{name}-{version}.dist-info/RECORD"
    draft = wheel.with_suffix(".draft")
    with zipfile.ZipFile(wheel) as source, archive(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as target:
        for entry in source.infolist():
            if entry.filename != record:
                target.writestr(entry, source.read(entry))
        added = zipfile.ZipInfo(script)
        added.external_attr = 0o100755 << 16
        added.compress_type = zipfile.ZIP_DEFLATED
        target.writestr(added, program, compresslevel=level)
        digest = base64.urlsafe_b64encode(hashlib.sha256(program).digest()).rstrip(b"=").decode()
        # The list itself comes last, as the format of wheels asks for.
        files = source.read(record).decode() + f"{script},sha256={digest},{len(program)}\n"
        target.writestr(source.getinfo(record), files)
    draft.replace(wheel)


def check_libc(wheel: Path, program: bytes) -> None:
    """Fails if the program needs a newer C library than the wheel's tag says. maturin knows the module only."""
    found = re.findall(rb"GLIBC_(\d+)\.(\d+)(?:\.\d+)?\0", program)
    needed = max((int(major), int(minor)) for major, minor in found)
    tag = re.search(r"-manylinux_(\d+)_(\d+)_", wheel.name)
    if tag is None or (int(tag[1]), int(tag[2])) < needed:
        sys.exit(f"{wheel.name}: the program needs glibc {needed[0]}.{needed[1]}, which the tag does not say")


def main() -> None:
    out, program, *arguments = sys.argv[1:]
    wheel, content = build(Path(out).resolve(), arguments), Path(program).read_bytes()
    check_libc(wheel, content)
    add_program(wheel, content, is_release="dev" not in arguments)
    print(wheel)


main()
