"""A `.pt2` archive: one JSON program, and tensors as raw bytes in separate entries.

Layout and names: torch/csrc/export/pt2_archive_constants.h; the program: torch/_export/serde/schema.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

from ....budget import Budget
from ....errors import SourceError, damaged
from ....graph import MAXIMUM_RANK
from ...json_text import parse
from ...stored import Storage, StoredTensor
from ...zips import PytorchZip
from ..saved.file import read_zip
from ..saved.tensors import IN_MEMORY

SCHEMA = 8
"""The major version of the program's schema that this reader knows: torch 2.5 and later write it."""

SAVE_AGAIN = "load it with the PyTorch that wrote it, and save it with torch.export.save of PyTorch 2.9 or later"

_OLDER = "serialized_exported_program.json"
"""The program in older archives. PyTorch prefers older tensors, and an older program if another is incomplete."""

DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
    10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16", 29: "float8_e4m3fn",
    30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz", 33: "float8_e8m0fnu", 34: "uint32", 35: "uint64",
}  # fmt: skip
"""ScalarType of schema.py, which is not c10's."""


class Archive:
    """The program as JSON, its version, and the tensors by their qualified names, read on demand.

    Raises SourceError for a damaged archive, or one in another form than that of current torch.export.save.
    """

    def __init__(self, source: str | PathLike[str] | bytes, budget: Budget | None = None) -> None:
        self._zip = PytorchZip(source, budget)
        self.budget = self._zip.budget
        self._root = self._zip.root
        self.name = self._model_name()
        tensors = (f"{self._root}data/{kind}/{self.name}.pt" for kind in ("weights", "constants"))
        if not self._zip.entries.keys().isdisjoint((_OLDER, *tensors)):
            raise SourceError("has a program or tensors in the form of PyTorch before 2.9, too", hint=SAVE_AGAIN)
        self.program = self._json(f"models/{self.name}.json")
        self.version = _version(self.program)
        self._payloads = {
            kind: dict(self._config(f"data/{kind}/{self.name}_{kind}_config.json")) for kind in ("weights", "constants")
        }
        self._tensors: dict[tuple[str, str], StoredTensor] = {}
        self._types: dict[str, str] = {}

    def tensor(self, kind: str, name: str) -> StoredTensor:
        """A tensor by its qualified name; `kind` is "weights" (parameters and buffers) or "constants"."""
        found = self._tensors.get((kind, name))
        if found is None:
            found = self._tensors[kind, name] = self._read(kind, name)
        return found

    def shape(self, kind: str, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor without reading it; None if the archive does not state it."""
        try:
            return _whole(self._payloads[kind][name]["tensor_meta"]["sizes"])
        except (KeyError, TypeError, SourceError):
            return None

    def storage(self, kind: str, name: str) -> str:
        """The entry with the bytes of a tensor, which others may have, too; its name if the archive states none."""
        try:
            return f"{kind}/{self._payloads[kind][name]['path_name']}"
        except (KeyError, TypeError):
            return name

    def names(self, kind: str) -> Iterator[str]:
        return iter(self._payloads[kind])

    def _read(self, kind: str, name: str) -> StoredTensor:
        if name not in self._payloads[kind]:
            raise damaged("the archive lacks this tensor", where=name)
        try:
            return self._payload(self._payloads[kind][name], f"{self._root}data/{kind}", name)
        except SourceError as error:
            raise error.at(name) from None

    def _payload(self, payload: Any, folder: str, name: str) -> StoredTensor:
        try:
            entry, pickled, meta = f"{folder}/{payload['path_name']}", payload["use_pickle"], payload["tensor_meta"]
            if pickled or meta is None:
                return self._pickled(entry, name)
            code, sizes, strides, offset = (meta[key] for key in ("dtype", "sizes", "strides", "storage_offset"))
        except (KeyError, TypeError):
            raise damaged("is not what torch.export writes here", where=folder) from None
        if not isinstance(code, int) or code not in DTYPES:
            raise SourceError(f"has the element type {str(code)[:20]}, which is not supported")
        if self._types.setdefault(entry, DTYPES[code]) != DTYPES[code]:
            raise damaged("shares its bytes with a tensor of another element type")
        storage = Storage(entry, DTYPES[code], lambda: self._zip.view(entry), self.budget)
        if entry not in self._zip.entries:
            raise damaged("the archive lacks the bytes of this tensor")
        shape, steps, (first,) = _whole(sizes), _whole(strides), _whole([offset])
        tensor = storage.tensor(shape, steps, first)
        tensor.names = [name]
        tensor.check_bounds(self._zip.entries[entry].size)
        return tensor

    def _pickled(self, entry: str, name: str) -> StoredTensor:
        """A tensor that torch.save wrote: of a tensor subclass, or an object that is not a tensor."""
        value = read_zip(PytorchZip(self._zip.read(entry), self.budget)).value
        if not isinstance(value, StoredTensor):
            kind = getattr(value, "class_name", type(value).__name__)
            raise SourceError(f"is a pickled {kind}, not a plain tensor", hint=IN_MEMORY)
        value.names = [name]
        return value

    def _model_name(self) -> str:
        inner = [name.removeprefix(self._root) for name in self._zip.entries]
        models = [name[7:-5] for name in inner if name.startswith("models/") and name.endswith(".json")]
        if "model" in models or len(models) == 1:
            return "model" if "model" in models else models[0]
        if models:
            raise SourceError(
                f"holds several programs ({', '.join(sorted(models)[:5])})", hint="save each program to its own file"
            )
        if _OLDER in inner:
            raise SourceError("is a torch.export archive from before PyTorch 2.9", hint=SAVE_AGAIN)
        raise SourceError("is a .pt2 archive without an exported program", hint="save it with torch.export.save")

    def _json(self, name: str) -> Any:
        data = self._zip.read(f"{self._root}{name}")
        try:
            return parse(data, self.budget)
        except ValueError:
            raise damaged("is not valid JSON", where=name) from None

    def _config(self, name: str) -> Mapping[str, Any]:
        if f"{self._root}{name}" not in self._zip.entries:
            return {}
        config = self._json(name)
        found = config.get("config") if isinstance(config, dict) else None
        if not isinstance(found, dict):
            raise damaged("is not what torch.export writes here", where=name)
        return found


def _version(program: Any) -> str:
    """ "8.20", of a program whose schema is known."""
    try:
        major, minor = program["schema_version"]["major"], program["schema_version"]["minor"]
    except (KeyError, TypeError):
        raise SourceError("the program does not state its schema", hint=SAVE_AGAIN) from None
    if major != SCHEMA:
        what = f"has a program of schema {str(major)[:20]}.{str(minor)[:20]}; qfmt reads {SCHEMA}.x"
        raise SourceError(what, hint=SAVE_AGAIN if isinstance(major, int) and major < SCHEMA else "get a newer qfmt")
    return f"{major}.{minor}"


def _whole(sizes: Any) -> tuple[int, ...]:
    """Sizes from SymInts, all of which must be numbers."""
    try:
        numbers = tuple(size["as_int"] for size in sizes)
    except (KeyError, TypeError):
        raise damaged("has sizes that are not numbers") from None
    if len(numbers) > MAXIMUM_RANK or not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
        raise damaged("has invalid sizes")
    return numbers
