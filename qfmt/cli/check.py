"""`qfmt check`: every broken rule of a `.qfb` file."""

from __future__ import annotations

from pathlib import Path

import click

import qfmt

from .output import as_json, line, working
from .source import FILE

BROKEN = 1


@click.command(
    short_help="List every rule of the specification that a file breaks.",
    epilog="Exit status: 0 valid, 1 breaks rules, 2 cannot be read at all.",
)
@click.argument("file", type=FILE)
@click.option("--json", "json_", is_flag=True, help="Print {file, valid, violations: [{rule, where, what}]}.")
@click.pass_context
def command(ctx: click.Context, file: Path, json_: bool) -> None:
    """Check FILE, a .qfb, against every rule of the specification, and list all that are broken by number."""
    with working(f"checking {file.name}"):
        violations = qfmt.check(file)
    if json_:
        listed = [{"rule": broken.rule, "where": broken.where, "what": broken.what} for broken in violations]
        as_json({"file": str(file), "valid": not violations, "violations": listed})
    elif violations:
        for broken in violations:
            line(str(broken))
        line(f"{file}: {len(violations)} violations", err=True)
    else:
        line(f"{file}: valid")
    ctx.exit(BROKEN if violations else 0)
