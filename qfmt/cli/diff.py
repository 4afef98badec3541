"""`qfmt diff`: what differs between two files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import qfmt

from ..urls import Place
from .options import Command, no_progress, pager
from .output import Column, as_json, line, table
from .progress import working
from .source import FILE, limited, open_model

if TYPE_CHECKING:
    from ..compare import Difference

DIFFERS = 1


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  qfmt diff old.qfb new.qfb
  qfmt diff model.pt model.qfb      what converting it again would change

Exit status: 0 equal, 1 different, 2 an error.""",
)
@click.argument("a", type=FILE)
@click.argument("b", type=FILE)
@click.option("--json", "json_", is_flag=True, help="Print all differences as JSON.")
@no_progress()
@click.pass_context
@pager
def command(ctx: click.Context, a: Place, b: Place, json_: bool) -> None:
    """Show what differs between A and B (.qfb, or anything that can be converted), as "in A → in B".

    Nodes are matched in order if both graphs have the same operators, else by name. Nothing is run:
    `qfmt verify` compares what two files compute.
    """
    with limited(a, b):
        first, second = open_model(a)[0], open_model(b)[0]
        with working("comparing"):
            found = qfmt.diff(first, second)
            same_content = first.content_id() == second.content_id()
    if json_:
        as_json({"same_content": same_content, **found.to_dict()})
    else:
        _show(found, same_content)
    ctx.exit(0 if found.is_equal else DIFFERS)


def _show(found: Difference, same_content: bool) -> None:
    rows = [["node", f"{node.name} ({node.operator})", "; ".join(node.words)] for node in found.nodes]
    rows += [["tensor", tensor.name, str(tensor)] for tensor in found.tensors]
    rows += [["file", "", words] for words in found.words]
    if not rows:
        line("equal")
        return
    table([Column("what"), Column("name", color="cyan"), Column("A → B")], rows)
    line()
    if same_content:
        line("the same network: only descriptions differ, not the content id")
    else:
        line(f"different: nodes {len(found.nodes)}, tensors {len(found.tensors)}")
