"""Sources for archives, and what is in an archive."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qfmt.archive.filling import Task, fill
from qfmt.archive.manifest import MANIFEST, Manifest
from qfmt.archive.sources import find
from qfmt.file.sharding import stated
from support.paths import DIGITS, HOSTILE

FINDINGS = HOSTILE / "stride0.pt"
WEIGHTS = 1280
"""Bytes of the only member of DIGITS that has as many: the weights of its last layer."""


def digits(path: Path, number: int = 0, form: int = zipfile.ZIP_STORED) -> Path:
    """The network of DIGITS with some other weights; another form of the zip has other bytes and the same model."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(DIGITS) as source, zipfile.ZipFile(path, "w", form) as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, bytes([number]) + content[1:] if len(content) == WEIGHTS else content)
    return path


def with_external_data(path: Path, *values: float) -> None:
    """An ONNX model that adds two values, which lie in m.data beside it."""
    onnx = pytest.importorskip("onnx")
    path.parent.mkdir()
    text = '<ir_version: 9, opset_import: ["": 17]> agraph (float[2] x) => (float[2] y) { y = Add(x, w) }'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(values, np.float32), "w"))
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)


def task_for(source: Path, **options: Any) -> Task:
    """The task to convert a source that an archive does not have yet."""
    file = f"{source.stem}.qfb"
    return Task(
        source=source.name,
        path=str(source),
        listed=str(source),
        file=file,
        repaired=file,
        options=options,
        known=None,
        must_be_equal=False,
    )


def kept(sources: Path, archive: Path, **options: Any) -> set[str]:
    """Fill an archive; the sources that were there already."""
    results = fill(archive, find([str(sources)], archive).sources, **options).results
    return {name for name, result in results.items() if result == "kept"}


def lines(archive: Path) -> list[dict[str, Any]]:
    """The lines of a manifest, without what differs between two runs."""
    entries = map(json.loads, (archive / MANIFEST).read_text().splitlines())
    return [{key: value for key, value in entry.items() if key != "seconds"} for entry in entries]


def files(archive: Path) -> list[str]:
    return sorted(path.relative_to(archive).as_posix() for path in archive.rglob("*.qfb"))


def shards(archive: Path) -> dict[str, set[str]]:
    """The names of the shards that each file of an archive states; the folder has these and no others."""
    found = {file: {shard.name for shard in stated(archive / file)} for file in files(archive)}
    assert {path.name for path in archive.iterdir()} == {*found, MANIFEST}.union(*found.values())
    return found


def described(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """What does not depend on the place and the time."""
    entries = manifest.entries.values()
    return {entry.source: (entry.sha256, entry.file, entry.file_sha256, entry.content_id) for entry in entries}
