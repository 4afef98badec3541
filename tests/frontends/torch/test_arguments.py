"""Networks with tuples, lists and dicts of tensors as inputs, and name collisions in the code of modules."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao import quantization as tq

import qfmt
from networks import pytorch
from qfmt.errors import RunError, SourceError


@pytest.fixture(autouse=True)
def engine() -> Iterator[None]:
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    with pytorch.quiet():
        yield
    torch.backends.quantized.engine = before


class LanguageModel(nn.Module):
    """As in PyTorch's tutorial of dynamic quantization: the hidden state is a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Embedding(20, 8)
        self.rnn = nn.LSTM(8, 12, 2)
        self.decoder = nn.Linear(12, 20)

    def forward(
        self, input: torch.Tensor, hidden: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        output, hidden = self.rnn(self.encoder(input), hidden)
        return self.decoder(output), hidden


class Pair(nn.Module):
    """Two tensors in a list, or in a dict."""

    def __init__(self, pick: Callable[[Any], tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self.quant_a, self.quant_b, self.dequant = tq.QuantStub(), tq.QuantStub(), tq.DeQuantStub()
        self.fc, self.add = nn.Linear(4, 4), nn.quantized.FloatFunctional()
        self.pick = pick

    def forward(self, pair: Any) -> torch.Tensor:
        a, b = self.pick(pair)
        return self.dequant(self.add.add(self.fc(self.quant_a(a)), self.quant_b(b)))


def language_model() -> tuple[nn.Module, tuple[Any, ...]]:
    model = tq.quantize_dynamic(LanguageModel().eval(), {nn.LSTM, nn.Linear}, dtype=torch.qint8)
    hidden = torch.rand(2, 3, 12), torch.rand(2, 3, 12)
    return model, (torch.randint(0, 20, (7, 3)), hidden)


def pair(kind: str) -> tuple[nn.Module, tuple[Any, ...]]:
    a, b = torch.rand(3, 4), torch.rand(3, 4) * 3
    if kind == "dict":
        model, inputs = Pair(lambda given: (given["a"], given["b"])), {"a": a, "b": b}
    else:
        model, inputs = Pair(lambda given: (given[0], given[1])), [a, b]
    model.eval().qconfig = tq.get_default_qconfig("fbgemm")
    prepared = tq.prepare(model)
    prepared(inputs)
    return tq.convert(prepared), (inputs,)


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [each for part in (value.values() if isinstance(value, dict) else value) for each in flat(part)]


CASES: dict[str, tuple[Callable[[], tuple[nn.Module, tuple[Any, ...]]], tuple[str, ...]]] = {
    "tuple": (language_model, ("input", "hidden.0", "hidden.1")),
    "list": (lambda: pair("list"), ("pair.0", "pair.1")),
    "dict": (lambda: pair("dict"), ("pair.a", "pair.b")),
}


@pytest.mark.parametrize("case", CASES)
def test_each_tensor_is_an_input(case: str, tmp_path: Path) -> None:
    make, names = CASES[case]
    network, inputs = make()
    expected = [each.detach().numpy() for each in flat(network(*inputs))]
    torch.jit.save(torch.jit.trace(network, inputs, strict=False), tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt")
    assert model.graph.inputs == names
    assert qfmt.convert(network, example_inputs=inputs).content_id() == model.content_id()

    outputs = model.run({name: each.numpy() for name, each in zip(names, flat(inputs), strict=True)})
    for mine, theirs in zip(outputs.values(), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    report = qfmt.verify(tmp_path / "m.pt", model)
    assert report.ok and report.nodes and not report.skipped
    # equal to `run`, and to torch, whose sigmoid and tanh differ in the last bits between processors
    for name, wanted in (("reference", [*outputs.values()]), ("native", expected)):
        outputs_of_module = flat(model.to_torch(engine=name)(*flat(inputs)))
        equal = sum(
            int((mine == torch.from_numpy(theirs)).sum())
            for mine, theirs in zip(outputs_of_module, wanted, strict=True)
        )
        total = sum(each.size for each in expected)
        print(f"{case}, {name}: {equal} of {total} equal")
        assert equal == total


def test_calling_a_module_with_wrong_arguments_explains_them() -> None:
    network, inputs = language_model()
    module = qfmt.convert(network, example_inputs=inputs).to_torch(engine="reference")
    with pytest.raises(RunError, match=r"input hidden\.0: expects a torch\.Tensor, not tuple; pass its tensors one by"):
        module(*inputs)


def test_a_scripted_tuple_needs_no_example(tmp_path: Path) -> None:
    network, inputs = language_model()
    torch.jit.save(torch.jit.script(network), tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt", input_shapes={"hidden.0": (2, "N", 12), "input": ("T", "N")})
    assert model.graph.inputs == ("input", "hidden.0", "hidden.1")
    expected = network(*inputs)[0].detach().numpy()
    arrays = {name: each.numpy() for name, each in zip(model.graph.inputs, flat(inputs), strict=True)}
    np.testing.assert_allclose(model.run(arrays)[model.graph.outputs[0]], expected, rtol=1e-5, atol=1e-6)


class OfDict(nn.Module):
    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.dequantize(torch.quantize_per_tensor(batch["x"], 0.1, 0, torch.quint8))


def test_a_dict_without_example_is_refused(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(OfDict()), tmp_path / "m.pt")
    with pytest.raises(SourceError, match=r"has the argument batch: Dict\[str, Tensor\]; only tensors, and tuples"):
        qfmt.convert(tmp_path / "m.pt")


class Names(nn.Module):
    """The arguments have names that fx gives to values: fx renames `input`, a builtin of Python, to `input_1`."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = tq.QuantStub(), tq.DeQuantStub()

    def forward(
        self, input: torch.Tensor, input_1: torch.Tensor, x: torch.Tensor, x_1: torch.Tensor, quantize: torch.Tensor
    ) -> torch.Tensor:
        return self.dequant(self.quant(input)) + input_1 * 2 + x * 3 + x_1 * 5 + quantize * 7


@pytest.mark.parametrize("name", ["reference", "native", "onednn", "qdq"])
def test_arguments_of_a_module_are_not_confused(name: str) -> None:
    network = Names().eval()
    network.qconfig = tq.get_default_qconfig("fbgemm")
    prepared, inputs = tq.prepare(network), tuple(torch.rand(5) for _ in range(5))
    prepared(*inputs)
    converted = tq.convert(prepared)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = qfmt.convert(converted, example_inputs=inputs)
    module, expected = model.to_torch(engine=name), converted(*inputs)
    assert torch.equal(module(*inputs), expected)
    assert torch.equal(module(**dict(zip(model.graph.inputs, inputs, strict=True))), expected)
