"""What workers of an archive make models with; they import it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import qfmt
from qfmt.archive.filling import convert_task
from qfmt.archive.manifest import MANIFEST
from qfmt.model import Model


def or_die(path: Path) -> Model:
    """The model of a file; of one that is named so, the death of the process, or an error that nobody expects."""
    if path.stem == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if path.stem == "ended":
        os._exit(3)
    if path.stem == "bug":
        raise ZeroDivisionError("surprise")
    return qfmt.convert(path)


def last_first(path: Path) -> Model:
    """The model of a file; that of `a` when the archive, beside the sources, has `b`."""
    written = path.parent.parent / "archive" / "b.qfb"
    while path.stem == "a" and not written.exists():
        time.sleep(0.01)
    return qfmt.convert(path)


def in_step(path: Path) -> Model:
    """The model of a file, logged, with at most two sources ahead of what the manifest of the archive has.

    It waits for two seconds at most: a worker that is killed may take a result with it that is not in the manifest.
    """
    log, journal = path.parent.parent / "log", path.parent.parent / "archive" / MANIFEST
    with log.open("a") as file:
        file.write(f"{os.getpid()} {path.name}\n")
    total = len(list(path.parent.iterdir()))
    for _ in range(200):
        if len({line.split()[1] for line in log.read_text().splitlines()}) - 2 <= _lines(journal) - total:
            break
        time.sleep(0.01)
    time.sleep(0.1)
    return qfmt.convert(path)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def hungry(path: Path) -> Model:
    """The model of a file; of one that is named so, after more memory than there is, or more time."""
    if path.stem == "hungry":
        bytearray(1 << 40)
    if path.stem == "slow":
        time.sleep(600)
    return qfmt.convert(path)


def _deep() -> list[object]:
    nested: list[object] = []
    for _ in range(500):
        nested = [nested]
    return nested


def written_last(folder: str, maker: str, task: dict[str, Any]) -> dict[str, Any]:
    """The conversion of a source; of one that is named so, by a process that dies before it answers."""
    answer = convert_task(folder, maker, task)
    if Path(task["source"]).stem == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if Path(task["source"]).stem == "failed":
        return {"error": "failed"}
    return answer


_REPORT = {"report": {"ok": True}, "row": ["", "1", "1", "equal"]}
_CHECKED = {"file": "a.qfb", "valid": False, "violations": [], "problem": ""}
_CONVERTED = dict.fromkeys(("sha256", "external", "file_sha256", "content_id"), "1") | {"seconds": 1.0}

NONSENSE: dict[str, dict[str, object]] = {
    "nothing": {},
    "kept": {"kept": True},
    "no error": {"error": 1},
    "half a conversion": {**_CONVERTED, "content_id": 1},
    "no content id": {**_CONVERTED, "content_id": ""},
    "a deep report": {**_REPORT, "report": {"ok": True, "nodes": _deep()}},
    "a report without a verdict": {**_REPORT, "report": {"ok": 1}},
    "a short row": {**_REPORT, "row": ["", "1"]},
    "a row of numbers": {**_REPORT, "row": [1, 2, 3, 4]},
    "a deep check": {**_CHECKED, "proofs": _deep()},
    "a count of proofs that is text": {**_CHECKED, "proofs": {"sums": "1", "reaches": 1, "unknown": {}}},
    "a replay without counts": {**_CHECKED, "replay": {}},
    "violations without rules": {**_CHECKED, "violations": [{"rule": "V1"}]},
    "violations that are numbers": {**_CHECKED, "violations": [{"rule": 1, "where": 2, "what": 3}]},
    "a number of violations": {**_CHECKED, "violations": 3},
}
"""What no worker may answer, by the names of sources."""


def nonsense(*arguments: Any) -> dict[str, object]:
    """The work of a worker that a file has taken over."""
    task = arguments[-1]
    return NONSENSE[Path(task.get("entry", task)["source"]).stem]
