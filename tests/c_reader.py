"""The C reader as tests use it: built once a session, with a sanitizer where one is wanted."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "readers" / "c"
INTERPRETER = sorted((FOLDER / "run").glob("*.c"))
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion", "-Wshadow")
SANITIZED = ("-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
COMPILERS = ("gcc", "clang")


def compiler(name: str = "cc") -> str:
    """The path of a compiler; the test is skipped where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs the C compiler {name}")
    return found


@cache
def _built(main: Path, cc: str, flags: tuple[str, ...]) -> Path | str:
    program = Path(mkdtemp(prefix="qfmt-c-")) / main.stem
    sources = [str(main), *(map(str, INTERPRETER) if "qfb_run.h" in main.read_text("utf-8") else ())]
    done = subprocess.run([cc, *STRICT, *flags, "-o", str(program), *sources], capture_output=True, text=True)
    return program if done.returncode == 0 else done.stderr


def build(main: str, *flags: str, cc: str = "cc") -> Path:
    """The program whose `main` is in that file of readers/c, compiled without a warning."""
    program = _built(FOLDER / main, compiler(cc), flags or ("-O2",))
    assert isinstance(program, Path), program
    return program


def verdicts(program: Path, files: Iterable[bytes], *arguments: str) -> list[tuple[int, str]]:
    """What `test/verdicts.c` says of each file: code and rule. A report of a sanitizer is a failure."""
    stream = b"".join(struct.pack("<I", len(data)) + data for data in files)
    done = subprocess.run([program, *arguments], input=stream, capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
    lines = done.stdout.decode().splitlines()
    return [(int(line.split(" ")[0]), line.split(" ")[1]) for line in lines]
