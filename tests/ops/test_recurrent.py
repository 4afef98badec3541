"""Compares recurrent layers and cells with torch. Order and rounding of all operations are torch's: with its sigmoid
and tanh instead of ours, all outputs are equal bit by bit. Ours round correctly. torch's differ in the last bit,
depending on the length of the rows and the libraries that it was built with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qfmt
from cases.operators import CASES, compute
from networks import pytorch
from qfmt.errors import SourceError, UnsupportedOperatorsError
from qfmt.model import Model
from qfmt.ops import recurrent
from support import processor
from support.counts import OUTPUTS, tell

Outputs = list[np.ndarray]
f32 = np.float32

COUNTS: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0, 0.0])
"""Case → outputs, equal with torch's functions, equal with ours, largest difference with ours."""

ONE_STEP = 2.0**-6
"""A state that differs in the last bit may be quantized to a neighbouring 7-bit integer."""


@pytest.fixture(scope="module", autouse=True)
def _printed() -> Iterator[None]:
    engine, threads = torch.backends.quantized.engine, torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.backends.quantized.engine = engine
    torch.set_num_threads(threads)
    rows = [f"{'':34}{'outputs':>9}{'equal by torch':>16}{'equal by ours':>15}{'largest':>12}"]
    rows += [f"{what:34}{n[0]:9.0f}{n[1]:16.0f}{n[2]:15.0f}{n[3]:12.3g}" for what, n in COUNTS.items()]
    tell(*rows)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(11)
    torch.backends.quantized.engine = "fbgemm"


def by_torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[np.ndarray], np.ndarray]:
    """torch's function as its cells call it: on non-contiguous rows, so that each row has a remainder."""

    def call(x: np.ndarray) -> np.ndarray:
        rows = torch.empty(*x.shape[:-1], x.shape[-1] + 1)[..., :-1]
        return function(rows.copy_(torch.from_numpy(x.copy()))).numpy()

    return call


def compare(
    what: str,
    model: Model,
    inputs: list[torch.Tensor],
    theirs: Any,
    monkeypatch: pytest.MonkeyPatch,
    *,
    engine: str = "fbgemm",
    exact: bool = True,
) -> None:
    """Outputs are equal with torch's sigmoid and tanh, and close with ours; sums are those of the engine on this
    processor."""
    given = dict(zip(model.graph.inputs, (tensor.numpy() for tensor in inputs), strict=True))
    expected = [tensor.detach().numpy() for tensor in pytorch.flat(theirs)]
    with processor.as_computed_here(engine), monkeypatch.context() as patch:
        patch.setattr(recurrent, "linear", processor.half_linear)
        ours = list(model.run(given).values())
        patch.setattr(recurrent, "sigmoid", by_torch(torch.sigmoid))
        patch.setattr(recurrent, "tanh", by_torch(torch.tanh))
        same = list(model.run(given).values())
    count = COUNTS[what]
    for mine, by_theirs, other in zip(ours, same, expected, strict=True):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        count[0] += other.size
        count[1] += int((by_theirs == other).sum())
        OUTPUTS["equal"] += int((by_theirs == other).sum())
        count[2] += int((mine == other).sum())
        count[3] = max(count[3], float(np.abs(mine - other).max(initial=0)))
        assert not exact or (by_theirs == other).all(), f"{(by_theirs != other).sum()} of {other.size} differ"
    assert count[3] < ONE_STEP


