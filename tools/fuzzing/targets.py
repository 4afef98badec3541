"""The targets, by name."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random
from typing import NamedTuple

import qfmt

from . import altered, consumers, corpus, protos, qfb, sources
from .batches import Seed, Target
from .consumers import Consume
from .readers import Reader
from .sources import Mutate


def of_network(data: bytes, chance: Random) -> bytes:
    """A mutant of a `.qfb`: bytes, records, or the network in it."""
    way = chance.random()
    if way < 0.25:
        return qfb.changed_bytes(data, chance)
    if way < 0.6:
        return qfb.changed_records(data, chance)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder) / "m.qfb"
        path.write_bytes(data)
        try:
            return altered.written(altered.changed(qfmt.load(path), chance), path)
        except Exception:  # the writer validates less than the reader
            return qfb.changed_records(data, chance)


class _Entry(NamedTuple):
    seeds: str
    mutate: Mutate
    consume: Consume


def of_file(data: bytes, chance: Random) -> bytes:
    """A mutant of a `.qfb`: bytes or records."""
    return (qfb.changed_bytes if chance.random() < 0.5 else qfb.changed_records)(data, chance)


_TABLE: dict[str, _Entry] = {
    "read": _Entry("qfb", of_file, consumers.read),
    "inspect": _Entry("qfb", of_network, consumers.inspect),
    "view": _Entry("qfb", of_network, consumers.view),
    "run": _Entry("qfb", of_network, consumers.run),
    "to-onnx": _Entry("qfb", of_network, consumers.to_onnx),
    "to-torch": _Entry("qfb", of_network, consumers.to_torch),
    "integer-only": _Entry("float", of_network, consumers.lower),
    "to-c": _Entry("integer", of_network, consumers.to_c),
    "c-program": _Entry("integer", of_network, consumers.compile_c),
    "torchscript": _Entry("torchscript", sources.changed_archive, consumers.convert),
    "saved": _Entry("saved", sources.changed_saved, consumers.convert),
    "exported": _Entry("exported", sources.changed_archive, consumers.convert),
    "safetensors": _Entry("safetensors", sources.changed_safetensors, consumers.convert),
    "onnx": _Entry("onnx", protos.changed_onnx, consumers.convert),
    "verify": _Entry("converted", sources.changed_source, consumers.verify),
    "c-reader": _Entry("qfb", of_file, Reader("c-reader")),
    "c-interpreter": _Entry("integer", of_network, Reader("c-interpreter")),
    "js-reader": _Entry("qfb", of_file, Reader("js-reader")),
}

PROCESSES = frozenset({"subprocess.Popen", "os.posix_spawn", "os.fork"})
"""Permits starting processes: the workers of `verify`, and a compiler."""

NAMES = (*_TABLE,)


def target(name: str, folders: tuple[Path, ...] = (), file: Path | None = None) -> Target:
    """A target with its seeds, plus those of `folders`. A `file` is the only seed, and is not mutated."""
    kind, mutate, consume = _TABLE[name]
    if file:
        found, mutate = [Seed(file.name, file.read_bytes())], lambda data, chance: data
    else:
        found = corpus.seeds(kind, folders)
    start = consume.start if isinstance(consume, Reader) else _nothing
    permitted = PROCESSES if name in ("verify", "c-program") else frozenset()
    return Target(name, Path(found[0].name).suffix, found, mutate, consume, start, permitted)


def _nothing() -> None:
    """Do nothing; most targets need no program."""
