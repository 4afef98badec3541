"""Parts of the site that are made from the code when it is built: a directive for each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

import click
from docutils import nodes
from messages import messages
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from qfmt.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parent.parent


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


class FromCode(SphinxDirective):
    """Markdown that a method makes."""

    def markdown(self) -> str:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(self.markdown(), allow_section_headings=True)


class OperatorMatrix(FromCode):
    """`qfmt ops --matrix`: a row for each operator, a column for each edge."""

    def markdown(self) -> str:
        matrix = json.loads((ROOT / "qfmt" / "ops" / "matrix.json").read_text(encoding="utf-8"))
        edges = list(next(iter(matrix.values())))
        rows = [[f"`{name}`", *("–" if cells[edge] else "✓" for edge in edges)] for name, cells in matrix.items()]
        return table(["operator", *(edge.replace("to torch, ", "torch, ") for edge in edges)], rows)


class CommandHelp(FromCode):
    """The `--help` of each command."""

    def markdown(self) -> str:
        group = click.Context(main, info_name="qfmt", terminal_width=100)
        pages = [("qfmt", main.get_help(group))]
        for name in COMMANDS:
            command = main.get_command(group, name)
            assert command is not None
            context = click.Context(command, info_name=name, parent=group, terminal_width=100)
            pages.append((f"qfmt {name}", command.get_help(context)))
        return "\n\n".join(f"## {title}\n\n```text\n{text}\n```" for title, text in pages)


PLACES = (
    ("qfmt/archive/", "archives"),
    ("qfmt/backends/c/", "writing C"),
    ("qfmt/backends/onnx/", "writing ONNX"),
    ("qfmt/backends/torch/", "modules of PyTorch"),
    ("qfmt/cli/", "commands"),
    ("qfmt/compare/", "verify and diff"),
    ("qfmt/file/", "`.qfb` files"),
    ("qfmt/frontends/onnx/", "ONNX models"),
    ("qfmt/frontends/torch/exported/", "`.pt2` programs"),
    ("qfmt/frontends/torch/fx/", "FX modules"),
    ("qfmt/frontends/torch/in_memory/", "modules in memory"),
    ("qfmt/frontends/torch/saved/", "`torch.save` files"),
    ("qfmt/frontends/torch/safetensors", "safetensors"),
    ("qfmt/frontends/torch/torchao", "torchao"),
    ("qfmt/frontends/torch/torchscript/", "TorchScript"),
    ("qfmt/frontends/torch/", "calls of torch"),
    ("qfmt/frontends/isolation/", "the worker of verify"),
    ("qfmt/frontends/", "any source"),
    ("qfmt/ops/", "operators"),
    ("qfmt/passes/", "rewriting and integer-only lowering"),
    ("qfmt/", "models and runs"),
)
"""What a user was doing, by the module that complains; the first that fits."""


class Messages(FromCode):
    """The messages of one class of errors (docs/messages.py)."""

    required_arguments = 1

    def markdown(self) -> str:
        found = [message for message in messages() if message.error == self.arguments[0]]
        assert found, self.arguments[0]
        by_place = sorted(
            (next(n for n, (prefix, _) in enumerate(PLACES) if m.module.startswith(prefix)), m.text) for m in found
        )
        parts = []
        for number, group in groupby(by_place, lambda each: each[0]):
            lines = "\n".join(text for _, text in group)
            parts.append(f"*{PLACES[number][1]}*\n\n:::{{container}} messages\n```text\n{lines}\n```\n:::")
        return "\n\n".join(parts)


def setup(app: Sphinx) -> dict[str, bool]:
    for name, directive in (("operator-matrix", OperatorMatrix), ("command-help", CommandHelp), ("messages", Messages)):
        app.add_directive(name, directive)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