class Layer(nn.Module):
    """A layer that starts from zeros or from given states."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.rnn = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.rnn(x)


class GRUWithState(Layer):
    def forward(self, x: torch.Tensor, h: torch.Tensor) -> Any:
        return self.rnn(x, h)


class LSTMWithState(Layer):
    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Any:
        return self.rnn(x, (h, c))


FORMS: dict[str, dict[str, Any]] = {
    "one": {},
    "two, both ways": {"num_layers": 2, "bidirectional": True},
    "three, batch first": {"num_layers": 3, "batch_first": True},
    "one, both ways, batch first": {"bidirectional": True, "batch_first": True},
}


def quantized(layer: type[nn.Module], states: int, dtype: torch.dtype, size: int, form: dict[str, Any]) -> nn.Module:
    wrapped = {0: Layer, 1: GRUWithState, 2: LSTMWithState}[states](layer(10, size, **form)).eval()
    with pytorch.quiet():
        return torch.ao.quantization.quantize_dynamic(wrapped, {layer}, dtype=dtype)


def saved(module: nn.Module, inputs: list[torch.Tensor], kind: str, path: Path) -> Path:
    with pytorch.quiet():
        if kind == "traced":
            archive = torch.jit.trace(module, tuple(inputs))
        else:
            archive = torch.jit.script(module)
            archive = torch.jit.freeze(archive.eval()) if kind == "frozen" else archive
        torch.jit.save(archive, path)
    return path


SIZES = {"traced": 32, "scripted": 24, "frozen": 13}
"""The sizes of layers in each kind of archive."""

LAYERS = [
    pytest.param(*layer, kind, marks=pytest.mark.slow if (turn + place) % 3 else ())
    for turn, layer in enumerate(product(FORMS, (nn.LSTM, nn.GRU), (torch.qint8, torch.float16)))
    for place, kind in enumerate(SIZES)
]
"""Each layer in one kind of archive, by turns; in the others it is slow."""


@pytest.mark.parametrize(("form", "layer", "dtype", "kind"), LAYERS)
def test_layers(
    layer: type[nn.Module], dtype: torch.dtype, form: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, size = FORMS[form], SIZES[kind]
    x = torch.randn(7, 5, 10) * 2
    rows = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    batch = 7 if options.get("batch_first") else 5
    for states in (0, 2 if layer is nn.LSTM else 1):
        inputs = [x, *(torch.randn(rows, batch, size) for _ in range(states))]
        module = quantized(layer, states, dtype, size, options)
        model = qfmt.convert(saved(module, inputs, kind, tmp_path / "layer.pt"))
        begins = [node.inputs[5:] for node in model.nodes if node.operator.startswith("qfmt.")]
        assert all(begins) if states else not any(begins), "zeros are no states to begin with"
        what = f"{layer.__name__} {'int8' if dtype == torch.qint8 else 'fp16'}"
        compare(what, model, inputs, module(*inputs), monkeypatch)
        (path := tmp_path / "layer.qfb").unlink(missing_ok=True)
        model.save(path)
        assert qfmt.check(path) == []
        assert qfmt.load(path).content_id() == model.content_id()


@pytest.mark.parametrize("engine", ["qnnpack", "onednn"])
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_layers_of_other_engines(
    layer: type[nn.Module], engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onednn's kernels for small products multiply by the two scales one after the other."""
    torch.backends.quantized.engine = engine
    module = quantized(layer, 0, torch.qint8, 32, {"num_layers": 2})
    x = torch.randn(6, 3, 10)
    archive = saved(module, [x], "scripted", tmp_path / "layer.pt")
    model = qfmt.convert(archive, engine=engine)
    assert {node.attributes.get("reduce_range") for node in model.nodes} <= {None, int(engine == "onednn")}
    what = f"{layer.__name__} int8 {engine}"
    compare(what, model, [x], module(x), monkeypatch, engine=engine, exact=engine == "qnnpack")


def test_weights_keep_the_names_of_the_layer(tmp_path: Path) -> None:
    module = quantized(nn.LSTM, 0, torch.qint8, 8, FORMS["two, both ways"])
    x = torch.randn(3, 2, 10)
    model = qfmt.convert(saved(module, [x], "scripted", tmp_path / "layer.pt"))
    for layer in (0, 1):
        for end in ("", "_reverse"):
            weight = model.tensors[f"rnn.weight_ih_l{layer}{end}"]
            assert (weight.dtype, weight.shape) == ("int8", (32, 16 if layer else 10))
            assert model.tensors[f"rnn.bias_hh_l{layer}{end}"].shape == (32,)
    assert model.graph.find("rnn._all_weight_values.0.param.4.0") is model.tensors["rnn.weight_ih_l0"]


def test_half_precision_weights_are_stored_as_float16(tmp_path: Path) -> None:
    module = quantized(nn.GRU, 0, torch.float16, 8, {})
    model = qfmt.convert(saved(module, [torch.randn(3, 2, 10)], "traced", tmp_path / "layer.pt"))
    weight = model.tensors["rnn.weight_ih_l0"]
    theirs, _ = module.rnn._all_weight_values[0].param.__getstate__()[0][4][0].__getstate__()[0]
    assert weight.dtype == "float16"
    np.testing.assert_array_equal(weight.array, theirs.numpy().astype(np.float16))


