"""Files whose shards break a rule."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise

from ..altered import Record, root
from .case import Bases, Refused


def cases(bases: Bases) -> Iterator[Refused]:
    """Where a system can store a shard of that name or size, it is there: only the rule tells that a file is wrong."""
    base, sharded = bases.sound, bases.sharded
    segment = base.data[base.data_offset :]
    first, last = sharded.record()["shards"]
    border = first["size"]

    def stating(rule: str, name: str, about: str, *shards: Record, there: dict[str, bytes] | None = None) -> Refused:
        data = sharded.changed(root(shards=list(shards)))
        return Refused(f"shard-{name}", rule, about, data, shards=tuple((there or {}).items()))

    def cut(name: str, about: str, *ends: int) -> Refused:
        parts = {f"shard-{name}.{end:04}.qfs": segment[begin:end] for begin, end in pairwise((0, *ends, len(segment)))}
        return stating("F14", name, about, *(_shard(*part) for part in parts.items()), there=parts)

    without = sharded.changed(root(required_features=None))
    yield Refused("shard-feature", "F14", "Shards without the feature", without)
    feature = root(required_features=["shards"])
    yield Refused("shard-none", "F14", "The feature without shards", base.changed(feature))
    other = sharded.changed(root(required_features=["Shards"]))
    yield Refused("shard-unknown", "F10", "Another feature, which no reader knows", other)
    both = base.changed(root(required_features=["shards"], shards=[first, last]))
    yield Refused("shard-data", "F14", "Shards, and data in the file", both)
    for name, about, given in (
        ("folder", "a name in a folder below", "a/shard-folder.qfs"),
        ("parent", "a name in the folder above", "../shard-parent.qfs"),
        ("suffix", "a name that does not end in .qfs", "shard-suffix.qfsx"),
        ("order", "a name that comes after the next one", "z.qfs"),
    ):
        there = {given: segment[:border]}
        yield stating("F14", name, f"A shard with {about}", {**first, "name": given}, last, there=there)
    for name, about, given in (
        ("backslash", "a name in a folder, as Windows writes it", "a\\" + first["name"]),
        ("drive", "a name on another drive", "C:" + first["name"]),
        ("control", "a line feed in its name", "\n" + first["name"]),
        ("delete", "the control character 7F in its name", "\x7f" + first["name"]),
        ("long", "a name of 256 bytes", "n" * 252 + ".qfs"),
        ("twice", "the name of the next one", last["name"]),
    ):
        yield stating("F14", name, f"A shard with {about}", {**first, "name": given}, last)
    empty = "shard-empty.qfs"
    yield stating("F14", "empty", "A shard of 0 bytes", _shard(empty, b""), first, last, there={empty: b""})
    yield cut("odd", "A size that is no multiple of 64", border - 1)
    yield cut("crossed", "A buffer that ends in the next shard", base.value_offset("inputs") + 64)
    filled = bytearray(segment)
    filled[base.record()["buffers"][0]["size"]] = 1
    parts = {"shard-hole.1.qfs": bytes(filled[:border]), "shard-hole.2.qfs": bytes(filled[border:])}
    hole = (_shard(*part) for part in parts.items())
    yield stating("F8", "hole", "A byte between two buffers of a shard is not zero", *hole, there=parts)
    wrapped = {**first, "size": (1 << 64) - 64}
    yield stating("F14", "wrapped", "Sizes of more than 2^63 in total", wrapped, last)
    moved = {**first, "size": border - 64}, {**last, "size": last["size"] + 64}
    yield stating("F15", "moved", "Sizes that are those of no file", *moved)
    yield stating("F15", "missing", "A shard that is not there", {**first, "name": "a.qfs"}, last)
    wrong = stating("F15", "digest", "The sha256 of another shard", {**first, "sha256": last["sha256"]}, last)
    yield wrong._replace(is_whole=True)


def _shard(name: str, data: bytes) -> Record:
    return {"name": name, "size": len(data), "sha256": hashlib.sha256(data).digest()}
