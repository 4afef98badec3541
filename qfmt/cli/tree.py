"""`qfmt inspect FILE --tree`: the modules of the original network, and what is in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from ..model import static_shape
from ..notation import size
from ..view.modules import module_path, module_paths
from .output import Column, as_json, table

if TYPE_CHECKING:
    from ..model import Model

MOST = 100_000
"""How many modules there are at most, because names may have any number of dots. Further ones count in the module
above them."""

COLUMNS = [
    Column("module", color="cyan"),
    Column("nodes", right=True),
    Column("parameters", right=True),
    Column("bytes", right=True),
    Column("operators"),
]


@dataclass(slots=True)
class Module:
    """A module, with all modules in it. Bytes are those of constants, with their scales and zero points."""

    name: str
    operators: Counter[str] = field(default_factory=Counter)
    parameters: int = 0
    bytes: int = 0
    modules: dict[str, Module] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        return self.operators.total()


def modules(model: Model) -> Module:
    """The network as a tree of modules. A constant is in the module of the first node that reads it."""
    root, room = Module(model.graph.name or "all"), iter(range(MOST))
    homes: dict[str, list[str]] = {}
    for node, path in zip(model.nodes, module_paths(model.nodes), strict=True):
        for name in node.inputs:
            homes.setdefault(name, path)
        for module in _along(root, path, room):
            module.operators[node.operator] += 1
    for tensor in model.graph.constants():
        path = homes.get(tensor.name) or (module_path(tensor.name)[:-1] if model.no_graph else [])
        for module in _along(root, path, room):
            module.parameters += prod(static_shape(tensor))
            module.bytes += sum(data.nbytes for _, data in tensor.stored())
    return root


def _along(module: Module, path: list[str], room: Iterator[int]) -> Iterator[Module]:
    """The modules along a path, from the root. Missing ones are made while there is room."""
    yield module
    for part in path:
        if part not in module.modules and next(room, None) is not None:
            module.modules[part] = Module(part)
        if part not in module.modules:
            return
        module = module.modules[part]
        yield module


def show_tree(model: Model, depth: int | None, json_: bool) -> None:
    """One row for each module, below the one that it is in."""
    root = modules(model)
    if json_:
        as_json(_facts(root))
    else:
        table(COLUMNS, list(_rows(root, 0, depth)))


def _facts(module: Module) -> dict[str, Any]:
    return {
        "name": module.name,
        "nodes": module.nodes,
        "parameters": module.parameters,
        "bytes": module.bytes,
        "operators": dict(module.operators.most_common()),
        "modules": [_facts(each) for each in module.modules.values()],
    }


def _rows(module: Module, level: int, depth: int | None) -> Iterator[list[str]]:
    name, counts = module.name, (module.nodes, module.parameters)
    while level and len(module.modules) == 1:
        (only,) = module.modules.values()
        if (only.nodes, only.parameters) != counts:
            break
        module, name = only, f"{name}.{only.name}"  # a module with nothing of its own needs no row
    operators = ", ".join(f"{count} {operator}" for operator, count in module.operators.most_common())
    yield [f"{'  ' * level}{name}", f"{module.nodes:,}", f"{module.parameters:,}", size(module.bytes), operators]
    if depth is None or level < depth:
        for each in module.modules.values():
            yield from _rows(each, level + 1, depth)