class Cell(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor) -> Any:
        return self.cell(x)


class CellWithState(Cell):
    """Two steps, so that the second starts from the state of the first."""

    def forward(self, x: torch.Tensor) -> Any:
        return self.cell(x * 0.5, self.cell(x))


CELLS = {
    "LSTMCell": lambda: nn.LSTMCell(10, 24),
    "GRUCell": lambda: nn.GRUCell(10, 24),
    "RNNCell tanh": lambda: nn.RNNCell(10, 24),
    "RNNCell relu": lambda: nn.RNNCell(10, 24, nonlinearity="relu"),
}


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16], ids=["int8", "fp16"])
@pytest.mark.parametrize("name", CELLS)
def test_cells(name: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, wrapper in (("traced", Cell), ("scripted", Cell), ("traced", CellWithState)):
        module = wrapper(CELLS[name]()).eval()
        with pytorch.quiet():
            module = torch.ao.quantization.quantize_dynamic(module, {type(module.cell)}, dtype=dtype)
        x = torch.randn(9, 10)
        model = qfmt.convert(saved(module, [x], kind, tmp_path / "cell.pt"))
        operators = [node.operator for node in model.nodes if node.operator != "Mul"]
        assert operators == [f"qfmt.{name.split()[0]}"] * (2 if wrapper is CellWithState else 1)
        assert "cell.weight_hh" in model.tensors
        what = f"{name} {'int8' if dtype == torch.qint8 else 'fp16'}"
        compare(what, model, [x], module(x), monkeypatch)


@pytest.mark.parametrize("kind", ["traced", "scripted"])
@pytest.mark.parametrize("name", CELLS)
def test_float_cells(name: str, kind: str, tmp_path: Path) -> None:
    """A trace has their steps, which change the gates in place; a script has one call."""
    for wrapper, biases, shape in product((Cell, CellWithState), (True, False), ((9, 10), (10,))):
        cell = CELLS[name]()
        if not biases:
            cell.bias = cell.bias_ih = cell.bias_hh = None
        module, x = wrapper(cell).eval(), torch.randn(shape)
        model = qfmt.convert(saved(module, [x], kind, tmp_path / "cell.pt"), input_shapes={"x": shape})
        results, expected = model.run({"x": x.numpy()}), module(x)
        for mine, theirs in zip(results.values(), expected if isinstance(expected, tuple) else [expected], strict=True):
            np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=0, atol=1e-6)


class ManySteps(Cell):
    """Repeats a cell in a loop of the forward method."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, states = torch.zeros(1, 24), torch.jit.annotate(list[torch.Tensor], [])
        for step in range(500):
            state = self.cell(x[step], state)
            states.append(state)
        return torch.cat(states)


@pytest.mark.parametrize("kind", ["traced", "scripted"])
def test_a_cell_of_many_steps(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a conversion has a limit, which such a network does not reach."""
    with pytorch.quiet():
        module = torch.ao.quantization.quantize_dynamic(ManySteps(nn.GRUCell(10, 24)).eval(), {nn.GRUCell})
    x = torch.randn(500, 1, 10)
    model = qfmt.convert(saved(module, [x], kind, tmp_path / "cell.pt"), input_shapes={"x": (500, 1, 10)})
    assert [node.operator for node in model.nodes].count("qfmt.GRUCell") == 500
    compare("GRUCell, 500 steps", model, [x], module(x), monkeypatch)


