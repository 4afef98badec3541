"""Files that attack: every command ends with its status, at most one line of error, in little memory.

A row of EXPECTED is a file in `tests/hostile`: for each command its exit status, or status and a part of the message.
`{file}` is the path of the file, `{out}` a new path without suffix. Commands are run in another process, with
10 × the file + 64 MB of memory and a limit of processor time (`hostile_commands.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HOSTILE = HERE / "hostile"

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
    "convert {file} {out} --to c",
    "convert {file} {out}.onnx --opset 21",  # stated, so that ONNX Runtime is not asked: its threads survive no fork
    "to_torch {file}",
)
"""Every command that takes a `.qfb`."""


def qfb(statuses: str, **says: str) -> dict[str, Outcome]:
    """A row for a `.qfb`: the statuses of READING in their order, and for some of the commands what they say."""
    assert len(statuses) == len(READING)
    return {
        command: (int(status), says[word]) if (word := command.split()[0]) in says else int(status)
        for command, status in zip(READING, statuses, strict=True)
    }


EXPECTED: dict[str, dict[str, Outcome]] = {
    "json-infinity.qfb": qfb("00000020220202"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_hostile_file(name: str, tmp_path: Path) -> None:
    file = HOSTILE / name
    out = [str(tmp_path / f"out{number}") for number in range(len(EXPECTED[name]))]
    commands = [
        command.format(file=file, out=path).split() for command, path in zip(EXPECTED[name], out, strict=True)
    ]
    before = sorted(HOSTILE.iterdir())
    ran = subprocess.run(
        [sys.executable, str(HERE / "hostile_commands.py"), str(file), json.dumps(commands)],
        capture_output=True,
        timeout=300,
        cwd=tmp_path,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
    )
    assert ran.returncode == 0, ran.stderr.decode()
    wrong = []
    for (command, expected), (status, stdout, stderr) in zip(
        EXPECTED[name].items(), json.loads(ran.stdout), strict=True
    ):
        wanted, says = expected if isinstance(expected, tuple) else (expected, "")
        errors = [line for line in stderr.splitlines() if line.startswith("qfmt: error:")]
        fault = "Traceback" in stderr or "a fault in qfmt" in stderr
        one_line = len(errors) == (status == 2) and max(map(len, errors), default=0) < 5000
        if status != wanted or says not in stdout + stderr or fault or not one_line or "\x1b" in stdout + stderr:
            wrong.append(f"{command}: {status}, not {wanted}: {stderr[-500:]}")
    assert not wrong, "\n".join(wrong)
    assert sorted(HOSTILE.iterdir()) == before
    assert {path.name for path in tmp_path.iterdir()} <= {
        f"{Path(path).name}{suffix}" for path in out for suffix in ("", ".qfb", ".onnx", ".onnx.data")
    }


def test_every_hostile_file_has_a_row() -> None:
    assert {path.name for path in HOSTILE.glob("*.qfb")} == {name for name in EXPECTED if name.endswith(".qfb")}
