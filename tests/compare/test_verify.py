"""`qfmt verify`: clean files pass; for a damaged file it names the damaged layer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

import qfmt
from networks import pytorch
from qfmt.cli import main
from qfmt.compare import Report
from qfmt.compare.random_inputs import draw, with_random_vectors
from qfmt.engines import TORCH_ENGINES
from qfmt.errors import MemoryLimitError, QfmtError, RunError, SourceError, ValidityError
from qfmt.frontends.torch.execution import apply
from qfmt.frontends.torch.torchscript.source import witness
from qfmt.model import Graph, Model, Node, Quantization, Tensor
from qfmt.ops import OPERATORS
from qfmt.rules import violations
from support.changed import one_scale_changed, one_value_changed, with_node, with_tensor, zero_point_moved
from support.paths import DIGITS, HELD_BACK, ROOT

pytestmark = pytest.mark.usefixtures("fbgemm")

Change = Callable[[Model], Model]


@pytest.fixture(scope="module")
def digits() -> Model:
    return qfmt.convert(DIGITS)


def archive(folder: Path, name: str, mode: str = "eager", kind: str = "trace") -> Path:
    model, inputs = pytorch.quantized(name, mode)
    return pytorch.save_as(model, inputs, kind, folder / f"{name}.{mode}.{kind}.pt")


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["verify", *map(str, arguments)], catch_exceptions=False)


def total(report: Report, name: str) -> int:
    return sum(getattr(node, name) for node in report.nodes)


def told(report: Report) -> str:
    counts = ", ".join(f"{total(report, name)} {name}" for name in ("equal", "tie", "close", "saturated", "wrong"))
    return f"{total(report, 'outputs')} outputs: {counts}"


# -- clean files ---------------------------------------------------------------------------------------


def test_the_example_is_exact_on_its_held_back_images(digits: Model, tmp_path: Path) -> None:
    digits.save(tmp_path / "digits.qfb")
    images = np.load(HELD_BACK)["x"]
    report = qfmt.verify(DIGITS, tmp_path / "digits.qfb", {"x": images})
    print(told(report))
    assert report.ok and report.is_exact and report.same_source and not report.skipped
    assert [node.operator for node in report.nodes] == [node.operator for node in digits.nodes]
    for node, comparison in zip(digits.nodes, report.nodes, strict=True):
        values = {name: np.prod([len(images) if size == "N" else size for size in digits.tensors[name].shape])
                  for name in node.outputs if None not in digits.tensors[name].shape and
                  not {"H", "W"} & {*digits.tensors[name].shape}}  # fmt: skip
        assert comparison.outputs == comparison.equal
        assert not values or comparison.outputs == sum(values.values())
    assert {weight.witnesses for weight in report.weights} == {("conversion",)}
    assert sorted(weight.name for weight in report.weights) == sorted(t.name for t in digits.graph.constants())
    (output,) = report.outputs
    assert (output.outputs, output.equal, output.largest) == (10 * len(images), 10 * len(images), 0)
    assert (output.argmax_equal, output.argmax_total) == (len(images), len(images))


def test_the_published_mobilenet_is_exact(shared_data: Path) -> None:
    source = shared_data / "torchscript" / "ios_mobilenet_quantized.pt"
    report = qfmt.verify(source, qfmt.convert(source), samples=1)
    print(told(report))
    assert report.ok and total(report, "wrong") == 0
    assert total(report, "equal") > 500_000
    assert sum(weight.name.endswith((".weight", ".bias")) for weight in report.weights) == 2 * 53


CLEAN = [
    ("mobilenet_v2", "fx", "trace"),
    ("resnet18", "eager", "script"),
    ("conv1d", "eager", "freeze"),
    ("conv3d", "fx", "trace"),
    ("linears", "eager", "trace"),
    ("activations", "fx", "freeze"),
    ("normalizations", "eager", "trace"),
    ("layout", "fx", "trace"),
    ("islands", "eager", "script"),
    ("two_inputs", "eager", "trace"),
    ("arithmetic", "direct", "trace"),
    ("volumes", "direct", "trace"),
    ("signed", "direct", "freeze"),
]


@pytest.mark.parametrize(("name", "mode", "kind"), CLEAN, ids=map("-".join, CLEAN))
def test_nothing_is_wrong_with_a_conversion(name: str, mode: str, kind: str, tmp_path: Path) -> None:
    source = archive(tmp_path, name, mode, kind)
    report = qfmt.verify(source, qfmt.convert(source), samples=2)
    print(f"{name} {mode} {kind}: {told(report)}")
    assert report.ok, report.first_wrong
    assert total(report, "outputs") > 1000
    assert all(weight.ok for weight in report.weights)


def test_calls_compute_the_output_of_the_module(tmp_path: Path) -> None:
    """The calls, executed one by one, compute the module's output; torch is the witness."""
    module, inputs = pytorch.quantized("resnet18", "fx")
    source = pytorch.save_as(module, inputs, "trace", tmp_path / "m.pt")
    model = qfmt.convert(source)
    seen = witness(source, model).run({name: x.numpy() for name, x in zip(model.graph.inputs, inputs, strict=True)})
    (expected,) = pytorch.flat(module(*inputs))
    assert np.array_equal(seen[model.graph.outputs[0]].array, expected.numpy())