class Oldest(nn.Module):
    """A layer with PyTorch's packed parameters from before `quantized_dynamic`."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.LSTM(10, 16)
        parameters = (getattr(layer, name) for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"))
        self.params = torch.ops.quantized.make_quantized_cell_params(*(each.detach() for each in parameters))

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.zeros(1, x.size(1), 16)
        return torch.quantized_lstm(x, [h, h], [self.params], True, 1, 0.0, False, False, False)


def test_the_oldest_cell_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Oldest(), torch.randn(5, 3, 10)
    model = qfmt.convert(saved(module, [x], "scripted", tmp_path / "oldest.pt"))
    compare("LSTM, oldest parameters", model, [x], module(x), monkeypatch)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(10, 8)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        output, _ = self.rnn(nn.utils.rnn.pack_padded_sequence(x, lengths))
        return output.data


def test_packed_sequences_are_refused_by_name(tmp_path: Path) -> None:
    with pytorch.quiet():
        module = torch.ao.quantization.quantize_dynamic(Packed().eval(), {nn.LSTM}, dtype=torch.qint8)
    archive = saved(module, [torch.randn(5, 3, 10), torch.tensor([5, 4, 2])], "traced", tmp_path / "packed.pt")
    with pytest.raises(UnsupportedOperatorsError, match="packed"):
        qfmt.convert(archive)


def test_a_trace_of_training_is_refused(tmp_path: Path) -> None:
    module = quantized(nn.LSTM, 0, torch.qint8, 8, {"num_layers": 2, "dropout": 0.5}).train()
    with pytorch.quiet():
        torch.jit.save(torch.jit.trace(module, torch.randn(3, 2, 10), check_trace=False), tmp_path / "train.pt")
    with pytest.raises(SourceError, match="training mode"):
        qfmt.convert(tmp_path / "train.pt")


# The formulas, on float32 weights


@pytest.mark.parametrize("name", ["LSTM", "GRU", "LSTMCell", "GRUCell", "RNNCell"])
def test_the_formulas_are_those_of_torchs_float_layers(name: str) -> None:
    rng = np.random.default_rng(len(name))
    for _ in range(10):
        case = CASES[f"qfmt.{name}"](rng)
        x, w_ih, w_hh, b_ih, b_hh, *begin = case.inputs
        options = {"nonlinearity": case.attributes["activation"]} if name == "RNNCell" else {}
        layer = getattr(nn, name)(w_ih.shape[1], w_hh.shape[1], **options)
        end = "" if "Cell" in name else "_l0"
        for key, value in (("weight_ih", w_ih), ("weight_hh", w_hh), ("bias_ih", b_ih), ("bias_hh", b_hh)):
            parameter = getattr(layer, key + end)
            parameter.data = torch.zeros_like(parameter) if value is None else torch.from_numpy(value)
        batch = x.shape[-2]
        states = [torch.from_numpy(np.zeros((batch, w_hh.shape[1]), f32) if s is None else s) for s in begin]
        given = torch.from_numpy(x[::-1].copy() if case.attributes.get("reverse") else x)
        states = states if "Cell" in name else [state[None] for state in states]
        theirs = [
            each.detach().numpy()
            for each in pytorch.flat(layer(given, *([tuple(states)] if len(states) > 1 else states)))
        ]
        if case.attributes.get("reverse"):
            theirs[0] = theirs[0][::-1]
        ours = compute(f"qfmt.{name}", case)
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(mine, other.reshape(mine.shape), rtol=0, atol=1e-5)


# Published archives


@pytest.mark.parametrize("kind", ["scripted", "traced"])
def test_the_lstm_fixture_as_torch_computes_it(shared_data: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stored output is from an old torch: no engine of current torch computes it."""
    folder = shared_data / "torchscript_bc"
    archive = folder / f"TestSerialization.test_lstm.{kind}.pt"
    given = torch.load(folder / "TestSerialization.test_lstm.input.pt", weights_only=True)
    with pytorch.quiet():
        theirs = torch.jit.load(archive)(given)
    compare("fixture lstm", qfmt.convert(archive), [given], theirs, monkeypatch)


@pytest.mark.parametrize("kind", ["trace", "script"])
def test_a_language_model_of_torch_1_13(shared_data: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shared_data / "torch_legacy" / "t1131"
    inputs, expected = torch.load(folder / "lm_dyn.io.pt", weights_only=True)
    model = qfmt.convert(folder / f"lm_dyn.{kind}.pt")
    assert [model.tensors[name].dtype for name in model.graph.inputs] == ["int64"]
    compare("language model of torch 1.13", model, list(inputs), expected, monkeypatch)


def test_verify_accepts_states_that_are_one_step_off(tmp_path: Path) -> None:
    module = quantized(nn.LSTM, 0, torch.qint8, 64, {"num_layers": 3})
    archive = saved(module, [torch.randn(9, 5, 10)], "scripted", tmp_path / "layer.pt")
    qfmt.convert(archive).save(tmp_path / "layer.qfb")
    report = qfmt.verify(archive, tmp_path / "layer.qfb", samples=2)
    assert report.ok, report.first_wrong
