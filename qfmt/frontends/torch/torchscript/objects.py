"""Restore the objects of an archive, as far as that needs no code: modules, tuples, enumerations.

`restore` builds them from the pickled tree, and assigns names to every tensor and packed object.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ....errors import SourceError, brief, damaged
from ...harmless import Inert, flat_key
from ...stored import NAME_LIMIT, StoredTensor
from ..calls import Packed, PackedState
from . import packing
from .code import Class, Library

_HOISTED = re.compile(r"^_jit_pass_hoist_conv_packed_params\.(.*)\.\d+$")
"""`optimize_for_mobile` moves packed parameters to the root module and keeps their path in the name."""


class ScriptObject:
    """A module, or an object of another class of the archive. `path` is its place in the module tree."""

    __slots__ = ("attributes", "cls", "path")

    def __init__(self, cls: Class, path: str | None = None) -> None:
        self.cls = cls
        self.path = path
        self.attributes: dict[str, Any] = {}


class NamedTuple(tuple[Any, ...]):
    """A tuple of a class of the archive; `places` are those of its elements, by name."""

    places: Mapping[str, int]

    @classmethod
    def of(cls, declared: Class, values: tuple[Any, ...]) -> NamedTuple:
        if len(values) > len(declared.places):
            raise SourceError(f"{declared.name} gets {len(values)} elements, but has {len(declared.places)}")
        result = cls(values)
        result.places = declared.places
        return result


@dataclass(frozen=True, slots=True)
class EnumMember:
    """A member of an enumeration of the archive."""

    class_name: str
    name: str
    value: Any


class Restorer:
    """Turns pickled Inert objects into restored ones, each once.

    `set_state(object, state)` runs the class's `__setstate__`.
    """

    def __init__(self, library: Library, set_state: Callable[[ScriptObject, Any], None]) -> None:
        self._library = library
        self._set_state = set_state
        self._restored: dict[int, Any] = {}
        self._keep_alive: list[Any] = []
        self._named: set[int] = set()
        self.containers: set[int] = set()

    def restore(self, value: Any) -> Any:
        """The restored form of a pickled value. Lists and dicts are modified in place, with restored elements."""
        if not isinstance(value, Inert | list | dict | tuple):
            return value
        if id(value) not in self._restored:
            self._keep_alive.append(value)
            if isinstance(value, list | dict):
                self._restored[id(value)] = value
                self.containers.add(id(value))
            if isinstance(value, list):
                value[:] = map(self.restore, value)
            elif isinstance(value, dict):
                for key in value:
                    flat_key(key, len(value))
                value.update({key: self.restore(element) for key, element in value.items()})
            elif isinstance(value, tuple):
                self._restored[id(value)] = tuple(map(self.restore, value))
            else:
                self._restore_object(value)
        return self._restored[id(value)]

    def _restore_object(self, inert: Inert) -> None:
        if inert.class_name.startswith(packing.CLASSES):
            name = inert.class_name.removeprefix(packing.CLASSES)
            self._restored[id(inert)] = packing.from_state(name, self.restore(inert.state))
            return
        cls = self._library.class_of(inert.class_name)
        if cls.base == "NamedTuple":
            self._restored[id(inert)] = NamedTuple.of(cls, self.restore(inert.arguments))
        elif cls.base == "Enum":
            self._restored[id(inert)] = enum_member(cls, value=self.restore(inert.arguments)[0])
        else:
            live = self._restored[id(inert)] = ScriptObject(cls)
            if "__setstate__" in cls.methods:
                self._set_state(live, self.restore(inert.state))
            elif isinstance(inert.state, dict):
                live.attributes = self.restore(inert.state)
            elif inert.state is not None:
                raise damaged(f"{cls.name} has a state, but no `__setstate__`")

    def name(self, value: Any, path: str) -> None:
        """Give everything reachable from a restored value its path in the module tree."""
        self._library.budget.spend()
        self._library.budget.allocate(len(path))
        if isinstance(value, ScriptObject | Packed | PackedState):
            self._library.budget.path(path)
        if isinstance(value, StoredTensor):
            value.add_name(path)
        elif isinstance(value, Packed | PackedState):
            is_new = not value.path
            _name_packed(value, path)
            if is_new and isinstance(value, PackedState) and isinstance(value.state, tuple):
                self.name(value.state, value.path)
        elif id(value) in self._named:
            return
        if isinstance(value, ScriptObject):
            self._named.add(id(value))
            value.path = path
            for name, element in value.attributes.items():
                self.name(element, f"{path}.{name}" if path else str(name))
        elif isinstance(value, list | tuple | dict):
            self._named.add(id(value))
            elements = value.items() if isinstance(value, dict) else enumerate(value)
            for key, element in elements:
                self.name(element, f"{path}.{key}")


def enum_member(cls: Class, *, name: str | None = None, value: Any = None) -> EnumMember:
    """A member by its name, or by its value."""
    cls.library.budget.spend(sum(1 + len(text) for text in cls.fields.values()))
    for field in cls.fields:
        known = _literal(cls, field)
        if field == name or (name is None and known == value and type(known) is type(value)):
            return EnumMember(cls.name, field, known)
    raise SourceError(f"the enumeration {cls.name} has no member {brief(name or value)}")


def _literal(cls: Class, field: str) -> Any:
    try:
        return ast.literal_eval(cls.expression(field))
    except (ValueError, TypeError, RecursionError, MemoryError):
        raise SourceError(f"a value of an enumeration is not a literal: {cls.fields[field][:80]}") from None


def _name_packed(packed: Packed | PackedState, path: str) -> None:
    hoisted = _HOISTED.match(path)
    for name in (hoisted[1], path) if hoisted else (path,):
        if not packed.path:
            packed.path = name
        elif name != packed.path and name not in packed.aliases and len(packed.aliases) < NAME_LIMIT:
            packed.aliases = (*packed.aliases, name)
    if isinstance(packed, Packed):
        module = owner(packed.path)
        packed.weight.add_name(f"{module}weight")
        if packed.bias is not None:
            packed.bias.add_name(f"{module}bias")


def owner(path: str) -> str:
    """The module that owns packed parameters, with a dot: "fc._packed_params._packed_params" → "fc."."""
    parts = path.split(".")
    while parts and parts[-1] in ("_packed_params", "_packed_weight"):
        parts.pop()
    return "".join(f"{part}." for part in parts)
