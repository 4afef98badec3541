"""The progress of conversions: each source counts what it evaluates."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import qfmt
from networks import exported as networks
from qfmt.progress import Steps, watched


class Three(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x)
        x = torch.tanh(x)
        return torch.neg(x)


def torchscript(path: Path) -> list[tuple[int, str]]:
    """The statements of the outer `forward`; then, inside it, those of each module."""
    script = torch.jit.script(nn.Sequential(Three(), Three()))
    torch.jit.save(script, path)
    inner = torch.jit.script(Three())
    return [(len(_statements(module.code)), "statements") for module in (script, inner, inner)]


def fx(path: Path) -> list[tuple[int, str]]:
    module = torch.fx.symbolic_trace(nn.Sequential(nn.ReLU(), nn.Tanh()))
    torch.save(module, path)
    return [(len(_statements(module.code)), "statements")]


def exported(path: Path) -> list[tuple[int, str]]:
    program = networks.quantized("linears")[1]
    torch.export.save(program, path)
    return [(sum(node.op == "call_function" for node in program.graph.nodes), "calls")]


def _statements(code: str) -> list[ast.stmt]:
    (function,) = ast.parse(code.strip()).body
    assert isinstance(function, ast.FunctionDef)
    return function.body


@pytest.mark.parametrize("write", [torchscript, fx, exported])
def test_a_conversion_states_how_much_is_done(write: Callable[[Path], list[tuple[int, str]]], tmp_path: Path) -> None:
    begun: list[Steps] = []
    outer: list[int] = []

    def begin(steps: Steps) -> None:
        begun.append(steps)
        outer.append(begun[0].done)

    expected = write(tmp_path / "m.pt")
    with watched(begin):
        qfmt.convert(tmp_path / "m.pt")
    assert [(steps.total, steps.unit) for steps in begun] == expected
    assert all(steps.done == steps.total for steps in begun)
    assert outer == sorted(set(outer))  # each module is called by one of the statements of the outer one
