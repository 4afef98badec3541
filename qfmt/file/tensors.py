"""The tensors of an open file: names in a column, fields when they are asked for, arrays of many tensors at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence, ValuesView
from typing import TYPE_CHECKING, Any

from ..errors import FormatError
from ..model import Tensor
from ..rules import is_name
from .decode import Record, Tables

if TYPE_CHECKING:
    from ..arrays import Array
    from .columns import Constant
    from .header import Header
    from .reader import Container

MANY = 32
"""Tensors that are decoded before the rest is looked at: most who ask for so many ask for all."""

_set = object.__setattr__


class DecodedTensor(Tensor):
    """A tensor of a file, whose fields are decoded, and checked, when they are asked for; the quantization by itself.

    For others it is a Tensor: that is what `replace` and a copy make of it, and what it equals.
    """

    __slots__ = ("_constant", "_container", "_index")
    __class__ = property(lambda self: Tensor)

    def __init__(self, container: Container, index: int, constant: Constant | None = None) -> None:
        _set(self, "_container", container)
        _set(self, "_index", index)
        _set(self, "_constant", constant)

    def __getattr__(self, name: str) -> Any:
        """A field that was not decoded yet."""
        if name not in Tensor.__slots__:
            raise AttributeError(f"a tensor has no {name!r}")
        container, index = self._container, self._index
        with container.turns.lock, container.placed:
            if not self._has(name):  # another thread may have decoded it
                if name == "quantization":
                    self.fill(quantization=container.quantization_of(self, container.tensors.grid(index)))
                else:
                    container.decode(self, container.tensors.record(index))
        return object.__getattribute__(self, name)

    def _has(self, name: str) -> bool:
        try:
            object.__getattribute__(self, name)
        except AttributeError:
            return False
        return True

    def fill(self, **fields: object) -> None:
        """Have fields, which were checked."""
        for key, value in fields.items():
            _set(self, key, value)

    @property
    def array(self) -> Array:
        constant, container = self._constant, self._container
        if constant is None:
            return super().array
        if container.verify and constant.buffer not in container.verified:
            container.verify_constant(constant)
        data = container.data
        assert isinstance(data, memoryview)  # only then are constants found together
        found: Array = constant.array(data)
        return found

    def __reduce__(self) -> Any:
        """A copy, or a pickle, does not depend on the file."""
        return Tensor, tuple(getattr(self, name) for name in Tensor.__slots__)


class Tensors(Mapping[str, Tensor]):
    """The tensors of a file by name, in the order of their names; each is decoded when it is asked for.

    From the first MANY on, constants are found together: `columns.py`.
    """

    __slots__ = ("_container", "_indices", "_names", "_order", "_quantizations", "_tables", "_tensors", "_together")

    def __init__(self, container: Container, tables: Tables) -> None:
        self._container = container
        self._tables = tables.part("name", "dtype", "shape", "dims", "buffer", "aliases")
        self._quantizations = tables.part("quantization")
        self._names: dict[int, str] = {}
        self._indices: dict[str, int] = {}
        self._order: Sequence[str] | None = None
        self._tensors: dict[str, Tensor] = {}
        self._together = False

    def __len__(self) -> int:
        return len(self._tables)

    def __iter__(self) -> Iterator[str]:
        with self._container.turns.lock, self._container.placed:
            return iter(self._all_names())

    def values(self) -> ValuesView[Tensor]:
        return _Values(self, self._tensors)

    def __contains__(self, name: object) -> bool:
        with self._container.turns.lock, self._container.placed:
            return isinstance(name, str) and self._index(name) is not None

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors.get(name) or self._decoded(name)

    def __repr__(self) -> str:
        return f"<{len(self)} tensors of {self._container.where}>"

    def __reduce__(self) -> tuple[type, tuple[dict[str, Tensor]]]:
        """A copy, or a pickle, does not depend on the file."""
        return dict, (dict(self),)

    @property
    def header(self) -> Header:
        """That of the file, whose digest was compared if the file was loaded with `verify`."""
        return self._container.header

    @property
    def minor_version(self) -> int:
        """That of the format of the file."""
        minor: int = self._container.root["minor_version"]
        return minor

    def close(self) -> None:
        """See `Model.close`."""
        self._container.close()

    def record(self, index: int) -> Record:
        """The tensor at an index as the file has it, without its quantization."""
        return self._tables[index]

    def grid(self, index: int) -> Record | None:
        """Its quantization as the file has it."""
        found: Record | None = self._quantizations[index]["quantization"]
        return found

    def name(self, index: int) -> str:
        """The name of the tensor at an index, which from then on is found under it; FormatError if there is none."""
        if index not in self._names:
            if not 0 <= index < len(self):
                raise FormatError(f"there is no tensor {index}, only {len(self)}", rule="F7")
            self._learn(index, self._tables.string_field(index, "name"))
        return self._names[index]

    def _learn(self, index: int, name: str) -> None:
        if self._indices.setdefault(name, index) != index:
            raise FormatError(f"two tensors have the name {name!r}", rule="F11")
        self._names.setdefault(index, name)  # one object: to compare two long names takes longer

    def _all_names(self) -> Sequence[str]:
        if self._order is None:
            names = self._tables.string_fields("name")
            for index, name in enumerate(names):
                self._learn(index, name)
            self._order = [self._names[index] for index in range(len(names))]
        return self._order

    def _index(self, name: str) -> int | None:
        """Where a tensor is, found by halves: the names are sorted, in a valid file."""
        low, high = 0, len(self)
        while name not in self._indices and low < high:
            middle = (low + high) // 2
            if self.name(middle) < name:
                low = middle + 1
            else:
                high = middle
        return self._indices.get(name)

    def _decoded(self, name: str) -> Tensor:
        """A tensor that was not known yet; KeyError if there is none."""
        with self._container.turns.lock, self._container.placed:
            if name not in self._tensors:  # from another thread
                index = self._index(name)
                if index is None:
                    raise KeyError(name)
                tensor = DecodedTensor(self._container, index)
                self._container.decode(tensor, self.record(index))
                self._tensors[name] = tensor
                if len(self._tensors) >= MANY and not self._together:
                    self._find_constants()
            return self._tensors[name]

    def _find_constants(self) -> None:
        """Have the arrays of the other constants without decoding each tensor, if NumPy is there already."""
        self._together = True
        if "numpy" not in sys.modules or sys.byteorder == "big" or not isinstance(self._container.data, memoryview):
            return
        from .columns import constants

        names, container = self._all_names(), self._container
        if all(names) and is_name("".join(names)):
            for constant in constants(self._tables, container.buffers, len(container.data)):
                tensor = DecodedTensor(container, constant.tensor, constant)
                self._tensors.setdefault(names[constant.tensor], tensor)
            container.let_go()


class _Values(ValuesView[Tensor]):
    """The tensors in order, without a call for each that is known."""

    def __init__(self, tensors: Tensors, known: Mapping[str, Tensor]) -> None:
        super().__init__(tensors)
        self._tensors, self._known = tensors, known

    def __iter__(self) -> Iterator[Tensor]:
        return (self._known.get(name) or self._tensors[name] for name in self._tensors)
