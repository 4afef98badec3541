"""`qfmt check`: every broken rule of a `.qfb` file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

import qfmt

from ..notation import number
from .options import memory as memory_option
from .output import as_json, line, working
from .source import FILE

if TYPE_CHECKING:
    from qfmt.compare import Replay
    from qfmt.errors import Violation
    from qfmt.passes import Proofs

BROKEN = 1


@click.command(
    short_help="List every rule of the specification that a file breaks.",
    epilog="Exit status: 0 valid, 1 invalid, or a test vector differs, 2 cannot be read, or not run.",
)
@click.argument("file", type=FILE)
@click.option("--json", "json_", is_flag=True, help="Print {file, valid, violations: [{rule, where, what}]}.")
@click.option("--proofs", "proven", is_flag=True, help="Recompute the bounds of integer sums, and compare.")
@click.option("--replay", "replayed", is_flag=True, help="Run the test vectors in the file, and compare their outputs.")
@memory_option()
@click.pass_context
def command(ctx: click.Context, file: Path, json_: bool, proven: bool, replayed: bool, memory: int | None) -> None:
    """Check FILE, a .qfb, against every rule of the specification, and list each broken rule with its number.

    --proofs also checks what a file states about its integer sums (P1 to P3): for any inputs in range, none overflows
    int32, and none exceeds the stated bounds. --replay also runs its test vectors, and lists each output that is not
    equal, bit by bit, to the one in the file (R1). Neither is done for a file that is not valid.
    """
    from ..file.checker import MOST

    with working(f"checking {file.name}"):
        violations = qfmt.check(file)
        is_valid = not violations
        found = _proofs(file) if proven and is_valid else None
        runs = _replays(file, memory) if replayed and is_valid else None
    violations += [*(found.violations if found else []), *map(_violation, _different(runs or []))]
    del violations[MOST:]
    if json_:
        listed = [{"rule": broken.rule, "where": broken.where, "what": broken.what} for broken in violations]
        told: dict[str, object] = {"file": str(file), "valid": not violations, "violations": listed}
        if found:
            told["proofs"] = {"sums": found.sums, "reaches": found.reaches, "unknown": found.unknown}
        if runs is not None:
            told["replay"] = {"outputs": len(runs), "equal": len(runs) - len(_different(runs))}
        as_json(told)
    else:
        for broken in violations:
            line(str(broken))
        for where, why in found.unknown.items() if found else ():
            line(f"unknown {where}: {why}")
        if violations:
            stopped = "; the rest was not checked" if len(violations) == MOST else ""
            plural = "" if len(violations) == 1 else "s"
            line(f"{file}: {len(violations)} violation{plural}{stopped}", err=True)
        else:
            line(f"{file}: valid{_counted(found) if found else ''}{_repeated(runs) if runs is not None else ''}")
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


def _replays(file: Path, memory: int | None) -> list[Replay]:
    from qfmt.compare import replay

    return list(replay(qfmt.load(file), memory))


def _different(runs: list[Replay]) -> list[Replay]:
    return [each for each in runs if not each.is_equal]


def _violation(found: Replay) -> Violation:
    from qfmt.errors import Violation

    what = f"{found.different:,} of {found.elements:,} elements differ, by up to {number(found.largest)}"
    return Violation("R1", f"test vector {found.vector}, output {found.output!r}", what)


def _repeated(runs: list[Replay]) -> str:
    return f"; all outputs of its test vectors are equal: {len(runs)}" if runs else "; it has no test vectors"
