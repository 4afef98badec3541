"""A file that torch.save wrote: its contents, as data. Two forms: a zip archive (since PyTorch 1.6), and consecutive
pickles with the storages after them.
"""

from __future__ import annotations

import mmap
from os import PathLike
from typing import Any

from ....budget import Budget
from ....errors import SourceError, brief, damaged
from ....regular import mapped
from ...content import Content, outermost
from ...harmless import harmless_or_inert
from ...pickles import BESIDE, Pickles, unpickle
from ...stored import ELEMENT_BITS, Storage
from ...zips import PytorchZip, big_endian

_PROTOCOL = 1001
"""The only version of the form without zip, according to torch/serialization.py."""


class Saved:
    """`value` is the saved object: dicts, lists, StoredTensors, and Inert objects of classes that stay names.

    `version` is the version of the file's form, as stated there; `budget` is that of its conversion. Nothing
    of the file is executed. Raises SourceError for a damaged file, UnsafePickleError for one with names that no model
    needs.
    """

    def __init__(self, value: Any, version: str, budget: Budget) -> None:
        self.value = outermost(value)
        self.version = version
        self.budget = budget


def read(path: str | PathLike[str]) -> Saved:
    """The contents of a file that torch.save wrote, in either form."""
    if not Content(path).is_zip:
        return read_legacy(path)
    archive = PytorchZip(path)
    archive.budget.bytes += BESIDE
    return read_zip(archive)


def read_zip(archive: PytorchZip) -> Saved:
    """The contents of an archive that torch.save wrote."""

    dtypes: dict[str, str] = {}

    def storage(key: str, dtype: str) -> Storage:
        _check_type(dtypes, key, dtype)
        return archive.storage(f"{archive.root}data/{key}", dtype, archive.budget)

    data = archive.read(f"{archive.root}data.pkl")
    value = unpickle(data, storage, where="data.pkl", find_global=harmless_or_inert, budget=archive.budget)
    return Saved(value, archive.version, archive.budget)


def read_legacy(path: str | PathLike[str]) -> Saved:
    """The contents of a file from before PyTorch 1.6: magic number, protocol, facts about the machine, the object, the
    list of its storages, and each storage: a 64-bit count of elements and the elements.
    """
    data = mapped(path)
    budget = Budget(len(data))
    budget.bytes += BESIDE
    dtypes: dict[str, str] = {}
    storages: dict[tuple[str, str], Storage] = {}
    places: dict[str, memoryview] = {}

    def storage(key: str, dtype: str) -> Storage:
        _check_type(dtypes, key, dtype)
        return storages.setdefault((key, dtype), Storage(key, dtype, lambda: places[key], budget))

    pickles = Pickles(data, storage, find_global=harmless_or_inert, budget=budget)
    _magic, protocol, machine, value, keys = (pickles.next() for _ in range(5))
    if protocol != _PROTOCOL:
        what = f"has version {brief(protocol)} of the format without zip, which PyTorch never wrote"
        raise SourceError(what, hint="the file is damaged")
    if isinstance(machine, dict) and machine.get("little_endian") is False:
        raise big_endian()
    places.update(_storages(data, pickles.position, keys, dtypes))
    if lost := dtypes.keys() - places.keys():
        raise SourceError(f"lacks the storage {min(lost)[:100]}", hint="the file is truncated")
    return Saved(value, str(protocol), budget)


def _check_type(dtypes: dict[str, str], key: str, dtype: str) -> None:
    """Note the element type of a storage; SourceError if it has another one already, which PyTorch would ignore. One
    without a type counts as bytes."""
    dtype = dtype or "uint8"
    if dtypes.setdefault(key, dtype) != dtype:
        raise damaged(f"the storage {key[:100]} has two element types")


def _storages(data: mmap.mmap, position: int, keys: Any, dtypes: dict[str, str]) -> dict[str, memoryview]:
    """The position of each storage: after the pickles, in the order of `keys`."""
    view, places = memoryview(data), {}
    if not isinstance(keys, list):
        raise damaged("does not list its storages")
    for key in keys:
        if not isinstance(key, str) or key not in dtypes:
            raise damaged("lists a storage that no tensor uses")
        count = int.from_bytes(view[position : position + 8], "little")
        size = count * _element_bytes(dtypes[key])
        position += 8
        if position + size > len(view):
            raise SourceError(f"ends within the storage {key[:100]}", hint="the file is truncated")
        places[key] = view[position : position + size]
        position += size
    return places


def _element_bytes(dtype: str) -> int:
    """Bytes of one element as PyTorch counts them: one for packed types and untyped storages."""
    return max(ELEMENT_BITS.get(dtype, 8) // 8, 1)
