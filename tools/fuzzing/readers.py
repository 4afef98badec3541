"""The readers in C and JavaScript: programs that check one mutant after the other, compared with Python."""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

import qfmt
from qfmt.errors import QfmtError

from .consumers import Disagreement, load_everything
from .trial import ProgramEnded

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path.append(str(TESTS))

from support import c_reader  # noqa: E402


class Program:
    """A program that reads sizes and files from stdin and prints one line for each."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process lives
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors
        )

    def ask(self, data: bytes) -> list[str]:
        """Send a file; return the words of the line. Raises ProgramEnded if the program ends."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(struct.pack("<I", len(data)) + data)
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            self.errors.seek(0)
            text = self.errors.read().decode(errors="replace")
            told = next((line for line in text.splitlines() if "ERROR" in line or "error" in line), text[:300])
            raise ProgramEnded(told)
        return line.decode().split()


class Reader:
    """One of the programs: built once, started in each process that uses it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.program: Program | None = None

    def start(self) -> None:
        self.program = Program(_command(self.name))

    def __call__(self, path: Path, chance: Random) -> str:
        assert self.program is not None
        return _JUDGES[self.name](path, self.program.ask(path.read_bytes()))


@cache
def _command(name: str) -> tuple[str | Path, ...]:
    if name == "js-reader":
        from support.js_reader import Reader as Package

        package = Package()
        return "node", package.root / "readers/js/build/readers/js/tests/verdicts.js", "-"
    main = "test/verdicts.c" if name == "c-reader" else "test/runs.c"
    return (c_reader.build(main, *c_reader.SANITIZED),)


def _read(path: Path) -> bool:
    try:
        load_everything(qfmt.load(path))
    except QfmtError:
        return False
    return True


def _c_reader(path: Path, words: list[str]) -> str:
    code, rule = int(words[0]), words[1] if len(words) > 1 else ""
    read = _read(path)
    if wrong := c_reader.read_disagreement(path, code, rule, read=read):
        raise Disagreement(wrong)
    return "refused by both" if not read else "refused by C and `check`" if code else "read by both"


def _c_interpreter(path: Path, words: list[str]) -> str:
    code, _, digest = words
    wanted = c_reader.expected_hash(path)
    if wrong := c_reader.run_disagreement(wanted, int(code), digest):
        raise Disagreement(wrong)
    return "computed by both" if wanted and code == "0" else "computed by one" if wanted or code == "0" else "refused"


def _js_reader(path: Path, words: list[str]) -> str:
    read = _read(path)
    if read != (words == ["ok"]):
        raise Disagreement(f"JavaScript says {' '.join(words)!r}, Python {'reads it' if read else 'refuses it'}")
    return "read by both" if read else "refused by both"


_JUDGES = {"c-reader": _c_reader, "c-interpreter": _c_interpreter, "js-reader": _js_reader}
