"""Malicious files: every command ends with the expected status, at most one line of error, and little memory.

A row of EXPECTED is a file in `tests/hostile`: for each command its exit status, or status and a part of the message.
`{file}` is the path of the file, `{out}` a new path without suffix. Commands are run in another process, each with
10 × the file + 64 MB of memory and a limit of processor time (`hostile_commands.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.paths import HOSTILE, PROGRAMS

LONGEST_LINE = 13_000

Outcome = int | tuple[int, str]

READING = (
    "check {file}",
    "check {file} --json",
    "inspect {file}",
    "inspect {file} --json",
    "inspect {file} --tensors",
    "inspect {file} --floats",
    "inspect {file} --integer",
    "diff {file} {file}",
    "run {file} --vectors",
    "convert {file} {out}.qfb",
    "convert {file} {out}.qfb --integer-only",
    "convert {file} {out}/",
    "convert {file} {out}.onnx --opset 21",  # --opset: does not ask ONNX Runtime, whose threads do not survive a fork
    "to_torch {file}",
)
"""Every command that takes a `.qfb`."""


def qfb(statuses: str, **says: str) -> dict[str, Outcome]:
    """A row for a `.qfb`: the statuses of the commands in READING, in order, and messages for some of them."""
    assert len(statuses) == len(READING)
    return {
        command: (int(status), says[word]) if (word := command.split()[0]) in says else int(status)
        for command, status in zip(READING, statuses, strict=True)
    }


EXPECTED: dict[str, dict[str, Outcome]] = {
    "A.qfb": qfb("11020022222222"),
    "B.qfb": qfb("11020022222222"),
    "c-escape.qfb": qfb("00000000002000"),
    "clip-no-bound.qfb": qfb("11000022222222", to_torch="V43"),
    "c-unknown.qfb": qfb("00000020202202"),
    "c-unsigned.qfb": qfb("00000000200000"),
    "inspect-integer-broadcast.qfb": qfb("11000022222222", to_torch="V63 node 1 (qfmt.Requantize → y): add is int8"),
    "inspect-integer-no-output.qfb": qfb(
        "11000022222222", run="V41 node 0 (qfmt.Requantize → ): the output y is absent"
    ),
    "inspect-integer-table.qfb": qfb("11000022222222"),
    "inspect-output-index.qfb": qfb("11220222222222", run="there is no tensor -1"),
    "inspect-integer-rows.qfb": qfb("00000000200000"),
    "json-infinity.qfb": qfb("00000020202202"),
    "lower-bias.qfb": qfb("11000022222222", to_torch="V43"),
    "long-names.qfb": qfb("11220222222222", check="F6", to_torch="too often"),
    "lower-newer.qfb": qfb("00000020202222"),
    "lower-keyerror.qfb": qfb("11000022222222", run="V41 node 0 (Concat → y): the input inputs is absent"),
    "many-adds.qfb": qfb("00000020202200"),
    "newer-quantize.qfb": qfb("00000020202222", to_torch="a newer qfmt is needed"),
    "newer-relu.qfb": qfb("00000020202222", to_torch="a newer qfmt is needed"),
    "output-padding.qfb": qfb("11000022222222", to_torch="V43"),
    "pad-no-value.qfb": qfb("11000022222222", to_torch="V43"),
    "pool-large.qfb": qfb("00000020200000"),
    "pool-window.qfb": qfb("00000000202000"),
    "pool-window-sizes.qfb": qfb("00000020200200"),
    "resize-long.qfb": qfb("11220022222200"),
    "resize-nothing.qfb": qfb("00000020200220"),
    "sametensor.qfb": qfb("11222222222222"),
    "to-onnx-attribute.qfb": qfb("00000020202222"),
    "to-onnx-bins.qfb": qfb("00000020202220"),
    "to-onnx-index.qfb": qfb("11000022222222", run="V41 node 2 (vendor.Log → ): it has no output"),
    "to-onnx-sums.qfb": qfb("00000020202222", to_torch="P1"),
    "to-onnx-version.qfb": qfb("00000020202222"),
    "to-torch-index.qfb": qfb("11000022222222", run="V41 node 2 (vendor.Log → ): it has no output"),
}

Run = Callable[[Path, list[str]], list[tuple[int, str, str]]]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """A function that runs commands on a file under the limits; servers import modules once, and fork."""
    few = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}  # each reserves memory
    command = [sys.executable, str(PROGRAMS / "hostile_commands.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": os.environ | few, "text": True}
    with subprocess.Popen(command, **pipes) as heavy, subprocess.Popen([*command, "light"], **pipes) as light:

        def ask(server: Any, file: Path, commands: list[str]) -> list[tuple[int, str, str]]:
            server.stdin.write(json.dumps([str(file), [command.split() for command in commands]]) + "\n")
            server.stdin.flush()
            return [(status, out, err) for status, out, err in json.loads(server.stdout.readline())]

        def run(file: Path, commands: list[str]) -> list[tuple[int, str, str]]:
            frameworks = [command for command in commands if command.startswith("to_torch") or "--opset" in command]
            others = [command for command in commands if command not in frameworks]
            found = zip([*others, *frameworks], ask(light, file, others) + ask(heavy, file, frameworks), strict=True)
            outcomes = dict(found)
            return [outcomes[command] for command in commands]

        yield run
        heavy.stdin.close()
        light.stdin.close()


def complaints(command: str, outcome: tuple[int, str, str], expected: Outcome) -> list[str]:
    """The differences between the result of a command and the expected one."""
    status, told, error = outcome
    wanted, says = expected if isinstance(expected, tuple) else (expected, "")
    lines = [line for line in error.splitlines() if line.startswith("qfmt: error:")]
    wrong = [f"status {status}, not {wanted}"] if status != wanted else []
    if "Traceback" in error or "a bug in qfmt" in error:
        wrong.append("a fault")
    if len(lines) != (status == 2) or max(map(len, lines), default=0) > LONGEST_LINE:
        wrong.append(f"{len(lines)} lines of error")
    if "\x1b" in told + error or says not in told + error:
        wrong.append(f"a control character, or not: {says}")
    return [f"{command}: {each}: {error[-500:]}" for each in wrong]


@pytest.mark.parametrize("name", EXPECTED)
def test_hostile_file(name: str, run: Run, tmp_path: Path) -> None:
    before = sorted(HOSTILE.iterdir())
    commands = [
        command.format(file=HOSTILE / name, out=tmp_path / f"out{number}") for number, command in enumerate(READING)
    ]
    outcomes = zip(commands, run(HOSTILE / name, commands), EXPECTED[name].values(), strict=True)
    wrong = [line for each in outcomes for line in complaints(*each)]
    assert not wrong, "\n".join(wrong)
    assert sorted(HOSTILE.iterdir()) == before
    assert all(path.name.startswith("out") for path in tmp_path.iterdir())


def test_every_hostile_file_has_a_row() -> None:
    assert {path.name for path in HOSTILE.glob("*.qfb")} == {name for name in EXPECTED if name.endswith(".qfb")}
