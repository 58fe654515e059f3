"""Builds the wheel, with the command line inside: `pack.py OUT PROGRAM [maturin's arguments]`. Prints its path.

maturin makes the module. The program is added to the wheel as a script, which installers put on the path.
"""

import base64
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

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


def add_program(wheel: Path, program: bytes) -> None:
    """Adds a script to a wheel, and to the wheel's list of files."""
    name, version = wheel.name.split("-")[:2]
    script = f"{name}-{version}.data/scripts/towpath"
    record = f"{name}-{version}.dist-info/RECORD"
    draft = wheel.with_suffix(".draft")
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        for entry in source.infolist():
            if entry.filename != record:
                target.writestr(entry, source.read(entry))
        added = zipfile.ZipInfo(script)
        added.external_attr = 0o100755 << 16
        target.writestr(added, program, zipfile.ZIP_DEFLATED, compresslevel=9)
        digest = base64.urlsafe_b64encode(hashlib.sha256(program).digest()).rstrip(b"=").decode()
        # The list itself comes last, as the format of wheels asks for.
        files = source.read(record).decode() + f"{script},sha256={digest},{len(program)}\n"
        target.writestr(source.getinfo(record), files)
    draft.replace(wheel)


def main() -> None:
    out, program, *arguments = sys.argv[1:]
    wheel = build(Path(out).resolve(), arguments)
    add_program(wheel, Path(program).read_bytes())
    print(wheel)


main()
