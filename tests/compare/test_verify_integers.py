"""`qfmt verify` of integer-only files, compared with the sources that they were lowered from."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import qfmt
from networks import pytorch
from networks.random_net import Net, grid
from qfmt.cli import main
from qfmt.compare import Report, judges
from qfmt.errors import MemoryLimitError, NoIntegerFormError, QfmtError, RunError
from qfmt.model import Model, Quantization, Tensor
from qfmt.passes.lowering import lower_integer
from support.changed import with_node
from support.counts import tell
from support.paths import DIGITS, EXAMPLES, HELD_BACK, SUITE

SIZES = {"x": ("N", 1, 8, 8)}


@pytest.fixture(scope="module")
def digits() -> Model:
    return qfmt.convert(DIGITS)


@pytest.fixture(scope="module")
def exact(digits: Model) -> Model:
    return lower_integer(digits, exact=True, input_shapes=SIZES)


@pytest.fixture(scope="module")
def narrow(digits: Model) -> Model:
    return lower_integer(digits, bits=8, input_shapes=SIZES)


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["verify", *map(str, arguments)], catch_exceptions=False)


def total(report: Report, name: str) -> int:
    return sum(getattr(node, name) for node in report.nodes)


def told(what: str, report: Report) -> Report:
    counts = ", ".join(f"{total(report, name):,} {name}" for name in ("equal", "tie", "stated", "wrong"))
    tell(f"{what}: {total(report, 'outputs'):,} outputs: {counts}")
    return report


def compared(report: Report) -> set[str]:
    return {node.name for node in report.nodes if node.outputs}


def changed(model: Model, name: str, change: Callable[[Any], Any]) -> Model:
    tensor = model.tensors[name]
    data = Tensor.constant("", change(tensor.array.copy()).astype(tensor.array.dtype)).data
    tensors = {**model.graph.tensors, name: replace(tensor, data=data)}
    return model.replace(graph=replace(model.graph, tensors=tensors))


def with_proof(model: Model, output: str, **changes: Any) -> Model:
    nodes = [
        replace(node, proof=replace(node.proof, **changes)) if node.proof and node.outputs == (output,) else node
        for node in model.nodes
    ]
    return model.replace(graph=replace(model.graph, nodes=nodes))


@pytest.mark.parametrize("source", ["torch", "qfb"])
def test_every_tensor_that_the_source_has_is_compared(source: str, digits: Model, exact: Model, tmp_path: Path) -> None:
    digits.save(tmp_path / "digits.qfb")
    report = told(source, qfmt.verify(DIGITS if source == "torch" else tmp_path / "digits.qfb", exact))
    both = {name for node in exact.nodes for name in node.outputs} & set(digits.tensors)
    assert report.ok and report.is_exact and report.integer_only and report.same_source and not report.notes
    assert compared(report) == both and len(both) == 9
    assert report.engine == ("fbgemm" if source == "torch" else "reference")
    assert {weight.name for weight in report.weights} == {n.name for n in exact.graph.constants()} & set(digits.tensors)
    assert len(report.weights) == 5 and all(weight.ok for weight in report.weights)
    (output,) = report.outputs
    assert (output.name, output.outputs, output.equal) == ("fc", 40, 40)


def test_stated_differences_are_counted_separately(digits: Model, narrow: Model) -> None:
    report = told("8 bits", qfmt.verify(DIGITS, narrow))
    assert report.ok and not report.is_exact
    assert total(report, "stated") > 100 and total(report, "wrong") == total(report, "tie") == 0
    off = {node.name for node in report.nodes if node.stated}
    assert off < compared(report) and "pool" not in off
    name = next(node.name for node in report.nodes if node.stated)
    before = next(node for node in report.nodes if node.name == name)
    (node,) = (node for node in narrow.nodes if node.outputs == (name,))
    assert node.proof is not None and any(node.proof.differs)
    silent = with_proof(narrow, name, differs=())
    after = qfmt.verify(DIGITS, silent)
    found = next(each for each in after.nodes if each.name == name)
    assert (found.stated, found.wrong) == (0, before.stated)
    assert not after.ok and after.first_wrong == f"{name} (qfmt.Requantize)"


def test_too_little_memory_says_nothing_of_either_file(narrow: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever node of the source or of its fresh lowering needs it; other errors of these are no errors."""
    kind: type[QfmtError] = MemoryLimitError
    calls, at = 0, 0

    def failing(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise kind("needs more")
        return kept(*arguments)

    kept = judges.execute
    monkeypatch.setattr(judges, "execute", failing)
    qfmt.verify(DIGITS, narrow, samples=1)
    every, counted = calls, 0
    for number in range(1, every + 1, 7):
        calls, at, counted = 0, number, counted + 1
        with pytest.raises(MemoryLimitError, match="needs more"):
            qfmt.verify(DIGITS, narrow, samples=1)
    assert counted > 2
    calls, kind = 0, RunError
    qfmt.verify(DIGITS, narrow, samples=1)
    assert calls >= at


def test_too_little_memory_to_lower_says_nothing_of_the_source(narrow: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> Model:
        raise MemoryLimitError("needs more")

    monkeypatch.setattr("qfmt.passes.lowering.lower_as", failing)
    with pytest.raises(MemoryLimitError, match="needs more"):
        qfmt.verify(DIGITS, narrow, samples=1)


def test_requant_shift_also_states_differences(digits: Model) -> None:
    report = told(
        "multiply, add, divide",
        qfmt.verify(DIGITS, lower_integer(digits, form="multiply_add_divide", bits=8, input_shapes=SIZES)),
    )
    assert report.ok and sum(node.stated for node in report.nodes if node.operator == "qfmt.RequantShift") > 100


def test_only_channels_that_state_it_may_differ(narrow: Model) -> None:
    """A difference counts as wrong in channels that no longer state it."""
    name = "pointwise.0"
    (node,) = (node for node in narrow.nodes if node.outputs == (name,))
    assert node.proof is not None
    differs = np.array(node.proof.differs)
    whole = next(each for each in qfmt.verify(DIGITS, narrow).nodes if each.name == name)
    half = with_proof(narrow, name, differs=tuple(np.where(np.arange(len(differs)) % 2, differs, 0).tolist()))
    silent = next(each for each in qfmt.verify(DIGITS, half).nodes if each.name == name)
    assert 0 < silent.stated < whole.stated and silent.stated + silent.wrong == whole.stated


def test_the_file_does_not_choose_how_strictly_it_is_compared(exact: Model) -> None:
    """The multipliers are damaged, and the file states that they may differ by any amount."""
    name = "pointwise.0"
    damaged = changed(exact, f"{name}.multiplier", lambda a: a + a // 40)
    lying = with_proof(damaged, name, differs=(9,) * 32, largest=255)
    for said in ("exact", "multiply_shift, 32 bits", "multiply_shift, 0 bits", "nonsense"):
        model = lying.replace(source={**lying.source, "integer_only": said})
        found = [
            next(each for each in qfmt.verify(DIGITS, each).nodes if each.name == name) for each in (damaged, model)
        ]
        assert found[0].wrong == found[1].wrong > 0 and found[1].stated == 0


@pytest.mark.parametrize("form", ["multiply_shift, 8 bits", "power_of_two", "exact", "multiply_add_divide, 8 bits"])
def test_a_forged_network_is_wrong(form: str, narrow: Model, tmp_path: Path) -> None:
    """All constants are renamed and damaged, and each requantization states that it may differ by 255."""
    forged = forgery(narrow).replace(source={**narrow.source, "integer_only": form})
    forged.save(tmp_path / "forged.qfb")
    report = told(form, qfmt.verify(DIGITS, forged))
    assert not report.ok and report.first_wrong.startswith("stem.0") and not report.weights
    assert command(DIGITS, tmp_path / "forged.qfb").exit_code == 1


def forgery(model: Model) -> Model:
    for tensor in model.graph.constants():
        if not tensor.name.endswith("shift"):
            model = changed(model, tensor.name, lambda array: np.sort(array + np.maximum(1, np.abs(array) // 8)))
    new = {tensor.name: f"c{index}" for index, tensor in enumerate(model.graph.constants())}
    nodes = [
        replace(
            node,
            inputs=tuple(new.get(name, name) for name in node.inputs),
            proof=node.proof and replace(node.proof, differs=(9,) * len(node.proof.low), largest=255),
        )
        for node in model.nodes
    ]
    tensors = {new.get(name, name): replace(each, name=new.get(name, name)) for name, each in model.tensors.items()}
    return model.replace(graph=replace(model.graph, nodes=nodes, tensors=tensors))


@pytest.mark.parametrize("form", ["power_of_two", "fixed_point_double", "fixed_point_single"])
def test_stated_differences_are_accepted_in_every_form(form: str, digits: Model) -> None:
    report = told(form, qfmt.verify(DIGITS, lower_integer(digits, form=form, input_shapes=SIZES)))
    assert report.ok and total(report, "stated") > 0


@pytest.mark.parametrize("form", [{"bits": 16}, {"form": "power_of_two"}, {"form": "multiply_add_divide", "bits": 8}])
def test_an_exact_file_of_any_form_is_a_fresh_lowering(form: dict[str, Any], digits: Model) -> None:
    lowered = lower_integer(digits, exact=True, input_shapes=SIZES, **form)
    report = told(f"exact, {form}", qfmt.verify(DIGITS, lowered))
    assert report.is_exact and report.lowered_anew and not report.notes


def test_a_proof_that_is_not_that_of_a_fresh_lowering(digits: Model) -> None:
    lowered = lower_integer(digits, input_shapes=SIZES)
    node = next(each for each in lowered.nodes if each.proof is not None and sum(each.proof.differs))
    assert node.proof is not None
    false = replace(node, proof=replace(node.proof, differs=(), largest=0))
    nodes = [false if each is node else each for each in lowered.nodes]
    report = qfmt.verify(DIGITS, lowered.replace(graph=replace(lowered.graph, nodes=nodes)))
    assert report.lowered_anew is False
    assert f"differs from a fresh lowering of the source in the proof of {node.label}" in report.notes


def test_a_file_that_computes_nothing_is_not_equal(exact: Model, tmp_path: Path) -> None:
    graph = exact.graph
    (name,) = graph.inputs
    empty = exact.replace(graph=replace(graph, nodes=(), outputs=(name,), tensors={name: graph.tensors[name]}))
    report = qfmt.verify(DIGITS, empty)
    assert not report.ok and report.first_wrong == "no node was compared, and the output dequant is not in the file"
    empty.save(tmp_path / "m.qfb")
    assert command(DIGITS, tmp_path / "m.qfb").exit_code == 1


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("pointwise.0.multiplier", "pointwise.0 (qfmt.Requantize)"),
        ("depthwise.0.bias.folded", "depthwise.0 (qfmt.Requantize)"),
        ("residual.thresholds", "residual (qfmt.Requantize)"),
        ("stem.0.weight", "stem.0.sums (Conv)"),
    ],
)
def test_damage_is_named(name: str, first: str, exact: Model, tmp_path: Path) -> None:
    damaged = changed(exact, name, lambda array: array + np.maximum(1, np.abs(array) // 8))
    report = told(name, qfmt.verify(DIGITS, damaged))
    assert not report.ok and report.first_wrong == first and total(report, "wrong") > 0
    damaged.save(tmp_path / "m.qfb")
    result = command(DIGITS, tmp_path / "m.qfb")
    assert result.exit_code == 1 and result.stdout.rstrip().endswith(f"first wrong: {first}")
    assert "a kernel of the engine" not in result.stdout


def test_what_no_sample_shows_is_told(exact: Model, tmp_path: Path) -> None:
    """A threshold that no sum of the samples reaches; then the scale of a tensor, which no node computes with."""
    damaged = changed(exact, "residual.thresholds", lambda array: np.where(array == array.max(), array + 1, array))
    assert not np.array_equal(damaged.tensors["residual.thresholds"].array, exact.tensors["residual.thresholds"].array)
    damaged.save(tmp_path / "m.qfb")
    result = command(DIGITS, tmp_path / "m.qfb")
    assert result.exit_code == 0 and qfmt.verify(DIGITS, exact).lowered_anew
    assert "note       differs from a fresh lowering of the source in residual.thresholds\n" in result.stdout
    assert result.stdout.endswith("equal; on these inputs: the file is not a fresh lowering of the source\n")
    tensor = exact.tensors["stem.0"]
    assert tensor.quantization is not None
    grid = tensor.quantization
    other = Quantization.of(grid.scale[0] * 2, grid.zero_point[0], grid.quant_min, grid.quant_max, None, "float64")
    tensors = {**exact.graph.tensors, "stem.0": replace(tensor, quantization=other)}
    report = qfmt.verify(DIGITS, exact.replace(graph=replace(exact.graph, tensors=tensors)))
    assert report.first_wrong == "stem.0 (qfmt.Requantize)" and not report.ok


def test_an_input_that_is_a_constant_of_the_source_is_refused(tmp_path: Path) -> None:
    source = qfmt.load(SUITE / "float" / "pad-value.qfb")
    source.save(tmp_path / "source.qfb")
    lowered = lower_integer(source, exact=True)
    swapped = {"x": "value.quantized", "value.quantized": "x"}
    assert lowered.graph.inputs == ("x",) and source.tensors["value"].is_constant
    nodes = [
        replace(node, inputs=tuple(swapped.get(name, name) for name in node.inputs), name="y") for node in lowered.nodes
    ]
    tensors = {swapped.get(name, name): tensor for name, tensor in lowered.tensors.items()}
    tensors = {name: replace(tensor, name=name) for name, tensor in tensors.items()}
    renamed = lowered.replace(graph=replace(lowered.graph, inputs=("value.quantized",), nodes=nodes, tensors=tensors))
    with pytest.raises(RunError, match=r"does not compute value\.quantized"):
        qfmt.verify(tmp_path / "source.qfb", renamed)


def test_the_engine_is_that_which_was_lowered_from() -> None:
    source = EXAMPLES / "two_layers" / "two_layers_int8.pt"
    for engine in ("fbgemm", "qnnpack", "onednn"):
        lowered = lower_integer(qfmt.convert(source, engine=engine), exact=True)
        report = told(f"two layers, {engine}", qfmt.verify(source, lowered))
        assert report.engine == engine and report.ok and total(report, "equal") > 50


@pytest.mark.parametrize("form", [{"exact": True}, {"bits": 8}], ids=["exact", "8 bits"])
def test_rules_of_another_engine_are_stated(form: dict[str, Any], tmp_path: Path) -> None:
    """The file was lowered from the rules of ONNX, and torch follows its own."""
    module, inputs = pytorch.quantized("conv1d", "eager")
    source = pytorch.save_as(module, inputs, "trace", tmp_path / "m.pt")
    shapes = {"x": (3, 2, 256)}
    lowered = lower_integer(qfmt.convert(source, engine="onnx"), input_shapes=shapes, **form)
    report = told(f"conv1d, rules of ONNX, {form}", qfmt.verify(source, lowered))
    assert report.ok and total(report, "stated") > 0 and total(report, "equal") > 500
    assert any(note.startswith("the file states the rules of onnx, but torch uses those of") for note in report.notes)
    weight = next(name for name in lowered.tensors if name.endswith(".weight"))
    assert not qfmt.verify(source, changed(lowered, weight, lambda array: np.roll(array, 1))).ok


def test_inputs_are_those_of_the_source_or_of_the_file(exact: Model, tmp_path: Path) -> None:
    x = np.load(HELD_BACK)["x"][:6]
    (taken,) = exact.graph.inputs
    q = exact.tensors[taken].quantization
    assert q is not None
    integers = np.clip(np.rint(x / np.float32(q.scale[0])) + q.zero_point[0], q.quant_min, q.quant_max)
    integers = integers.astype(exact.tensors[taken].dtype)
    reports = [qfmt.verify(DIGITS, exact, given) for given in ({"x": x}, {taken: x}, {taken: integers})]
    assert [report.outputs for report in reports] == [reports[0].outputs] * 3
    assert all(report.is_exact and report.inputs == "as given: x [6,1,8,8]" for report in reports)
    exact.save(tmp_path / "m.qfb")
    np.save(tmp_path / "x.npy", x)
    result = command(DIGITS, tmp_path / "m.qfb", "--input", tmp_path / "x.npy", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and found["exact"] and found["integer_only"]
    result = command(DIGITS, tmp_path / "m.qfb", "--input", HELD_BACK)
    assert result.exit_code == 0 and "ignored, because not an input: labels" in result.stdout
    with pytest.raises(RunError, match="expects 4 dimensions, not 2"):
        qfmt.verify(DIGITS, exact, {"x": x[0, 0]})


def test_renamed_tensors_are_those_of_the_source(exact: Model, digits: Model, tmp_path: Path) -> None:
    taken, x = exact.graph.inputs[0], np.load(HELD_BACK)["x"][:6]
    names = {taken: "image", exact.graph.outputs[0]: "scores", "pool": "stage", "fc.weight": "classifier"}
    path = tmp_path / "m.qfb"
    digits.save(path)
    for source in DIGITS, path:
        report = qfmt.verify(source, exact.rename({"pool": "dequant"}))  # a name of the source
        assert report.is_exact and report.lowered_anew
        other = exact.rename(names)
        for given in None, {"image": x}, {taken: x}:
            report, plain = qfmt.verify(source, other, given), qfmt.verify(source, exact, given and {taken: x})
            assert report.is_exact and report.nodes == plain.nodes and report.weights == plain.weights
            assert report.outputs == plain.outputs and report.lowered_anew


def test_unknown_statements_on_arithmetic_are_accepted(exact: Model, digits: Model, tmp_path: Path) -> None:
    source = {key: value for key, value in exact.source.items() if key != "lowered_from"}
    assert exact.source["lowered_from"] == "fbgemm"
    inputs = {"quantized_inputs": source["quantized_inputs"]}
    for said in (source, {**source, "lowered_from": "abacus"}, inputs):
        report = qfmt.verify(DIGITS, exact.replace(source=said))
        assert report.is_exact and report.integer_only and report.lowered_anew
    assert not qfmt.verify(DIGITS, exact.replace(source={}, engine="")).ok  # nothing tells that it was lowered
    digits.replace(engine="integer").save(tmp_path / "m.qfb")
    assert command(DIGITS, tmp_path / "m.qfb").exit_code in (0, 1)


def test_another_source_is_told(exact: Model, tmp_path: Path) -> None:
    exact.save(tmp_path / "m.qfb")
    result = command(EXAMPLES / "two_layers" / "two_layers_int8.pt", tmp_path / "m.qfb")
    assert result.exit_code == 1
    assert "the file was made from a different one" in result.stdout
    assert "the input quant is not a tensor of the source" in result.stdout


def test_a_network_that_ends_early(digits: Model, tmp_path: Path) -> None:
    ended = lower_integer(digits, exact=True, input_shapes=SIZES, outputs=["residual"])
    report = qfmt.verify(DIGITS, ended)
    assert report.is_exact and report.beyond == ("dequant",)
    assert report.notes == ("outputs that are inside the source: residual",)
    ended.save(tmp_path / "m.qfb")
    assert command(DIGITS, tmp_path / "m.qfb").stdout.endswith("equal; not computed by the file: dequant\n")
    assert [output.name for output in report.outputs] == ["residual"]


def test_counts_of_a_proof_along_an_axis_of_another_size(digits: Model) -> None:
    """With one shift, the axis has no effect on what a node computes; the size of the first one is open."""
    lowered = lower_integer(digits, form="power_of_two", input_shapes=SIZES)
    (node,) = (each for each in lowered.nodes if each.outputs == ("squeeze",))
    proof = node.proof
    assert proof is not None and node.attributes["axis"] == 0 and len(proof.differs) == 1
    counts = {name: getattr(proof, name) * 32 for name in ("low", "high", "differs")}
    report = qfmt.verify(DIGITS, with_node(lowered, "squeeze", proof=replace(proof, **counts)), samples=1)
    assert report.integer_only and report.lowered_anew is False


def test_an_engine_does_not_apply_to_a_qfb(digits: Model, exact: Model, tmp_path: Path) -> None:
    digits.save(tmp_path / "digits.qfb")
    with pytest.raises(RunError, match="does not apply"):
        qfmt.verify(tmp_path / "digits.qfb", exact, engine="fbgemm")


def lowered_to_the_end(model: Model, **options: Any) -> Model:
    """Lower the integer-only part of a model: up to the tensor that the error names."""
    with pytest.raises(NoIntegerFormError) as refused:
        lower_integer(model, **options)
    assert refused.value.hint
    return lower_integer(model, outputs=[refused.value.hint.partition("--end-at ")[2].split()[0]], **options)


@pytest.mark.parametrize(
    ("form", "bits"), [("qdq u8u8 per channel", 32), ("qdq s8s8 per channel", 8), ("qoperator u8s8", 32)]
)
def test_onnx(form: str, bits: int, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from networks import onnx_runtime

    source = onnx_runtime.static("cnn", form, tmp_path)
    lowered = lowered_to_the_end(qfmt.convert(source), bits=bits, exact=bits > 8)
    report = told(f"{form}, {bits} bits", qfmt.verify(source, lowered))
    assert report.ok and report.engine == "onnxruntime" and total(report, "equal") > 1000
    assert total(report, "stated") > 0 or bits > 8
    assert any(weight.name.endswith(".centred") for weight in report.weights) == ("u8u8" in form)
    for node in lowered.nodes:
        if node.operator == "qfmt.Requantize" and node.rule == "multiply_shift":
            damaged = changed(lowered, node.inputs[1], lambda array: array + np.maximum(1, array // 2))
            assert qfmt.verify(source, damaged).first_wrong == f"{node.name or node.outputs[0]} (qfmt.Requantize)"
            break


def test_integer_only_against_its_onnx_export(digits: Model, exact: Model, narrow: Model, tmp_path: Path) -> None:
    """ONNX Runtime computes the same integers with ConvInteger and int64; ONNX does not state their quantization."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    for model in (exact, narrow):
        onnx.save(model.to_onnx(), tmp_path / "m.onnx")
        report = told("in ONNX", qfmt.verify(tmp_path / "m.onnx", model))
        assert report.is_exact and not report.skipped and total(report, "equal") > 23_000
        assert report.notes[-1].endswith("the source is not quantized: there is nothing to lower")
    onnx.save(digits.to_onnx(), tmp_path / "floats.onnx")
    counts = told("floats in ONNX", qfmt.verify(tmp_path / "floats.onnx", exact))
    assert total(counts, "wrong") < 40 and not counts.skipped  # ONNX computes the mean differently
    assert any(note.startswith("the source is an export to ONNX") for note in counts.notes)


def test_integer_only_onnx_begins_inside_its_origin(digits: Model, exact: Model, tmp_path: Path) -> None:
    """Its input is a tensor that the origin computes. ONNX states no grid for it."""
    onnx = pytest.importorskip("onnx")
    onnx.save(exact.to_onnx(), tmp_path / "integers.onnx")
    onnx.save(digits.to_onnx(), tmp_path / "floats.onnx")
    file = qfmt.convert(tmp_path / "integers.onnx")
    for origin in DIGITS, tmp_path / "floats.onnx":
        with pytest.raises(RunError, match="computes quant, which FILE takes as input; compare an integer-only"):
            qfmt.verify(origin, file)


def test_an_exported_program(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    from networks import exported

    source = exported.saved("conv", tmp_path)
    report = told("torch.export", qfmt.verify(source, lowered_to_the_end(qfmt.convert(source), exact=True)))
    assert report.ok and report.engine == "pt2e" and total(report, "equal") > 1000


def test_sizes_that_only_the_lowering_knows(tmp_path: Path) -> None:
    """The rule of torch's pool depends on the number of channels, which the `.qfb` in between does not state."""
    import torch

    class Volumes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = torch.quantize_per_tensor(x, 0.0625, 3, torch.quint8)
            return torch.nn.functional.avg_pool3d(q, 2).dequantize()

    shapes, path = {"x": ("N", 3, 6, 6, 6)}, tmp_path / "m.pt"
    with pytorch.quiet():
        torch.jit.save(torch.jit.trace(Volumes(), torch.zeros(1, 3, 6, 6, 6)), path)
    opened, told_sizes = qfmt.convert(path), qfmt.convert(path, input_shapes=shapes)
    assert [node.rule for node in opened.nodes] != [node.rule for node in told_sizes.nodes]
    for model in (opened, told_sizes):
        integers = lower_integer(model, exact=True, input_shapes=shapes)
        report = qfmt.verify(path, integers)
        assert report.ok and report.lowered_anew
        (steps,) = (name for name in integers.tensors if name.endswith("thresholds"))
        assert not qfmt.verify(path, changed(integers, steps, lambda array: array + 3)).ok


def test_names_that_depend_on_sizes(tmp_path: Path) -> None:
    """The sizes of a resize are constants if those of the input are known, and nodes of other names if not."""
    import torch

    class Resized(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = torch.quantize_per_tensor(x, 0.0625, 3, torch.quint8)
            return torch.nn.functional.interpolate(q, (5, 17)).dequantize()

    shapes, path = {"x": (3, 4, 9, 10)}, tmp_path / "m.pt"
    with pytorch.quiet():
        torch.jit.save(torch.jit.trace(Resized(), torch.zeros(shapes["x"])), path)
    opened, told_sizes = qfmt.convert(path), qfmt.convert(path, input_shapes=shapes)
    assert opened.tensors.keys() != told_sizes.tensors.keys()
    for model in (opened, told_sizes):
        report = told("resized", qfmt.verify(path, lower_integer(model, exact=True, input_shapes=shapes)))
        assert report.is_exact and report.lowered_anew


def test_sizes_that_the_lowering_names(tmp_path: Path) -> None:
    """Two inputs have one batch size, which the `.qfb` in between gives two names."""
    import torch

    class Resized(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x, y = (torch.quantize_per_tensor(each, 0.0625, 3, torch.quint8) for each in (x, y))
            y = torch.nn.functional.interpolate(y, x.shape[2:])
            return torch.ops.quantized.add(x, y, 0.125, 5).dequantize()

    shapes, path = {"x": ("N", 2, 6, 6), "y": ("N", 2, 9, 7)}, tmp_path / "m.pt"
    with pytorch.quiet():
        torch.jit.save(torch.jit.trace(Resized(), (torch.zeros(1, 2, 6, 6), torch.zeros(1, 2, 9, 7))), path)
    opened = qfmt.convert(path)
    opened.save(tmp_path / "m.qfb")
    integers = lower_integer(opened, exact=True, input_shapes=shapes)
    for source in (path, tmp_path / "m.qfb"):
        report = told(source.name, qfmt.verify(source, integers))
        assert report.ok and report.lowered_anew


def test_moved_inputs_and_outputs(tmp_path: Path) -> None:
    """Real numbers that the source moves are integers in the file, with other names."""
    import torch
    from torch import nn

    from networks import pytorch

    class Moved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.dequant = torch.ao.quantization.QuantStub(), torch.ao.quantization.DeQuantStub()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.dequant(self.conv(self.quant(x.permute(0, 3, 1, 2)))).flatten(1)

    torch.manual_seed(0)
    x = torch.randn(2, 8, 8, 3)
    with pytorch.quiet():
        module = Moved().eval()
        module.qconfig = torch.ao.quantization.get_default_qconfig("fbgemm")
        torch.ao.quantization.prepare(module, inplace=True)
        module(x)
        torch.ao.quantization.convert(module, inplace=True)
        source = pytorch.save_as(module, (x,), "trace", tmp_path / "m.pt")
    lowered = lower_integer(qfmt.convert(source))
    assert any(name.endswith(".quantized") for name in (*lowered.graph.inputs, *lowered.graph.outputs))
    report = told("moved", qfmt.verify(source, lowered))
    assert report.ok and not report.skipped and all(output.equal == output.outputs > 0 for output in report.outputs)


def traced(forward: Callable[..., Any], path: Path, *inputs: Any) -> Path:
    import torch

    with pytorch.quiet():
        torch.jit.save(torch.jit.trace(forward, inputs), str(path))
    return path


def test_an_input_with_multiple_quantizers(tmp_path: Path) -> None:
    """Each of them is an input of the file, with a number in its name."""
    import torch

    def forward(x: Any) -> Any:
        first = torch.quantize_per_tensor(x[:, :2], 0.0625, 3, torch.quint8)
        second = torch.quantize_per_tensor(x[:, 1:3], 0.125, 3, torch.quint8)
        return torch.ops.quantized.add(first, second, 0.25, 5).dequantize()

    source = traced(forward, tmp_path / "m.pt", torch.zeros(1, 3, 4))
    lowered = lower_integer(qfmt.convert(source), exact=True)
    assert lowered.graph.inputs == ("x.quantized", "x.quantized_1")
    report = told("two quantizers", qfmt.verify(source, lowered))
    assert report.ok and report.lowered_anew and total(report, "equal") > 0


def test_an_input_that_the_file_does_not_need(tmp_path: Path) -> None:
    """The sizes of the other one are those that the file states."""
    import torch

    def forward(x: Any, unused: Any) -> Any:
        q = torch.quantize_per_tensor(x.flatten(2).unsqueeze(3), 0.0625, 3, torch.quint8)
        return torch.nn.functional.avg_pool2d(q, (4, 1)).dequantize()

    source = traced(forward, tmp_path / "m.pt", torch.zeros(1, 4, 4, 4), torch.zeros(2))
    lowered = lower_integer(qfmt.convert(source, input_shapes={"x": (1, 4, 4, 4)}), exact=True)
    assert len(lowered.graph.inputs) == 1
    report = told("an unused input", qfmt.verify(source, lowered))
    assert report.is_exact and report.lowered_anew


def test_sizes_of_the_source_that_the_user_states(tmp_path: Path) -> None:
    """The inputs of the file are what quantizers of the source compute, and so state no sizes of its input."""
    import torch

    class Parts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            stub = torch.ao.nn.quantized.Quantize
            self.first, self.second = stub(0.0625, 3, torch.quint8), stub(0.125, 3, torch.quint8)

        def forward(self, x: Any) -> Any:
            return torch.ops.quantized.add(self.first(x).chunk(2, 1)[0], self.second(x)[:, :2], 0.25, 5).dequantize()

    source, sizes = traced(Parts(), tmp_path / "m.pt", torch.zeros(1, 4, 4)), {"x": (1, 4, 4)}
    lowered = lower_integer(qfmt.convert(source, input_shapes=sizes), exact=True)
    assert lowered.graph.inputs == ("first", "second")
    report = told("sizes of the user", qfmt.verify(source, lowered, input_shapes=sizes))
    assert report.is_exact and report.lowered_anew


def test_the_order_of_outputs_counts(digits: Model, tmp_path: Path) -> None:
    path = tmp_path / "m.qfb"
    digits.replace(graph=replace(digits.graph, outputs=("dequant", "pool"))).save(path)
    file = lower_integer(qfmt.load(path), input_shapes=SIZES)  # the .qfb leaves sizes open
    assert qfmt.verify(path, file).ok
    swapped = file.replace(graph=replace(file.graph, outputs=file.graph.outputs[::-1]))
    assert qfmt.verify(path, swapped).first_wrong == "the network's outputs fc, pool → pool, fc"
    doubled = file.replace(graph=replace(file.graph, outputs=("fc", "pool", "fc")))
    assert qfmt.verify(path, doubled).first_wrong == "the network's outputs fc, pool → fc, pool, fc"


def test_the_order_of_inputs_counts(tmp_path: Path) -> None:
    """It is the order of the arguments in C, and of the module of `to_torch`."""
    net = Net(np.random.default_rng(3))
    sums = [net.node("Sigmoid", [net.input(2, 3)], grid(net.rng), "divide") for _ in range(2)]
    model = net.model(*sums)
    model.save(tmp_path / "source.qfb")
    file = lower_integer(model)
    assert qfmt.verify(tmp_path / "source.qfb", file).ok
    first, second = file.graph.inputs
    swapped = file.replace(graph=replace(file.graph, inputs=(second, first)))
    report = qfmt.verify(tmp_path / "source.qfb", swapped)
    assert report.first_wrong == f"the network's inputs {first}, {second} → {second}, {first}"


def test_outputs_that_are_real_numbers_and_integers_at_once(tmp_path: Path) -> None:
    net = Net(np.random.default_rng(3))
    a, b = (net.node("Sigmoid", [net.input(2, 3)], grid(net.rng), "divide") for _ in range(2))
    model = net.model(net.node("DequantizeLinear", [a], None), b, a)
    model.save(tmp_path / "source.qfb")
    report = qfmt.verify(tmp_path / "source.qfb", lower_integer(model))
    assert report.is_exact and not report.interface


def test_an_output_that_the_source_does_not_have(digits: Model) -> None:
    file = lower_integer(digits, exact=True, input_shapes=SIZES)
    graph = file.graph
    hidden = next(node.outputs[0] for node in graph.nodes if node.outputs[0] in digits.tensors)
    for outputs in ((hidden, *graph.outputs), (*graph.outputs, hidden)):
        report = qfmt.verify(DIGITS, file.replace(graph=replace(graph, outputs=outputs)))
        assert not report.ok and report.first_wrong.startswith("the network's outputs")


@pytest.mark.parametrize(
    ("key", "text"),
    [("quantized_inputs", "quant = divide(x)"), ("quantized_inputs", ""), ("dynamic_inputs", "int8: fc.weight")],
)
def test_how_inputs_are_quantized_is_compared(exact: Model, digits: Model, key: str, text: str, tmp_path: Path) -> None:
    exact.save(tmp_path / "m.qfb")
    assert qfmt.verify(tmp_path / "m.qfb", exact).is_exact
    source = {name: value for name, value in {**exact.source, key: text}.items() if value}
    other = exact.replace(source=source)
    assert qfmt.verify(tmp_path / "m.qfb", other).first_wrong.startswith(key)
    report = qfmt.verify(DIGITS, other)
    assert report.lowered_anew is False and f"its {key}" in "".join(report.notes)
    if text:
        report = qfmt.verify(DIGITS, digits.replace(source={**digits.source, key: text}))
        assert not report.ok and report.first_wrong.startswith(key)