@pytest.mark.parametrize("engine_name", TORCH_ENGINES)
def test_each_engine(engine_name: str, tmp_path: Path) -> None:
    module, inputs = pytorch.quantize("conv1d", "fx", engine_name)
    source = pytorch.save_as(module, inputs, "trace", tmp_path / "m.pt")
    stated = engine_name if engine_name != "x86" else "fbgemm"
    report = qfmt.verify(source, qfmt.convert(source, engine=stated), engine=engine_name)
    print(f"{engine_name}: {told(report)}")
    assert report.ok, report.first_wrong
    assert report.engine == engine_name
    assert torch.backends.quantized.engine == engine_name  # unchanged


def test_the_engine_is_that_of_the_file(digits: Model) -> None:
    for name in ("qnnpack", "onednn"):
        torch.backends.quantized.engine = "x86"
        report = qfmt.verify(DIGITS, qfmt.convert(DIGITS, engine=name))
        assert report.ok and report.engine == name
        assert torch.backends.quantized.engine == "x86"
    assert qfmt.verify(DIGITS, qfmt.convert(DIGITS, engine="onnx")).engine == "fbgemm"


def test_rules_of_another_engine_do_not_count_as_ties(tmp_path: Path) -> None:
    """qnnpack rounds the bias. Few outputs of fbgemm differ because of this, and the file states the difference."""
    source = archive(tmp_path, "resnet18")
    model = qfmt.convert(source, engine="qnnpack")
    report = qfmt.verify(source, model, engine="fbgemm")
    print(told(report))
    assert 0 < total(report, "stated") < total(report, "outputs") / 100
    assert report.ok and not report.is_exact and total(report, "tie") == 0
    assert any("outputs that differ only by these rules count as stated" in note for note in report.notes)
    damaged = qfmt.verify(source, one_value_changed(model, "layer1.0.conv2.weight"), engine="fbgemm")
    assert not damaged.ok and [node.name for node in damaged.nodes if node.wrong] == [damaged.first_wrong.split()[0]]


# -- damaged files -------------------------------------------------------------------------------------


def relu_forgotten(model: Model, name: str) -> Model:
    quantization = model.tensors[name].quantization
    assert quantization is not None
    return with_tensor(model, name, quantization=replace(quantization, quant_max=200))


