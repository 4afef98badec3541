"""Attempts many mutants in child processes, which may crash: each attempts some thousand and reports the
outcomes."""

from __future__ import annotations

import faulthandler
import gc
import json
import mmap
import os
import re
import select
import shutil
import signal
import struct
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from .consumers import Consume
from .trial import QFMT, attempt, confine

BATCH = 5000
"""The maximum number of mutants per child, which needs some seconds for imports, workers of `verify` and
programs."""

FAILED = 3
"""The exit status of a child in which the fuzzer failed, not qfmt."""

WARM = 8
"""The maximum number of seeds that are used before the first mutant."""

PATIENCE = 600
"""Seconds without a finished mutant after which a child is ended because it waits. A child that computes is ended by
STOP of trial.py, but may have to wait for the processor."""


class Seed(NamedTuple):
    """A file to make mutants of, and the `.qfb` next to each of them, if any."""

    name: str
    data: bytes
    beside: bytes = b""

    def stand_beside(self, path: Path) -> None:
        if self.beside:
            path.with_suffix(".qfb").write_bytes(self.beside)


@dataclass(frozen=True)
class Target:
    """A target: `mutate` makes a mutant of a seed, `consume` acts on it."""

    name: str
    suffix: str
    seeds: Sequence[Seed]
    mutate: Callable[[bytes, Random], bytes]
    consume: Consume
    start: Callable[[], None]
    """Called first in each child: starts the program under test."""
    permitted: frozenset[str]
    """Actions that trial.py forbids in general but permits for this target."""

    def warm(self) -> None:
        """Use some of the seeds, so that children inherit the imports."""
        self.start()
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = Path(folder) / f"seed{self.suffix}"
            for seed in self.seeds[:: len(self.seeds) // WARM + 1]:
                path.write_bytes(seed.data)
                seed.stand_beside(path)
                for index in range(3):
                    with suppress(Exception):  # mutants will show it again
                        self.consume(path, Random(index))

    def mutant(self, seed: int, index: int) -> tuple[Seed, bytes, Random]:
        """A mutant: its seed, its bytes, and the random generator of the action; the same each time."""
        chance = Random(f"{self.name} {seed} {index}")
        chosen = chance.choice(self.seeds)
        return chosen, self.mutate(chosen.data, chance), chance


class Finding(NamedTuple):
    """A fault, with the number of one mutant and the name of its seed."""

    what: str
    frame: str
    index: int
    seed_name: str

    @property
    def key(self) -> str:
        """Findings with the same key count as one."""
        return f"{self.what.partition(':')[0]} {self.frame}"


@dataclass
class Result:
    counts: Counter[str] = field(default_factory=Counter)
    findings: dict[str, Finding] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)

    def add(self, finding: Finding) -> bool:
        """Add a finding; return whether it is new."""
        self.times[finding.key] += 1
        return self.findings.setdefault(finding.key, finding) is finding

    def join(self, other: Result) -> list[Finding]:
        """Add another result; return the findings that are new."""
        self.counts += other.counts
        self.times += other.times
        new = [finding for key, finding in other.findings.items() if key not in self.findings]
        self.findings |= {finding.key: finding for finding in new}
        return new


def batches(first: int, count: int, jobs: int) -> Iterator[range]:
    size = min(BATCH, count // jobs + 1)
    return (range(at, min(at + size, first + count)) for at in range(first, first + count, size))


def run_batch(target: Target, seed: int, indices: range) -> Result:
    """The outcomes of some mutants, none of which can harm this process."""
    result, at = Result(), indices.start
    while at < indices.stop:
        scratch = Path(tempfile.mkdtemp(prefix="fuzz-"))
        try:
            at = _run_child(target, seed, range(at, indices.stop), scratch, result)
        finally:
            shutil.rmtree(scratch)
    return result


def _run_child(target: Target, seed: int, indices: range, scratch: Path, result: Result) -> int:
    """Run a child; return the position after the last mutant that it attempted."""
    progress = mmap.mmap(-1, 8)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status, stderr = 0, os.dup(2)
        try:
            _attempts(target, seed, indices, scratch, progress, writing)
        except BaseException:
            os.write(stderr, traceback.format_exc().encode())
            status = FAILED
        os._exit(status)
    os.close(writing)
    stuck = _listen(reading, child, result)
    _, status = os.waitpid(child, 0)
    (index,) = struct.unpack("<q", progress[:8])
    if status == 0:
        return index + 1
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == FAILED:
        raise RuntimeError(f"mutant {index} of seed {seed} of {target.name}: the fuzzer itself failed")
    name = "stuck" if stuck else signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "exit"
    result.counts["finding"] += 1
    result.add(Finding(f"{name}: the process ended", _last_frame(scratch), index, target.mutant(seed, index)[0].name))
    return index + 1


def _listen(pipe: int, child: int, result: Result) -> bool:
    """Read the child's reports until it ends; return whether it had to be ended."""
    stuck = False
    with open(pipe, encoding="utf-8") as lines:
        while not stuck:
            if not select.select([lines], [], [], PATIENCE)[0]:
                os.kill(child, signal.SIGKILL)
                stuck = True
            elif line := lines.readline():
                index, seed_name, *outcome = json.loads(line)
                word, what, frame = outcome
                result.counts["finding" if what else word] += 1
                if what:
                    result.add(Finding(what, frame, index, seed_name))
            else:
                break
    return stuck


def _last_frame(scratch: Path) -> str:
    """The innermost line of qfmt in what faulthandler wrote."""
    text = (scratch / "crash").read_text("utf-8", "replace") if (scratch / "crash").exists() else ""
    found = re.search(rf'File "[^"]*{QFMT}([^"]+)", line (\d+)', text)
    return f"{found[1]}:{found[2]}" if found else "?"


def _attempts(target: Target, seed: int, indices: range, scratch: Path, progress: mmap.mmap, pipe: int) -> None:
    """Runs in the child: attempts every mutant, and writes a line of JSON for each."""
    empty, own = scratch / "empty", scratch / "own"
    empty.mkdir()
    own.mkdir()
    os.chdir(empty)
    tempfile.tempdir = str(own)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    sys.stdin = None  # type: ignore[assignment]
    crash = (scratch / "crash").open("w")
    faulthandler.enable(crash)
    warnings.simplefilter("ignore")
    os.fsync = lambda file: None  # files need not persist
    path = own / f"mutant{target.suffix}"
    target.start()
    confine(scratch, target.permitted)
    gc.freeze()
    with os.fdopen(pipe, "w", encoding="utf-8", buffering=1) as told:
        for index in indices:
            progress[:8] = struct.pack("<q", index)
            made_of, data, chance = target.mutant(seed, index)
            path.write_bytes(data)
            made_of.stand_beside(path)
            outcome = attempt(target.consume, path, chance, empty)
            told.write(json.dumps([index, made_of.name, *outcome]) + "\n")
            path.unlink()
            if outcome.is_last:
                break
