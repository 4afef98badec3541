"""`qfmt ops`: the operators that qfmt knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from ..errors import QfmtError
from ..model import near_names
from .matrix import matrix
from .options import Command, completed, pager
from .output import Column, as_json, line, pairs, table

if TYPE_CHECKING:
    from ..ops import Operator


@click.command(cls=Command)
@click.argument("name", required=False, shell_complete=completed("operators"))
@click.option("--matrix", "matrix_", is_flag=True, help="Print where each can come from, and go to.")
@click.option("--json", "json_", is_flag=True, help="Print everything as JSON.")
@pager
def command(name: str | None, matrix_: bool, json_: bool) -> None:
    """List the operators that qfmt knows, or describe the operator NAME."""
    from ..ops import OPERATORS

    every = sorted(OPERATORS.values(), key=lambda operator: (operator.family, operator.name))
    chosen = every if name is None else [_found(name)]
    if matrix_:
        cells = matrix()
        rows = {operator.name: cells[operator.name] for operator in chosen}
        as_json(rows) if json_ else _edges(rows)
    elif name is None:
        as_json([_facts(operator) for operator in chosen]) if json_ else _list(chosen)
    else:
        as_json(_facts(chosen[0])) if json_ else _explain(chosen[0])


def _found(name: str) -> Operator:
    """The operator of that name, or of that name in PyTorch."""
    from ..ops import OPERATORS

    known = {spelling: operator for operator in OPERATORS.values() for spelling in _spellings(operator)}
    if name not in known:
        from ..frontends.torch.lifter import is_known

        if is_known(name):
            raise QfmtError(f"{name!r} is converted, to operators that depend on its arguments")
        near = near_names(name, sorted(known))
        raise QfmtError(
            f"no operator {name!r}", hint=f"similar: {', '.join(near)}" if near else "`qfmt ops` lists them"
        )
    return known[name]


def _spellings(operator: Operator) -> list[str]:
    """The names under which an operator is found: its own, and those in PyTorch."""
    return [operator.name, *(spelling.partition("(")[0] for spelling in operator.torch)]


def _edges(cells: Mapping[str, Mapping[str, str]]) -> None:
    """One row for each operator; for a single one, a line for each edge, with the reason."""
    if len(cells) == 1:
        (row,) = cells.values()
        pairs([(edge, reason or "yes") for edge, reason in row.items()])
        return
    edges = next(iter(cells.values()))
    columns = [Column("operator"), *(Column(edge.removeprefix("to torch, ")) for edge in edges)]
    table(columns, [[name, *("-" if row[edge] else "yes" for edge in edges)] for name, row in cells.items()])


def _list(operators: list[Operator]) -> None:
    columns = [Column("operator"), Column("version", right=True), Column("family"), Column("quantized"),
               Column("rules")]  # fmt: skip
    table(columns, [[o.name, str(o.version), o.family, o.quantized.name.lower(), " ".join((*o.rules, *o.sum_rules))]
                    for o in operators])  # fmt: skip


def _explain(operator: Operator) -> None:
    line(f"{operator.name}: {_signature(operator)}")
    line()
    for text in operator.meaning.splitlines():
        line(text)
    line()
    spelled = ", ".join(dict.fromkeys(_spellings(operator)[1:]))
    pairs(
        [
            ("version", str(operator.version)),
            ("family", operator.family),
            ("quantized", operator.quantized.value),
            ("rules", ", ".join(operator.rules) or "none"),
            *([("sums", ", ".join(operator.sum_rules))] if operator.sum_rules else []),
            ("engines", ", ".join(f"{engine}: {rule}" for engine, rule in operator.engines.items()) or "none"),
            *([("PyTorch", spelled)] if spelled else []),
        ]
    )
    if operator.attributes:
        line()
        columns = [Column("attribute"), Column("kind"), Column("default"), Column("meaning")]
        table(columns, [[name, spec.kind, _default(spec.default), spec.meaning]
                        for name, spec in operator.attributes.items()])  # fmt: skip


def _default(value: object) -> str:
    return "required" if value is None else str(value)


def _signature(operator: Operator) -> str:
    sides = (
        " ".join(p.name + "?" * p.optional + "*" * p.variadic for p in parameters)
        for parameters in (operator.inputs, operator.outputs)
    )
    return " -> ".join(sides)


def _facts(operator: Operator) -> dict[str, object]:
    return {
        "name": operator.name,
        "version": operator.version,
        "family": operator.family,
        "signature": _signature(operator),
        "meaning": operator.meaning,
        "quantized": operator.quantized.name.lower(),
        "rules": list(operator.rules),
        "sum_rules": list(operator.sum_rules),
        "engines": dict(operator.engines),
        "attributes": {name: spec._asdict() for name, spec in operator.attributes.items()},
        "torch": list(operator.torch),
    }