DAMAGES: dict[str, tuple[Change, str]] = {
    "a weight": (lambda m: one_value_changed(m, "pointwise.0.weight"), "pointwise.0 (Conv)"),
    "a weight of the last layer": (lambda m: one_value_changed(m, "fc.weight"), "fc (qfmt.Linear)"),
    "a bias": (lambda m: one_value_changed(m, "residual.conv.bias"), "residual.conv (Conv)"),
    "a scale of a weight": (lambda m: one_scale_changed(m, "depthwise.0.weight"), "depthwise.0 (Conv)"),
    "a scale of an activation": (lambda m: one_scale_changed(m, "residual.conv"), "residual.conv (Conv)"),
    "a zero point": (lambda m: zero_point_moved(m, "fc"), "fc (qfmt.Linear)"),
    "a clamp": (lambda m: relu_forgotten(m, "stem.0"), "stem.0 (Conv)"),
    "a rule": (lambda m: with_node(m, "residual.conv", rule="integer_bias"), "residual.conv (Conv)"),
    "an operator": (lambda m: with_node(m, "residual", operator="Sub"), "residual (Sub)"),
    "an input": (lambda m: with_node(m, "fc", inputs=("flatten", "fc.weight")), "fc (qfmt.Linear)"),
    "a stride": (
        lambda m: with_node(
            m, "pool", attributes={**next(n for n in m.nodes if n.outputs == ("pool",)).attributes, "strides": (1, 2)}
        ),
        "pool (MaxPool)",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_was_changed_is_named(damage: str, digits: Model, tmp_path: Path) -> None:
    change, layer = DAMAGES[damage]
    damaged = change(digits)
    report = qfmt.verify(DIGITS, damaged)
    print(f"{damage}: {told(report)}, first wrong {report.first_wrong}")
    assert not report.ok
    assert report.first_wrong == layer
    if not violations(damaged):
        damaged.save(tmp_path / "damaged.qfb")
        result = command(DIGITS, tmp_path / "damaged.qfb")
        assert result.exit_code == 1
        assert result.stdout.endswith(f"first wrong: {layer}\n")


def test_a_damaged_weight_affects_only_the_outputs_of_its_node(digits: Model) -> None:
    """Every node gets the inputs of the source's node, so that a fault does not spread."""
    tensor = digits.tensors["depthwise.0.weight"]
    array = np.roll(tensor.array, 1)
    damaged = with_tensor(digits, tensor.name, data=Tensor.constant("", array).data)
    report = qfmt.verify(DIGITS, damaged)
    assert [node.name for node in report.nodes if node.wrong] == ["depthwise.0"]
    (weight,) = [weight for weight in report.weights if not weight.ok]
    assert (weight.name, weight.read_by, weight.elements) == ("depthwise.0.weight", ("depthwise.0",), 144)
    assert weight.different == (array != tensor.array).sum()
    assert weight.largest == np.abs(array.astype(int) - tensor.array).max()
    assert report.outputs[0].equal < report.outputs[0].outputs


def test_a_file_from_another_source(digits: Model, tmp_path: Path) -> None:
    source = archive(tmp_path, "conv1d")
    report = qfmt.verify(source, digits)
    assert not report.ok and report.same_source is False
    assert report.skipped == "file and source do not have the same inputs"
    digits.save(tmp_path / "digits.qfb")
    result = command(source, tmp_path / "digits.qfb")
    assert result.exit_code == 1
    verdict = "the file was not made from this source: its sha256 differs, and no constant is equal\n"
    assert result.stdout.endswith(verdict) and "only in" not in result.stdout
    words = {word for weight in report.weights for word in weight.differences if word.startswith("only in")}
    assert words == {"only in the source", "only in the file"}


def test_nodes_that_are_missing_or_added(digits: Model) -> None:
    nodes = [node for node in digits.nodes if node.outputs[0] != "pool"]
    moved = [
        replace(node, inputs=tuple("pointwise.0" if name == "pool" else name for name in node.inputs)) for node in nodes
    ]
    tensors = {name: tensor for name, tensor in digits.tensors.items() if name != "pool"}
    shorter = digits.replace(graph=replace(digits.graph, nodes=moved, tensors=tensors))
    report = qfmt.verify(DIGITS, shorter)
    assert not report.ok
    assert report.missing == ("pool (MaxPool)",)
    assert report.first_wrong == "residual.conv (Conv)"


# -- classes -------------------------------------------------------------------------------------------


def test_what_nan_becomes_is_stated(digits: Model) -> None:
    """The file states quant_min, and torch's quantize_per_tensor has quant_max."""
    x = np.load(HELD_BACK)["x"][:2]
    x[0, 0, 3, 4] = np.nan
    report = qfmt.verify(DIGITS, digits, {"x": x})
    quant = report.nodes[0]
    assert report.ok and (quant.outputs, quant.stated, quant.wrong, quant.largest) == (128, 1, 0, 255)
    assert total(report, "equal") == total(report, "outputs") - 1


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_states_that_only_the_file_has_differ_in_their_last_bits(kind: type[torch.nn.RNNBase], tmp_path: Path) -> None:
    """A layer whose batch is first becomes one that is transposed."""

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = kind(8, 64, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rnn(x)[0]

    with pytorch.quiet():
        torch.manual_seed(0)
        network = torch.ao.quantization.quantize_dynamic(States().eval(), {kind}, dtype=torch.qint8)
        torch.jit.trace(network, torch.zeros(2, 5, 8)).save(tmp_path / "m.pt")
    report = qfmt.verify(tmp_path / "m.pt", qfmt.convert(tmp_path / "m.pt"))
    print(told(report))
    assert report.ok


def test_ties_of_torch_count_as_ties(tmp_path: Path) -> None:
    """torch's own average pooling breaks ties by memory layout, its `add` by the position in a block of 64."""
    source = archive(tmp_path, "pooling")
    report = qfmt.verify(source, qfmt.convert(source), samples=2)
    print(told(report))
    assert report.ok and not report.is_exact
    assert total(report, "tie") > 100 and total(report, "wrong") == 0
    assert max(node.largest for node in report.nodes if node.tie) == 1
    result = command(source, source)
    assert result.exit_code == 0
    assert "off by one at rounding ties" in result.stdout.splitlines()[-1]


def test_overflows_of_the_engine_do_not_count_as_wrong(tmp_path: Path) -> None:
    source = archive(tmp_path, "mobilenet_v2", "eager")
    model = qfmt.convert(source)
    loud = {model.graph.inputs[0]: 40 * torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(3)).numpy()}
    report = qfmt.verify(source, model, loud)
    print(told(report))
    assert report.ok, report.first_wrong
    assert total(report, "saturated") > 0
    assert {node.operator for node in report.nodes if node.saturated} == {"Conv"}


# -- inputs --------------------------------------------------------------------------------------------


def test_pseudo_random_inputs_are_the_same_every_time(digits: Model) -> None:
    first, second = (qfmt.verify(DIGITS, digits, samples=3) for _ in range(2))
    assert first.to_dict() == second.to_dict()
    assert first.inputs == "3 pseudo-random (seed 0): x [1,1,8,8]"
    assert first.outputs[0].argmax_total == 3


def test_open_sizes(tmp_path: Path) -> None:
    source = archive(tmp_path, "unet", kind="script")
    model = qfmt.convert(source)
    assert qfmt.verify(source, model, samples=1).inputs.endswith("x [1,3,224,224]")
    given = qfmt.verify(source, model, samples=1, input_shapes={"x": (2, 3, 16, 24)})
    assert given.ok and given.inputs.endswith("x [2,3,16,24]")
    with pytest.raises(QfmtError, match="no input 'y'"):
        qfmt.verify(source, model, input_shapes={"y": (1,)})
    with pytest.raises(RunError, match=r"torch cannot run .*--input-shape"):
        qfmt.verify(source, model, samples=1, input_shapes={"x": (1, 5, 16, 16)})


def test_too_large_inputs_are_not_drawn(digits: Model) -> None:
    (name,) = digits.graph.inputs
    computed = {output: None for node in digits.nodes for output in node.outputs}
    tensors = {
        each: replace(tensor, shape=(10**6, 1, 10**5, 8) if each == name else None)
        if each == name or each in computed
        else tensor
        for each, tensor in digits.tensors.items()
    }
    large = digits.replace(graph=replace(digits.graph, tensors=tensors))
    with pytest.raises(RunError, match=f"{name}: an input of shape .* is too large; .*--input"):
        qfmt.verify(DIGITS, large)


def test_shapes_that_a_layer_requires(tmp_path: Path) -> None:
    source = archive(tmp_path, "linears", kind="script")  # accepts [N, 6, 24], which the archive does not state
    model = qfmt.convert(source, input_shapes={"x": ("N", 6, None)})
    report = qfmt.verify(source, model, samples=1)
    print(told(report))
    assert report.ok and report.inputs.endswith("x [1,6,24]")


def test_quantized_inputs(shared_data: Path) -> None:
    name = "TestSerialization.test_conv2d"
    source = shared_data / "torchscript_bc" / f"{name}.scripted.pt"
    taken = torch.load(shared_data / "torchscript_bc" / f"{name}.input.pt", weights_only=True)
    entry = torch.jit.load(source).forward.schema.arguments[1].name
    model = qfmt.convert(source, input_quantization={entry: (taken.q_scale(), taken.q_zero_point(), "uint8")})
    for inputs in (None, {entry: taken.int_repr().numpy()}):
        report = qfmt.verify(source, model, inputs)
        print(told(report))
        assert report.ok and report.nodes[0].outputs == report.nodes[0].equal > 0


# -- the command ---------------------------------------------------------------------------------------


def test_the_command_prints_tables(digits: Model, tmp_path: Path) -> None:
    digits.save(tmp_path / "digits.qfb")
    result = command(DIGITS, tmp_path / "digits.qfb", "--input", HELD_BACK)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[-1] == "equal"
    assert any(line.split() == ["dequant", "3600", "3600", "0", "agrees", "in", "360", "of", "360"] for line in
               (line.replace(",", "") for line in lines))  # fmt: skip
    assert "from which the file was made" in lines[0]


def test_the_command_prints_json(digits: Model, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.qfb"
    one_value_changed(digits, "fc.weight").save(damaged)
    result = command(DIGITS, damaged, "--json", "--samples", 1)
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["ok"], found["first_wrong"], found["engine"]) == (False, "fc (qfmt.Linear)", "fbgemm")
    assert [weight["name"] for weight in found["weights"] if weight["different"]] == ["fc.weight"]
    assert {"outputs", "equal", "tie", "close", "saturated", "wrong", "largest"} <= found["nodes"][0].keys()


TROUBLE: Mapping[str, tuple[Callable[[Path], list[object]], str]] = {
    "a .qfb as its own source": (lambda qfb: [qfb, qfb, "--engine", "x86"], "does not apply to a .qfb"),
    "a size by name": (lambda qfb: [DIGITS, qfb, "--input-shape", "x=N,1,8,8"], "needs numbers, not N"),
    "an unknown input": (lambda qfb: [DIGITS, qfb, "--input-shape", "y=1,1,8,8"], "no input 'y'"),
    "inputs that do not fit": (lambda qfb: [DIGITS, qfb, "--input", qfb.with_name("flat.npy")], "4 dimensions"),
}


@pytest.mark.parametrize("trouble", TROUBLE)
def test_trouble_is_one_line_and_status_2(trouble: str, digits: Model, tmp_path: Path) -> None:
    digits.save(tmp_path / "digits.qfb")
    np.save(tmp_path / "flat.npy", np.zeros((8, 8), np.float32))
    arguments, message = TROUBLE[trouble]
    result = command(*arguments(tmp_path / "digits.qfb"))
    assert result.exit_code == 2
    assert result.stderr.startswith("qfmt: error: ") and result.stderr.count("\n") == 1
    assert message in result.stderr


# -- without torch, and calls that torch must not run ----------------------------------------------------

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # any import of it raises
from qfmt.cli import main
main(sys.argv[1:])
"""


def test_without_torch_constants_are_compared(digits: Model, tmp_path: Path) -> None:
    files = {"clean": digits, "weight": one_value_changed(digits, "fc.weight"),
             "rule": with_node(digits, "fc", rule="integer_bias")}  # fmt: skip
    for name, model in files.items():
        model.save(tmp_path / f"{name}.qfb")
        arguments = [sys.executable, "-c", WITHOUT_TORCH, "verify", str(DIGITS), str(tmp_path / f"{name}.qfb")]
        result = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
        assert result.returncode == (0 if name == "clean" else 1), result.stderr
        assert "nodes were not run: torch is not installed; run `pip install '.[torch]'`" in result.stdout
        assert result.stdout.endswith("constants equal\n" if name == "clean" else "first wrong: fc (qfmt.Linear)\n")


def test_without_torch_other_nodes_are_not_equal(digits: Model, tmp_path: Path) -> None:
    """Nodes that do not state what those of the source do can only be run."""
    digits.to_integers(input_shapes={"x": ("N", 1, 8, 8)}).save(tmp_path / "m.qfb")
    arguments = [sys.executable, "-c", WITHOUT_TORCH, "verify", str(DIGITS), str(tmp_path / "m.qfb")]
    result = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and "torch is not installed" in result.stderr


def test_a_torch_that_cannot_be_loaded_is_an_error(digits: Model, tmp_path: Path) -> None:
    """It is not the same as none, without which constants are enough."""
    digits.save(tmp_path / "m.qfb")
    (tmp_path / "broken" / "torch").mkdir(parents=True)
    (tmp_path / "broken" / "torch" / "__init__.py").write_text("raise ImportError('libtorch.so: no such file')")
    arguments = [sys.executable, "-m", "qfmt", "verify", str(DIGITS), str(tmp_path / "m.qfb")]
    variables = os.environ | {"PYTHONPATH": f"{tmp_path / 'broken'}:{ROOT}"}
    result = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False, env=variables)
    assert result.returncode == 2
    assert result.stderr == "qfmt: error: a package cannot be loaded: libtorch.so: no such file\n"


def test_only_operators_that_the_lifter_knows_are_executed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched")
    for target in ("aten::from_file", "aten::save", "quantized::nothing", "torch::jit", "os::system"):
        with pytest.raises(ValueError, match="not on the list of operators"):
            apply(target, [str(victim), True, 64, torch.zeros(1)], {})
    assert victim.read_bytes() == b"untouched"


class InPlace(torch.nn.Module):
    """torch overwrites a tensor that earlier calls have read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        more = doubled + 1
        doubled.relu_()
        return torch.cat([doubled, more, doubled.add_(3)])


@pytest.mark.parametrize("kind", ["trace", "script"])
def test_values_are_recorded_before_they_are_overwritten(kind: str, tmp_path: Path) -> None:
    source = pytorch.save_as(InPlace(), (torch.ones(2, 3),), kind, tmp_path / "m.pt")
    report = qfmt.verify(source, qfmt.convert(source, input_shapes={"x": (2, 3)}))
    print(told(report))
    assert report.is_exact, report.first_wrong
    assert {node.operator for node in report.nodes if node.outputs} == {"Mul", "Add", "Relu", "Concat"}


class Talkative(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("code of the archive was executed")
        return torch.relu(x)


def test_no_code_of_the_archive_is_executed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = pytorch.save_as(Talkative(), (torch.zeros(2),), "script", tmp_path / "m.pt")
    torch.jit.load(source)(torch.zeros(2))
    assert "executed" in capfd.readouterr().out
    report = qfmt.verify(source, qfmt.convert(source, input_shapes={"x": (2, 3)}))
    assert report.ok and report.nodes[0].outputs == 4 * 6
    assert "executed" not in capfd.readouterr().out


class Positions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = torch.nn.Embedding(9, 4), torch.nn.Embedding(12, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.words(ids) + self.places(torch.arange(ids.shape[1]).unsqueeze(0))


def test_ranges_of_numbers_are_created_by_torch(tmp_path: Path) -> None:
    ids = torch.randint(0, 9, (2, 7))
    source = pytorch.save_as(Positions(), (ids,), "trace", tmp_path / "m.pt")
    report = qfmt.verify(source, qfmt.convert(source), {"ids": ids[:, :5].numpy()})
    assert report.ok
    assert {node.operator: node.equal for node in report.nodes if node.operator in ("Range", "Add")} == {
        "Range": 5,
        "Add": 2 * 5 * 4,
    }


class Twice(torch.nn.Module):
    row: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = torch.nn.Embedding(900, 4), torch.nn.Embedding(3, 4)
        self.register_buffer("row", torch.randn(1, 5))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        picked: torch.Tensor = self.words(ids) + self.kinds(ids)
        return picked.sum(-1) + self.row.index_select(1, ids)[0]


def test_indices_are_of_every_table_that_they_select_from(tmp_path: Path) -> None:
    source = pytorch.save_as(Twice(), (torch.tensor([0, 2]),), "trace", tmp_path / "m.pt")
    model = qfmt.convert(source)
    (inputs,) = draw(model, {"ids": (2000,)}, 1, "fbgemm")
    assert {*inputs["ids"].tolist()} == {0, 1, 2}
    assert qfmt.verify(source, model).ok


def test_sizes_that_do_not_fit_an_input(digits: Model) -> None:
    with pytest.raises(RunError, match=r"x: has 4 dimensions, not 3; check --input-shape"):
        qfmt.verify(DIGITS, digits, input_shapes={"x": (1, 1, 8)})


class Summed(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b


def test_sizes_of_one_name(tmp_path: Path) -> None:
    source = pytorch.save_as(Summed(), (torch.zeros(1, 4), torch.zeros(1, 4)), "trace", tmp_path / "m.pt")
    model = qfmt.convert(source, input_shapes={"a": ("N", 4), "b": ("N", 4)})
    for name in "ab":
        assert qfmt.verify(source, model, input_shapes={name: (5, 4)}).inputs.endswith("a [5,4], b [5,4]")
    with pytest.raises(RunError, match=r"b: a size cannot be \[7, 4\] here and another one"):
        qfmt.verify(source, model, input_shapes={"a": (5, 4), "b": (7, 4)})


def test_vectors_of_a_graph_that_breaks_rules(digits: Model) -> None:
    """A node without outputs: it is found before inputs are drawn."""
    (x,) = digits.graph.inputs
    nodes = (*digits.nodes, Node("Cast", (x,), (), {"to": "int8"}, "", OPERATORS["Cast"].version))
    with pytest.raises(ValidityError, match="V41"):
        with_random_vectors(digits.replace(graph=replace(digits.graph, nodes=nodes)), 1, {})


def test_sizes_that_are_too_large_to_draw(digits: Model) -> None:
    with pytest.raises(RunError, match=r"x: an input of shape \[99999999999, 1, 8, 8\] is too large; set smaller"):
        qfmt.verify(DIGITS, digits, input_shapes={"x": (99999999999, 1, 8, 8)})


def test_too_little_memory_says_nothing_of_the_file(digits: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qfmt.compare.side_by_side.limit_for", lambda nbytes: nbytes + 100)
    with pytest.raises(MemoryLimitError, match=r"^node .* needs .* more than the limit of .*; free memory, or use"):
        qfmt.verify(DIGITS, digits)


def test_only_networks_are_a_source(tmp_path: Path, digits: Model) -> None:
    other = tmp_path / "numbers.pt"
    torch.save(torch.ones(3), other)
    with pytest.raises(SourceError, match="of tensors or other plain data, not a network"):
        qfmt.verify(other, digits)
    with pytest.raises(
        SourceError, match=r"expects the path of a file, not a ReLU; save the module with torch\.jit\.save"
    ):
        qfmt.verify(torch.nn.ReLU(), digits)  # type: ignore[arg-type]


def test_outputs_are_those_of_the_source_in_its_order(tmp_path: Path) -> None:
    module, inputs = pytorch.quantized("two_inputs", pytorch.NETWORKS["two_inputs"].modes[-1])
    source = pytorch.save_as(module, inputs, "trace", tmp_path / "m.pt")
    model = qfmt.convert(source)
    first, second, third = model.graph.outputs
    assert qfmt.verify(source, model, samples=1).ok
    for outputs in ((second, first, third), (first, second), (first, second, second), (first, second, third, first)):
        other = model.replace(graph=replace(model.graph, outputs=outputs))
        report = qfmt.verify(source, other, samples=1)
        assert not report.ok
        assert report.first_wrong.startswith(f"the network's outputs {first}, {second}, {third} → {outputs[0]}")


def _three(inputs: Sequence[str], outputs: Sequence[str]) -> Model:
    """Three QuantizeLinear nodes side by side, with other scales."""
    tensors = {name: Tensor(name, "float32", (4,)) for name in inputs}
    for name, scale in zip(outputs, (0.5, 0.25, 0.125), strict=True):
        tensors[name] = Tensor(name, "int8", (4,), quantization=Quantization.of((scale,), (0,), -128, 127))
    version = OPERATORS["QuantizeLinear"].version
    ends = zip(inputs, outputs, strict=True)
    nodes = tuple(Node("QuantizeLinear", (x,), (y,), version=version, rule="divide") for x, y in ends)
    return Model(Graph(tuple(inputs), tuple(outputs), nodes, tensors))


NAMES = {
    "inputs": [("bac", "pqr"), ("acb", "pqr"), ("baz", "pqr"), ("zab", "pqr")],
    "outputs": [("abc", "qpr"), ("abc", "prq"), ("abc", "zrq"), ("abc", "qzr")],
}


@pytest.mark.parametrize(("what", "names"), [(what, names) for what in NAMES for names in NAMES[what]])
def test_names_that_are_exchanged_are_wrong(what: str, names: tuple[str, str], tmp_path: Path) -> None:
    """Arrays go by names, also if another one was renamed."""
    path = tmp_path / "source.qfb"
    _three("abc", "pqr").save(path)
    report = qfmt.verify(path, _three(*names))
    assert not report.ok and report.first_wrong.startswith(f"the network's {what} ")
    assert qfmt.verify(path, _three("xyc", "pst")).ok
