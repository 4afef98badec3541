"""The conformance suite, as its index lists it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import qfmt
from support.paths import SUITE

INDEX = json.loads((SUITE / "index.json").read_text(encoding="utf-8"))

READABLE = [entry for entry in INDEX["files"] if entry["level"] != "refused"]

REFUSED = [entry for entry in INDEX["files"] if entry["level"] == "refused"]

BY_EVERYONE = [entry for entry in REFUSED if entry["refused_by"] == "every reader"]


def outputs_of(paths: Iterable[Path]) -> int:
    """How many numbers the test vectors of these files state."""
    return sum(
        array.array.size for path in paths for vector in qfmt.load(path).vectors for array in vector.outputs.values()
    )


def path_of(entry: dict[str, Any]) -> Path:
    return SUITE / entry["level"] / f"{entry['name']}.qfb"


def shards_of(entry: dict[str, Any]) -> dict[str, bytes]:
    """The shards of a file by name: those that are there."""
    return {name: (path_of(entry).parent / name).read_bytes() for name in entry.get("shards", ())}


def said_of(entry: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(path_of(entry).with_suffix(".json").read_text(encoding="utf-8"))
    return said
