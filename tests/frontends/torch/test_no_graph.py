"""TorchScript whose code is not a single graph becomes an archive of its tensors, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.ao.nn import quantized as nnq

import qfmt
from networks import pytorch
from qfmt.cli import main
from qfmt.errors import ControlFlowError, RunError


class Layers(nn.Module):
    """A quantized layer, a float one, and the same float one under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nnq.Linear(4, 4)
        self.fc.set_weight_bias(torch.quantize_per_tensor(torch.randn(4, 4), 0.1, 0, torch.qint8), torch.ones(4))
        self.fc.scale, self.fc.zero_point = 0.5, 3
        self.conv = nn.Conv2d(3, 2, 1)
        self.again = self.conv


class Decides(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)).dequantize()
        if bool(y.sum() > 0):
            return y
        return self.conv(y)


class TakesList(Layers):
    def forward(self, images: list[torch.Tensor]) -> torch.Tensor:
        return self.again(self.conv(images[0]))


NETWORKS = {
    "a decision": (Decides, "makes a decision that depends on the data: `if bool"),
    "a list": (TakesList, r"has the argument images: List[Tensor]"),
}


@pytest.fixture(params=NETWORKS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, str, Path]:
    kind, why = NETWORKS[request.param]
    module = kind().eval()
    with pytorch.quiet():
        torch.jit.save(torch.jit.script(module), tmp_path / "m.pt")
    return module, why, tmp_path / "m.pt"


def test_tensors_are_kept(case: tuple[Any, str, Path]) -> None:
    module, why, path = case
    model = qfmt.convert(path)
    assert why in model.no_graph and model.source["format"] == "torchscript" and not model.nodes
    weight = module.fc.weight()
    assert np.array_equal(model.tensors["fc.weight"].array, weight.int_repr().numpy())
    assert model.tensors["fc.weight"].quantization.scale.numbers() == (weight.q_scale(),)
    grid = model.tensors["fc"].quantization
    assert (grid.scale.numbers(), grid.zero_point.numbers()) == ((0.5,), (3,))
    for name in ("weight", "bias"):
        found = model.graph.find(f"conv.{name}") or model.graph.find(f"again.{name}")
        assert np.array_equal(found.array, getattr(module.conv, name).detach().numpy())
    with pytest.raises(RunError, match="no single graph"):
        model.run({})


def test_the_command_line_reports_a_missing_graph_and_verifies(case: tuple[Any, str, Path]) -> None:
    _, why, path = case
    run = CliRunner().invoke(main, ["convert", str(path), str(path.with_suffix(".qfb"))])
    assert run.exit_code == 0 and "graph  none" in run.stderr and why in run.stderr, run.output
    checked = CliRunner().invoke(main, ["verify", str(path), str(path.with_suffix(".qfb"))])
    assert checked.exit_code == 0 and "nodes were not run: the source has no graph" in checked.output, checked.output
    assert "constants equal" in checked.output


def test_input_options_require_a_graph(case: tuple[Any, str, Path]) -> None:
    with pytest.raises(ControlFlowError):
        qfmt.convert(case[2], input_shapes={"x": (1, 4)})
