"""tools/fuzz.py finds faults, and a short attack on qfmt finds none."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
if not Path("/proc/self/clear_refs").exists():
    pytest.skip("the memory of a process is read from Linux' /proc", allow_module_level=True)

import qfmt
from fuzzing import trial
from fuzzing.batches import Result, Seed, Target, run_batch
from fuzzing.targets import NAMES
from qfmt.errors import QfmtError
from support.mutants import small_file
from support.paths import ROOT, TOOLS

TESTED_ELSEWHERE = ("c-reader", "c-interpreter", "js-reader")
"""Targets with mutants in other tests: test_c_reader.py, test_c_reader_run.py, test_js_reader.py."""


def test_a_short_attack_on_everything_finds_nothing(tmp_path: Path) -> None:
    names = [name for name in NAMES if name not in TESTED_ELSEWHERE]
    command = [
        sys.executable,
        TOOLS / "fuzz.py",
        *names,
        "--mutants",
        "10",
        "--findings",
        tmp_path,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" 10 mutants: ") == done.stdout.count("; 0 distinct findings") == len(names)
    assert list(tmp_path.iterdir()) == []


def attacked(consume: Callable[[Path, Random], str], count: int = 3) -> Result:
    """The findings for a faulty consumer of files of 100 bytes."""
    target = Target("t", ".bin", [Seed("s", bytes(100))], lambda data, chance: data, consume, lambda: None, frozenset())
    return run_batch(target, 0, range(count))


def allocates(path: Path, chance: Random) -> str:
    return str(np.ones(20 << 20).sum())


def writes(path: Path, chance: Random) -> str:
    Path("PWNED").write_text("here")
    return "done"


def writes_elsewhere(path: Path, chance: Random) -> str:
    (ROOT / "PWNED").write_text("here")
    return "done"


def loops(path: Path, chance: Random) -> str:
    while True:
        pass


def several_lines(path: Path, chance: Random) -> str:
    class TwoLines(QfmtError):
        def __str__(self) -> str:
            return "a\nb"

    raise TwoLines("a")


def fails(path: Path, chance: Random) -> str:
    raise KeyError("x")


def ends(path: Path, chance: Random) -> str:
    os._exit(1)


WRONG: dict[str, tuple[Callable[[Path, Random], str], str]] = {
    "an exception": (fails, "KeyError: 'x'"),
    "a crash": (lambda path, chance: str(ctypes.string_at(0)), "SIGSEGV: the process ended"),
    "an exit": (ends, "exit: the process ended"),
    "memory": (allocates, "TooMuchMemory: "),
    "a file": (writes, "SideEffect: wrote PWNED"),
    "a file elsewhere": (writes_elsewhere, "SideEffect: writes"),
    "a process": (lambda path, chance: str(os.system("true")), "SideEffect: os.system"),
    "a message of two lines": (several_lines, "Disagreement: a message that is not one line"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.filterwarnings("ignore:.*use of fork.*")
def test_faults_are_found(name: str) -> None:
    consume, words = WRONG[name]
    result = attacked(consume)
    (finding,) = result.findings.values()
    assert finding.what.startswith(words), finding
    assert (finding.index, result.counts) == (0, {"finding": 3})
    assert not (ROOT / "PWNED").exists()


@pytest.mark.filterwarnings("ignore:.*use of fork.*")
def test_endless_loops_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "STOP", 1)
    (finding,) = attacked(loops, count=1).findings.values()
    assert finding.what.startswith("TooSlow: not finished")


@pytest.mark.filterwarnings("ignore:.*use of fork.*")
def test_findings_are_distinguished_by_their_place_in_qfmt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two faults in the reader are two findings, and their mutants can be reproduced."""
    from fuzzing.qfb import changed_records
    from qfmt.file.reader import Container

    (tmp_path / "s.qfb").write_bytes(small_file(tmp_path / "s.qfb"))
    model = qfmt.load(tmp_path / "s.qfb")
    other = replace(model.graph, nodes=[replace(node, operator="vendor.Other") for node in model.nodes])
    model.replace(graph=other).save(tmp_path / "o.qfb")
    seeds = [Seed(name, (tmp_path / f"{name}.qfb").read_bytes()) for name in "so"]
    target = Target("t", ".qfb", seeds, changed_records, _node_names, lambda: None, frozenset())

    def node(self: Container, record: Any) -> Any:
        return 1 // {"vendor.Linear": 0}[record["operator"]]

    monkeypatch.setattr(Container, "node", node)
    result = run_batch(target, 1, range(200))
    assert {finding.what.partition(":")[0] for finding in result.findings.values()} == {"KeyError", "ZeroDivisionError"}
    assert target.mutant(1, 7)[1] == target.mutant(1, 7)[1] != target.mutant(2, 7)[1]


def _node_names(path: Path, chance: Random) -> str:
    return str([node.name for node in qfmt.load(path).nodes])
