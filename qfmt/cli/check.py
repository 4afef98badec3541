"""`qfmt check`: every broken rule of a `.qfb` file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

import qfmt

from .output import as_json, line, working
from .source import FILE

if TYPE_CHECKING:
    from qfmt.passes import Proofs

BROKEN = 1


@click.command(
    short_help="List every rule of the specification that a file breaks.",
    epilog="Exit status: 0 valid, 1 invalid, 2 cannot be read.",
)
@click.argument("file", type=FILE)
@click.option("--json", "json_", is_flag=True, help="Print {file, valid, violations: [{rule, where, what}]}.")
@click.option("--proofs", "proven", is_flag=True, help="Recompute the bounds of integer sums, and compare.")
@click.pass_context
def command(ctx: click.Context, file: Path, json_: bool, proven: bool) -> None:
    """Check FILE, a .qfb, against every rule of the specification, and list each broken rule with its number.

    --proofs also checks what a file states about its integer sums (P1 to P3): for any inputs in range, none overflows
    int32, and none exceeds the stated bounds.
    """
    with working(f"checking {file.name}"):
        violations = qfmt.check(file)
        found = _proofs(file) if proven and not violations else None
    violations += found.violations if found else []
    if json_:
        listed = [{"rule": broken.rule, "where": broken.where, "what": broken.what} for broken in violations]
        told: dict[str, object] = {"file": str(file), "valid": not violations, "violations": listed}
        if found:
            told["proofs"] = {"sums": found.sums, "reaches": found.reaches, "unknown": found.unknown}
        as_json(told)
    else:
        for broken in violations:
            line(str(broken))
        for where, why in found.unknown.items() if found else ():
            line(f"unknown {where}: {why}")
        if violations:
            from ..file.checker import MOST

            stopped = "; the rest was not checked" if len(violations) == MOST else ""
            plural = "" if len(violations) == 1 else "s"
            line(f"{file}: {len(violations)} violation{plural}{stopped}", err=True)
        else:
            line(f"{file}: valid{_counted(found) if found else ''}")
    ctx.exit(BROKEN if violations else 0)


def _proofs(file: Path) -> Proofs:
    from qfmt.passes import Proofs, proofs

    model = qfmt.load(file)
    return Proofs() if model.no_graph else proofs(model)


def _counted(found: Proofs) -> str:
    if not (found.sums or found.reaches or found.unknown):
        return "; it has no integer sums"
    unknown = f", {len(found.unknown)} could not be bounded" if found.unknown else ""
    return (
        f"; the sums of {found.sums} nodes fit in int32, and the stated ranges of {found.reaches} requantizations"
        f" hold{unknown}"
    )
