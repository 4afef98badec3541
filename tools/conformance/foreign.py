"""A file by another writer: flatc, the compiler of FlatBuffers, encodes the tables from JSON.

It orders tables, fields and vtables in its own way, and is told to write fields that equal their
default.
"""

from __future__ import annotations

import json
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generate_schema import SOURCE, flatc

from . import altered
from .containers import record_of, with_metadata
from .networks import Case


def cases() -> Iterator[Case]:
    about = "Tables in another order, with other vtables, and with fields that equal their default"
    yield Case("other-writer", about, altered.sound(), by_flatc)


def by_flatc(data: bytes) -> bytes:
    """The file with the same tables, encoded by flatc. All offsets are relative, so the header fits in between."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "model.json")
        source.write_text(json.dumps(_json(record_of(data))), encoding="utf-8")
        command = [flatc(), "--binary", "--force-defaults", "-o", folder, str(SOURCE), str(source)]
        subprocess.run(command, check=True, capture_output=True)
        made = Path(folder, "model.bin")
        encoded = (made if made.exists() else Path(folder, "model.qfb")).read_bytes()
    return with_metadata(data, struct.unpack_from("<I", encoded)[0] - 8, encoded[8:])


def _json(value: Any) -> Any:
    """A record as flatc reads it: bytes are lists of numbers, a digest is a struct, and what is absent is left out."""
    if isinstance(value, dict):
        stated = {name: each for name, each in value.items() if each is not None}
        return {name: {"bytes": list(each)} if name == "sha256" else _json(each) for name, each in stated.items()}
    return [_json(each) for each in value] if isinstance(value, (bytes, bytearray, memoryview, list, tuple)) else value
