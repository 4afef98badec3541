"""Pickled torch.fx networks that check the shape of their input, as in timm."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao.quantization import get_default_qconfig_mapping
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

import qfmt
from networks import pytorch
from qfmt.errors import SourceError


class Checks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert(x.dim() == 4, "images are needed")
        torch._assert(x.ndim == 4, "images are needed")
        _, channels, height, width = x.shape
        torch._assert(height == 8, "the height is not 8")
        torch._assert(width % 2 == 0, "the width is odd")
        torch._assert(channels >= 3, "too few channels")
        torch._assert(x.shape[-1] != 9, "the width is 9")
        y = self.conv(x).relu()
        torch._assert(y.shape[2:] == (6, 6), "another size is needed")
        return self.fc(y.mean((2, 3)))


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    torch.manual_seed(0)
    torch.backends.quantized.engine = "fbgemm"
    x = torch.randn(2, 3, 8, 8)
    path = tmp_path_factory.mktemp("fx") / "m.pt"
    with pytorch.quiet():
        prepared = prepare_fx(Checks().eval(), get_default_qconfig_mapping("fbgemm"), (x,))
        prepared(x)
        converted = convert_fx(prepared)
        torch.save(converted, path)
    return converted, path


SHAPES: list[dict[str, Any]] = [{}, {"x": (2, 3, 8, 8)}, {"x": ("N", 3, "H", "W")}]


@pytest.mark.parametrize("shapes", SHAPES)
def test_the_graph_stays(network: tuple[Any, Path], shapes: dict[str, Any]) -> None:
    module, path = network
    assert "torch._assert" in module.code and "== 4" in module.code
    model = qfmt.convert(path, input_shapes=shapes)
    assert not model.no_graph, model.no_graph
    x = torch.randn(2, 3, 8, 8)
    (output,) = model.graph.outputs
    with pytorch.quiet():
        assert np.array_equal(model.run({"x": x.numpy()})[output], module(x).detach().numpy())


@pytest.mark.parametrize(
    ("shape", "why"),
    [((2, 3, 9, 8), "height is not 8"), ((2, 3, 8, 7), "width is odd"), ((2, 3, 8, 10), "another size is needed")],
)
def test_a_shape_that_the_network_refuses(network: tuple[Any, Path], shape: tuple[int, ...], why: str) -> None:
    with pytest.raises(SourceError, match=f"the network rejects its input: the {why}|{why}"):
        qfmt.convert(network[1], input_shapes={"x": shape})


class WithOption(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, factor: int = 2) -> torch.Tensor:
        return torch.relu(x if mask is None else x + mask) * factor


def test_arguments_that_were_fixed_by_tracing(tmp_path: Path) -> None:
    traced = torch.fx.symbolic_trace(WithOption(), concrete_args={"mask": None, "factor": 2})
    assert "_assert_is_none" in traced.code
    torch.save(traced, tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt")
    assert [node.operator for node in model.nodes] == ["Relu", "Mul"] and len(model.graph.inputs) == 1
