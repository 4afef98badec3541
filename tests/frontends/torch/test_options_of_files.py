"""What a file of PyTorch does not state, or states otherwise than the user needs it: the mode, the types of inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao.quantization import quantize_dynamic

import qfmt
from qfmt.errors import QfmtError, SourceError
from support.command_line import invoke
from support.paths import DIGITS

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")

X = torch.linspace(-2, 2, 24).reshape(4, 6)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3)

    def forward(self, x):  # without types, which torch.fx cannot pickle as strings
        return self.last(self.drop(self.norm(self.first(x))))


class Recurrent(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, 2, dropout=0.5)

    def forward(self, x):
        y = self.norm(self.first(x))
        return self.last(self.lstm(y.unsqueeze(0))[0])


def in_training(kind: type[nn.Module], way: str, path: Path) -> tuple[nn.Module, Path]:
    """A dynamically quantized network that was saved in training mode, and its file."""
    torch.manual_seed(0)
    network = kind()
    network(3 * torch.randn(20, 6) + 1)  # the statistics of the batch norm
    if way == "sequential":
        network = nn.Sequential(*network.children())
    network = quantize_dynamic(network, {nn.LSTM, nn.Linear} if way in ("script", "trace") else {nn.Conv2d})
    if way == "script":
        torch.jit.save(torch.jit.script(network.train()), path)
    elif way == "trace":
        torch.jit.save(torch.jit.trace(network.train(), X, check_trace=False), path)
    else:
        torch.save(torch.fx.symbolic_trace(network).train() if way == "fx" else network.train(), path)
    return network.eval(), path


@pytest.mark.parametrize(
    ("kind", "way"), [(Recurrent, "script"), (Plain, "trace"), (Plain, "fx"), (Plain, "sequential")]
)
def test_what_was_saved_in_training_mode_converts_as_after_eval(
    kind: type[nn.Module], way: str, tmp_path: Path
) -> None:
    network, path = in_training(kind, way, tmp_path / "m.pt")
    with pytest.raises(SourceError, match="--eval-mode"):
        qfmt.convert(path, input_shapes={"x" if way != "sequential" else "input": (4, 6)})
    assert invoke("convert", path, tmp_path / "m.qfb", "--eval-mode").exit_code == 0
    model = qfmt.load(tmp_path / "m.qfb")
    (result,) = model.run({model.graph.inputs[0]: X.numpy()}).values()
    np.testing.assert_allclose(result, network(X).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert qfmt.verify(path, model).ok


class Tokens(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.table, self.last, self.function = nn.Embedding(10, 6), nn.Linear(6, 3), function

    def forward(self, tokens):
        return self.last(self.function(self.table, tokens))


LOOKED_UP = {
    "computed": lambda table, i: table((i * 2 - 1).clamp(0, 9)),
    "chosen": lambda table, i: table(torch.where(i > 5, i, i + 1)),
    "selected": lambda table, i: table.weight.index_select(0, i[0]),
    "indexed": lambda table, i: table.weight[i],
    "indexed behind a slice": lambda table, i: table.weight.t()[:, i[0]].t(),
    "cast": lambda table, i: table(i.int().long()) * i.float().unsqueeze(-1),
}


@pytest.mark.parametrize("name", LOOKED_UP)
def test_inputs_that_become_indices_have_integers(name: str, tmp_path: Path) -> None:
    network, tokens = Tokens(LOOKED_UP[name]).eval(), torch.arange(10).reshape(2, 5) % 8
    torch.save(torch.fx.symbolic_trace(network), tmp_path / "m.pt")
    stated = {"tokens": "int64"} if name == "cast" else {}
    model = qfmt.convert(tmp_path / "m.pt", input_shapes={"tokens": (2, 5)}, input_dtypes=stated)
    assert model.tensors["tokens"].dtype == "int64"
    (result,) = model.run({"tokens": tokens.numpy()}).values()
    np.testing.assert_allclose(result, network(tokens).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert qfmt.verify(tmp_path / "m.pt", model).ok


@pytest.mark.parametrize(
    ("dtypes", "message"),
    [
        ({"tokens": "float32"}, "input tokens: is float32, but the network requires int64"),
        ({"tokens": "int3"}, "'int3' is not an element type"),
        ({"words": "int64"}, "the network has no input 'words'; its inputs are tokens"),
    ],
)
def test_types_that_inputs_cannot_have(dtypes: dict[str, str], message: str, tmp_path: Path) -> None:
    torch.save(torch.fx.symbolic_trace(Tokens(LOOKED_UP["indexed"]).eval()), tmp_path / "m.pt")
    with pytest.raises(QfmtError, match=message):
        qfmt.convert(tmp_path / "m.pt", input_dtypes=dtypes)


class Threshold(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.threshold(torch.quantize_per_tensor(x, 0.1, 60, torch.quint8), 0.3, 0.0).dequantize()


def test_elements_on_a_threshold_are_ties(tmp_path: Path) -> None:
    """torch keeps them in full vectors, and not in the rest."""
    torch.jit.save(torch.jit.script(Threshold()), tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt", input_shapes={"x": (70,)})
    on_it = qfmt.verify(tmp_path / "m.pt", model, inputs={"x": np.full(70, 0.3, np.float32)})
    (node,) = [each for each in on_it.nodes if each.operator == "ThresholdedRelu"]
    print(f"{node.equal} equal, {node.tie} ties of {node.outputs}")
    assert node.equal + node.tie == 70 and on_it.ok
    nodes = [replace(each, attributes={"alpha": 0.45}) if each.attributes else each for each in model.nodes]
    other = model.replace(graph=replace(model.graph, nodes=tuple(nodes)))
    assert not qfmt.verify(tmp_path / "m.pt", other, inputs={"x": np.full(70, 0.4, np.float32)}).ok


@pytest.mark.parametrize("option", ["input_shapes", "input_quantization", "input_dtypes"])
def test_options_of_inputs_are_by_name(option: str) -> None:
    given: Any = {option: [(1, 1, 8, 8)]}
    with pytest.raises(
        SourceError, match=rf"{option} is not a dict by the names of inputs; as in {option}={{'x': …}}$"
    ):
        qfmt.convert(DIGITS, **given)
