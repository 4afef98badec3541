"""`qfmt verify` for a file and a source of two formats, or a file with the rules of another engine: computed values
count, and differences that follow only from the stated rules are reported separately."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.numpy import save_file

import qfmt
from cases.one_node import single
from networks import pytorch
from networks.decomposed import ops
from qfmt.cli import main
from qfmt.compare import Report
from qfmt.compare.judges import BySource
from qfmt.compare.random_inputs import draw
from qfmt.errors import QfmtError, RunError
from qfmt.frontends.witness import Computed
from qfmt.interpreter import execute, operands_of, run
from qfmt.model import Graph, Model, Node, Quantization, Tensor
from qfmt.ops import OPERATORS, Operand
from support.saved import quantized_chain

NETWORKS = [("two_inputs", "eager"), ("resnet18", "fx"), ("conv1d", "eager"), ("activations", "fx")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("formats")


def source_of(folder: Path, name: str, mode: str) -> Path:
    path = folder / f"{name}.pt"
    if not path.exists():
        module, inputs = pytorch.quantized(name, mode)
        pytorch.save_as(module, inputs, "trace", path)
    return path


def written(model: Model, path: Path) -> Path:
    path.write_bytes(model.to_onnx().SerializeToString())
    return path


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["verify", *map(str, arguments)], catch_exceptions=False)


def total(report: Report, name: str) -> int:
    return sum(getattr(node, name) for node in report.nodes)


def told(report: Report) -> str:
    return ", ".join(f"{total(report, name):,} {name}" for name in ("outputs", "equal", "tie", "stated", "wrong"))


def damaged(model: Model, name: str) -> Model:
    tensor = model.tensors[name]
    data = Tensor.constant("", np.roll(tensor.array, 1), dtype=tensor.dtype).data
    return model.replace(graph=replace(model.graph, tensors={**model.tensors, name: replace(tensor, data=data)}))


@pytest.mark.parametrize("engine", ["fbgemm", "onnx"])
@pytest.mark.parametrize(("name", "mode"), NETWORKS, ids=[name for name, _ in NETWORKS])
def test_onnx_against_its_pytorch_source(name: str, mode: str, engine: str, folder: Path) -> None:
    source = source_of(folder, name, mode)
    model = qfmt.convert(source, engine=engine)
    file = written(model, folder / f"{name}.{engine}.onnx")
    written_as = {node.label: node.rule for node in qfmt.convert(file).nodes}
    computed_as = {node.label: node.rule for node in qfmt.convert(source).nodes}
    report = qfmt.verify(source, qfmt.convert(file), samples=1)
    print(f"{name} {engine}: {told(report)}")
    assert report.ok, report.first_wrong
    assert total(report, "outputs") > 500
    for node in report.nodes:
        same_rule = written_as[node.name] == computed_as.get(node.name)
        assert node.equal + node.saturated + (0 if same_rule else node.stated + node.tie) == node.outputs, node
    assert report.same_source is None and not report.rules_compared
    assert any(note.startswith("the file states the rules of onnx, but torch uses those of fbgemm")
               for note in report.notes)  # fmt: skip


def test_different_statements_are_reported_without_a_fault(folder: Path) -> None:
    source = source_of(folder, "two_inputs", "eager")
    file = written(qfmt.convert(source), folder / "said.onnx")
    result = command(source, file, "--samples", 1)
    assert result.exit_code == 0
    (said,) = (line for line in result.stdout.splitlines() if "which is allowed: rule" in line)
    assert "rule reciprocal_fma → divide (2×)" in said
    verdict = result.stdout.splitlines()[-1].removesuffix("; on these inputs")
    assert verdict == "equal" or re.fullmatch(r"nothing wrong; [\d,]+ where the engine saturates", verdict)


@pytest.mark.parametrize("name", ["stem.0.weight", "embed.weight"])
def test_a_damaged_weight_of_an_onnx_model_is_found(name: str, folder: Path) -> None:
    source = source_of(folder, "two_inputs", "eager")
    for engine in ("fbgemm", "onnx"):
        model = damaged(qfmt.convert(source, engine=engine), name)
        report = qfmt.verify(source, qfmt.convert(written(model, folder / "damaged.onnx")), samples=1)
        assert not report.ok and total(report, "wrong") > 0
        assert report.first_wrong.startswith(name.removesuffix(".weight"))
        assert [weight.name for weight in report.weights if not weight.ok] == [name]


def test_a_model_from_another_source_is_found(folder: Path) -> None:
    source = source_of(folder, "two_inputs", "eager")
    model = qfmt.convert(source)
    other = model.tensors["add"].quantization.with_values(zero_point=3)  # type: ignore[union-attr]
    tensors = {**model.tensors, "add": replace(model.tensors["add"], quantization=other)}
    moved = model.replace(graph=replace(model.graph, tensors=tensors))
    report = qfmt.verify(source, qfmt.convert(written(moved, folder / "moved.onnx")), samples=1)
    assert not report.ok and report.first_wrong == "add (Add)"


def test_a_zero_point_that_moves_no_sample_out_of_the_range_is_found(folder: Path) -> None:
    """The file's integers are all greater by one: the same real numbers, but the range ends at others."""
    source = pytorch.save_as(quantized_chain(), (torch.randn(2, 4),), "trace", folder / "chain.pt")
    model = qfmt.convert(source)
    (name,) = (node.outputs[0] for node in model.nodes if node.operator == "QuantizeLinear")
    grid = model.tensors[name].quantization
    assert grid is not None and grid.zero_point[0] == 3
    x = np.random.default_rng(1).uniform(0, 5, (8, 4)).astype(np.float32)
    for zero_point in (2, 3, 4):
        moved = replace(model.tensors[name], quantization=grid.with_values(zero_point=zero_point))
        other = model.replace(graph=replace(model.graph, tensors={**model.tensors, name: moved}))
        file = qfmt.convert(written(other, folder / "chain.onnx"))
        assert qfmt.verify(source, file, {file.graph.inputs[0]: x}).ok == (zero_point == 3)


# -- a .qfb that states the rules of ONNX ---------------------------------------------------------------


@pytest.fixture(scope="module")
def stated(folder: Path) -> tuple[Path, Model]:
    source = source_of(folder, "resnet18", "fx")
    return source, qfmt.convert(source, engine="onnx")


def test_rules_of_onnx_are_distinguished_from_faults(stated: tuple[Path, Model]) -> None:
    source, model = stated
    images = {"x": np.random.default_rng(5).standard_normal((8, 3, 64, 64)).astype(np.float32)}
    report = qfmt.verify(source, model, images)
    print(told(report))
    assert report.ok and not report.is_exact
    assert 0 < total(report, "stated") < total(report, "outputs") / 500
    assert qfmt.verify(source, model, images, engine="fbgemm") == report


def test_stated_differences_equal_those_of_the_two_rules(stated: tuple[Path, Model]) -> None:
    """Counts independently: computes the first layer by both rules, on the integers of the source."""
    source, model = stated
    plain = qfmt.convert(source)
    image = {"x": np.random.default_rng(7).standard_normal((4, 3, 64, 64)).astype(np.float32)}
    conv = next(node for node in plain.nodes if node.operator == "Conv")
    quantized = conv.inputs[0]
    (integers,) = run(plain.replace(graph=replace(plain.graph, outputs=(quantized,))), image).values()
    operands = [Operand(integers, plain.tensors[quantized].quantization)]
    operands += [Operand(plain.tensors[each].array, plain.tensors[each].quantization) for each in conv.inputs[1:]]
    by_rule = [
        execute(replace(conv, rule=rule), operands, [plain.tensors[conv.outputs[0]]])[0]
        for rule in ("float_bias", "integer_bias")
    ]
    (node,) = (node for node in qfmt.verify(source, model, image).nodes if node.name == conv.outputs[0])
    assert (node.stated, node.wrong) == (int((by_rule[0] != by_rule[1]).sum()), 0)
    assert node.stated > 0


@pytest.mark.parametrize("damage", ["weight", "rule", "zero point"])
def test_faults_stay_faults(damage: str, stated: tuple[Path, Model]) -> None:
    source, model = stated
    name = "layer1.0.conv1"
    if damage == "weight":
        broken = damaged(model, f"{name}.weight")
    elif damage == "rule":
        nodes = [replace(n, rule="affine") if n.outputs == (name,) else n for n in model.nodes]
        broken = model.replace(graph=replace(model.graph, nodes=nodes))
    else:
        grid = model.tensors[name].quantization
        assert grid is not None
        moved = grid.with_values(zero_point=grid.zero_point[0] + 1)
        tensors = {**model.tensors, name: replace(model.tensors[name], quantization=moved)}
        broken = model.replace(graph=replace(model.graph, tensors=tensors))
    report = qfmt.verify(source, broken, samples=1)
    assert not report.ok and report.first_wrong == f"{name} (Conv)"


def test_a_file_of_onnx_that_states_another_engine(folder: Path) -> None:
    source = written(qfmt.convert(source_of(folder, "resnet18", "fx"), engine="onnx"), folder / "r.onnx")
    report = qfmt.verify(source, qfmt.convert(source, engine="qnnpack"), samples=1)
    print(told(report))
    assert report.ok and report.engine == "onnxruntime"
    assert any(note.startswith("the file states the rules of qnnpack, but onnx uses") for note in report.notes)


def test_a_file_does_not_choose_how_strictly_it_is_compared(folder: Path) -> None:
    """The stated origin of a file decides what is compared. If nothing is compared, the result must not be equal."""
    source = source_of(folder, "two_inputs", "eager")
    model = qfmt.convert(source, engine="onnx")
    ends = (*model.graph.inputs, *model.graph.outputs)
    unknown = Node("com.example::Any", model.graph.inputs, model.graph.outputs)
    empty = replace(model.graph, nodes=(unknown,), tensors={name: model.tensors[name] for name in ends})
    constant = next(tensor for tensor in model.graph.constants())
    nothing = replace(model.graph, nodes=(), tensors={constant.name: constant}, inputs=(), outputs=(constant.name,))
    more = {**model.tensors, "more": Tensor("more", "float32", (1,))}
    forged = {
        "was not compared": (empty, {"format": "onnx"}),
        "the network's inputs": (
            replace(model.graph, tensors=more, inputs=(*model.graph.inputs, "more")),
            {"format": "onnx"},
        ),
        f"the output {constant.name} was not compared": (nothing, {"integer_only": "multiply_shift"}),
    }
    for words, (graph, origin) in forged.items():
        report = qfmt.verify(source, model.replace(graph=graph, source=origin), samples=1)
        assert not report.ok and words in report.first_wrong, words


@pytest.mark.parametrize("origin", [{"format": "onnx"}, {"integer_only": "multiply_shift"}], ids=["onnx", "lowered"])
def test_tensors_without_a_graph_are_compared_for_any_stated_origin(origin: dict[str, str], tmp_path: Path) -> None:
    source = tmp_path / "weights.safetensors"
    save_file({"w": np.arange(16, dtype=np.int8)}, source)
    model = qfmt.convert(source)
    assert qfmt.verify(source, model).ok
    report = qfmt.verify(source, damaged(model, "w").replace(source=origin))
    assert not report.ok and report.first_wrong == "w"


def test_a_network_that_cannot_be_run_whole_is_not_called_equal(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "z")]
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Det", ["m"], ["d"])]
    nodes.insert(1, helper.make_node("Reshape", ["y", "shape"], ["m"]))
    nodes.append(helper.make_node("Add", ["y", "d"], ["z"]))
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [2, 2])
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [shape])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "m.onnx")
    qfmt.save(qfmt.convert(tmp_path / "m.onnx"), tmp_path / "m.qfb")
    result = command(tmp_path / "m.onnx", tmp_path / "m.qfb")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "equal; the whole network was not run"


class Clamped(torch.nn.Module):
    """A mean whose clamp is the range of a QuantizeLinear in ONNX."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = torch.quantize_per_tensor(x, 0.0625, 73, torch.quint8)
        return torch.relu(torch.nn.functional.adaptive_avg_pool2d(q, 2)).dequantize()


def test_a_rule_before_a_clamp_that_only_one_of_them_has(tmp_path: Path) -> None:
    with pytorch.quiet():
        torch.jit.save(torch.jit.trace(Clamped(), torch.zeros(1, 4, 8, 8)), tmp_path / "m.pt")
    model, source = qfmt.convert(tmp_path / "m.pt"), tmp_path / "m.onnx"
    source.write_bytes(model.to_onnx(form="qoperator").SerializeToString())
    inputs = {"x": np.random.default_rng(5).normal(size=(40, 4, 8, 8)).astype(np.float32)}
    report = qfmt.verify(source, model, inputs)
    print(told(report))
    assert report.ok and [node.operator for node in report.nodes if node.stated] == ["Relu"]
    copies = {"operator": "Identity", "version": OPERATORS["Identity"].version}
    nodes = [replace(node, **copies) if node.operator == "Relu" else node for node in model.nodes]
    other = qfmt.verify(source, model.replace(graph=replace(model.graph, nodes=nodes)), inputs)
    assert not other.ok


def test_aliases_that_are_names_of_other_tensors(folder: Path) -> None:
    model = qfmt.convert(source_of(folder, "two_inputs", "eager"))
    names = [name for node in model.nodes for name in node.outputs]
    others = zip(names, [*names[1:], names[0]], strict=True)
    aliased = {name: replace(model.tensors[name], aliases=(other,)) for name, other in others}
    file = model.replace(graph=replace(model.graph, tensors={**model.tensors, **aliased}))
    report = qfmt.verify(written(model, folder / "aliased.onnx"), file)
    assert report.ok, report.first_wrong


class Numbers(torch.nn.Module):
    """torch multiplies the scale by the first number, as doubles; qnnpack rounds the second one to that scale."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.quantize_per_tensor(x, 0.037888, 136, torch.quint8)
        x = torch.ops.quantized.add(torch.ops.quantized.mul(x, 2.3), 0.7)
        return torch.dequantize(x)


class Enlarged(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.quantize_per_tensor(x, 0.05, 10, torch.quint8)
        return torch.dequantize(torch.nn.functional.interpolate(x, scale_factor=1.5, mode="bilinear"))


def test_scales_that_keep_a_size_are_1_in_onnx(tmp_path: Path) -> None:
    x = torch.randn(1, 2, 1, 1, generator=torch.Generator().manual_seed(1))
    with pytorch.quiet():
        torch.jit.trace(Enlarged(), x).save(tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt", input_shapes={"x": x.shape})
    report = qfmt.verify(tmp_path / "m.pt", qfmt.convert(written(model, tmp_path / "m.onnx")), samples=3)
    assert report.ok, report.first_wrong
    assert {node.operator: node.equal for node in report.nodes}["Resize"] == 6


def test_constants_of_onnx_have_scales_in_float32(tmp_path: Path) -> None:
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    with pytorch.quiet():
        torch.jit.trace(Numbers(), x).save(tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt", engine="qnnpack", input_shapes={"x": (2, 3)})
    scales = [each.quantization.scale[0] for each in model.tensors.values() if each.is_constant and each.quantization]
    assert [scale for scale in scales if scale != float(np.float32(scale))]
    file = qfmt.convert(written(model, tmp_path / "m.onnx"))
    report = qfmt.verify(tmp_path / "m.pt", file, engine="qnnpack")
    assert report.ok, report.first_wrong


@pytest.mark.parametrize("known", ["integer_bias", "float_bias"])
def test_rules_are_told_apart_where_only_the_file_is_unsigned(known: str) -> None:
    """As in ONNX of a signed program with `--same-types`. The file may state a rule that a fresh conversion does not
    have, as one with integer operators."""
    rng = np.random.default_rng(3)
    w = Tensor.constant(
        "w", rng.integers(-127, 128, (40, 30)).astype(np.int8), Quantization.per_tensor(0.013, 0, "int8")
    )
    b = Tensor.constant("b", rng.normal(size=40).astype(np.float32))

    def layer(dtype: str, rule: str, offset: int) -> Model:
        x, y = (
            Tensor(name, dtype, (500, size), quantization=Quantization.per_tensor(scale, offset + 3, dtype))
            for name, size, scale in (("x", 30, 0.021), ("y", 40, 0.11))
        )
        return single("qfmt.Linear", rule, [x, w, b], y, {})

    source, stated = layer("int8", "affine", 0), layer("int8", known, 0)
    file = layer("uint8", "integer_bias", 128)
    x = rng.integers(-128, 128, (500, 30))
    theirs = source.run({"x": x.astype(np.int8)})["y"]
    mine = file.run({"x": (x + 128).astype(np.uint8)})["y"]
    judge = BySource(file, source, stated, "pt2e", {"x": "x", "y": "y"})
    judge.take({"x": x.astype(np.int8)}, {"y": Computed(theirs)})
    read = operands_of(file.nodes[0], {"x": (x + 128).astype(np.uint8)}, file.tensors)
    moved = (theirs.astype(np.int16) + 128).astype(np.uint8)
    counts = judge(file.nodes[0], "y", mine, moved, read, True)
    different = int((mine != moved).sum())
    print(f"{counts.total:,} outputs, {counts.equal:,} equal, {counts.stated} stated")
    assert different > 0 and (counts.stated, counts.wrong) == (different, 0)
    moved[0, 0] ^= 4
    assert judge(file.nodes[0], "y", mine, moved, read, True).wrong == 1


class Matrices(torch.nn.Module):
    """A layer of matrices, which ONNX has as MatMul and Add."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(
            torch.ao.quantization.QuantStub(), torch.nn.Linear(12, 7), torch.ao.quantization.DeQuantStub()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        return y


@pytest.mark.parametrize("engine", ["onnx", "qnnpack"])
def test_rules_of_a_layer_that_onnx_has_as_two_nodes(engine: str, tmp_path: Path) -> None:
    with pytorch.quiet():
        torch.manual_seed(0)
        module, x = Matrices().eval(), torch.randn(2000, 3, 12)
        module.qconfig = torch.ao.quantization.get_default_qconfig("fbgemm")
        torch.ao.quantization.prepare(module, inplace=True)(x)
        torch.jit.trace(torch.ao.quantization.convert(module), x[:2]).save(tmp_path / "m.pt")
    file = qfmt.convert(written(qfmt.convert(tmp_path / "m.pt", engine=engine), tmp_path / "m.onnx"))
    report = qfmt.verify(tmp_path / "m.pt", file, {"x": x.numpy()})
    print(told(report))
    assert report.ok and total(report, "stated") > 0 and "MatMul" in {node.operator for node in report.nodes}
    (weight,) = (each.name for each in file.graph.constants() if each.dtype == "int8")
    assert not qfmt.verify(tmp_path / "m.pt", damaged(file, weight), {"x": x.numpy()}).ok


class Magnified(torch.nn.Module):
    """torch multiplies positions by doubles, ONNX by floats."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = torch.quantize_per_tensor(x, 0.0773, 61, torch.quint8)
        return torch.nn.functional.interpolate(q, scale_factor=1.7, mode="bilinear").dequantize()


class Wide(torch.nn.Module):
    """QuantizeLinear of ONNX has no int32: its integers have no meaning there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.dequantize(torch.quantize_per_tensor(x, 0.1, 0, torch.qint32))


@pytest.mark.parametrize(("kind", "size", "excused"), [(Magnified, 1, "tie"), (Wide, 10**7, "stated")])
def test_other_arithmetic_in_onnx(kind: type[torch.nn.Module], size: int, excused: str, tmp_path: Path) -> None:
    x = torch.randn(1, 4, 9, 10, generator=torch.Generator().manual_seed(2)) * size
    with pytorch.quiet():
        torch.jit.trace(kind(), x).save(tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt")
    report = qfmt.verify(tmp_path / "m.pt", qfmt.convert(written(model, tmp_path / "m.onnx")), {"x": x.numpy()})
    print(told(report))
    assert report.ok and total(report, excused) > 0


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.GRU(5, 3, batch_first=True)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, after = self.layer(x, state)
        return y, after


class Bags(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.EmbeddingBag(10, 6, mode="sum")
        self.table.qconfig = torch.ao.quantization.float_qparams_weight_only_qconfig

    def forward(self, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.table(indices, offsets)
        return y


def test_inputs_whose_sizes_belong_together(tmp_path: Path) -> None:
    """The batch of the state is not its first dimension. The rule of the layer is seen after a Transpose only."""
    with pytorch.quiet():
        module = torch.ao.quantization.quantize_dynamic(Recurrent().eval(), dtype=torch.qint8)
        given = (torch.randn(2, 4, 5), torch.randn(1, 2, 3))
        torch.jit.trace(module, given, check_trace=False).save(tmp_path / "m.pt")
    report = qfmt.verify(tmp_path / "m.pt", qfmt.convert(tmp_path / "m.pt"))
    assert report.ok, report.first_wrong
    assert "[2,4,5]" in report.inputs and "[1,2,3]" in report.inputs
    generator = np.random.default_rng(0)
    inputs = {"x": generator.normal(size=(64, 8, 5)), "state": generator.normal(size=(1, 64, 3))}
    inputs = {name: array.astype(np.float32) for name, array in inputs.items()}
    report = qfmt.verify(tmp_path / "m.pt", qfmt.convert(tmp_path / "m.pt", engine="onnx"), inputs)
    print(told(report))
    assert report.ok and total(report, "stated") > 0, report.first_wrong


def test_offsets_of_bags_that_onnx_does_not_call_so(tmp_path: Path) -> None:
    with pytorch.quiet():
        module = torch.ao.quantization.convert(torch.ao.quantization.prepare(Bags().eval()))
        given = (torch.tensor([0, 3, 3, 9, 1, 2]), torch.tensor([0, 2, 2, 5]))
        torch.jit.trace(module, given, check_trace=False).save(tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt")
    report = qfmt.verify(written(model, tmp_path / "m.onnx"), model)
    assert report.ok and all(output.outputs for output in report.outputs), report.first_wrong


class Columns(torch.nn.Module):
    """Bags of the first column of a table, whose last offset must be the number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.EmbeddingBag(10, 6, mode="sum", include_last_offset=True)
        self.table.qconfig = torch.ao.quantization.float_qparams_weight_only_qconfig_4bit

    def forward(self, rows: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.table(rows.long()[:, 0].contiguous(), offsets.long())
        return y


def test_offsets_and_indices_that_are_computed(tmp_path: Path) -> None:
    with pytorch.quiet():
        module = torch.ao.quantization.convert(torch.ao.quantization.prepare(Columns().eval()))
        given = torch.arange(14, dtype=torch.int32).reshape(7, 2) % 10, torch.tensor([0, 2, 2, 7], dtype=torch.int32)
        torch.jit.trace(module, given, check_trace=False).save(tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt")
    for source in tmp_path / "m.pt", written(model, tmp_path / "m.onnx"):
        report = qfmt.verify(source, model)
        assert report.ok and all(output.outputs for output in report.outputs), report.first_wrong
    (drawn,) = draw(model, {"rows": (7, 2), "offsets": (4,)}, 1, "")
    assert drawn["offsets"].tolist() == [0, 2, 4, 7] and drawn["rows"].max() > 6
    assert torch.equal(model.to_torch()(*given), module(*given))


class Signed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.dequantize(torch.relu(torch.quantize_per_tensor(x, 0.03, -5, torch.qint8)))


@pytest.mark.parametrize("same_types", [False, True])
def test_signed_tensors_that_are_unsigned_in_onnx(same_types: bool, tmp_path: Path) -> None:
    """Their scale is a double in torch, and a float32 in ONNX."""
    with pytorch.quiet():
        torch.jit.trace(Signed(), torch.randn(2, 3)).save(tmp_path / "m.pt")
    model = qfmt.convert(tmp_path / "m.pt", input_shapes={"x": (2, 3)})
    report = qfmt.verify(tmp_path / "m.pt", qfmt.convert(model.to_onnx(same_types=same_types)))
    assert report.ok, report.first_wrong


def static(*layers: torch.nn.Module, engine: str = "fbgemm") -> torch.nn.Module:
    stubs = torch.ao.quantization.QuantStub(), torch.ao.quantization.DeQuantStub()
    module = torch.nn.Sequential(stubs[0], *layers, stubs[1]).eval()
    module.qconfig = torch.ao.quantization.get_default_qconfig(engine)
    return module


def converted(module: torch.nn.Module, x: torch.Tensor, path: Path) -> Path:
    with pytorch.quiet():
        torch.ao.quantization.prepare(module, inplace=True)(x)
        torch.jit.trace(torch.ao.quantization.convert(module), x, check_trace=False).save(path)
    return path


class Table(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 6)
        self.table.qconfig = torch.ao.quantization.float_qparams_weight_only_qconfig

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.table(indices)
        return y


WEIGHTS = {
    "linear": lambda: (static(torch.nn.Linear(400, 8)), torch.randn(2, 400)),
    "rows": lambda: (static(torch.nn.Linear(40, 40)), torch.randn(2, 3, 40)),
    "conv": lambda: (static(torch.nn.Conv2d(30, 8, 3)), torch.randn(2, 30, 5, 5)),
    "table": lambda: (Table().eval(), torch.tensor([1, 2, 9])),
}


@pytest.mark.parametrize("same_types", [False, True])
@pytest.mark.parametrize("rules", ["fbgemm", "onnx"])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_one_integer_of_a_constant_that_has_another_form_in_onnx(
    kind: str, rules: str, same_types: bool, tmp_path: Path
) -> None:
    """It is found whatever the inputs are: weights of other types, transposed, without a quantization; biases."""
    torch.manual_seed(3)
    source = converted(*WEIGHTS[kind](), tmp_path / "m.pt")
    model = qfmt.convert(source, engine=rules)

    def exported(each: Model) -> Path:
        (tmp_path / "m.onnx").write_bytes(each.to_onnx(same_types=same_types).SerializeToString())
        return tmp_path / "m.onnx"

    for of, file in ((source, qfmt.convert(exported(model))), (exported(model), model)):
        report = qfmt.verify(of, file)
        assert report.ok and report.other_form, report.first_wrong
        assert not report.uncompared and not report.unpaired
    names = [each.name for each in model.graph.constants() if each.name.endswith(("weight", "bias"))]
    assert len(names) == 1 + (kind != "table")
    for name in names:
        array = model.tensors[name].array.copy()
        array.flat[-1] += 1 if array.dtype.kind in "iu" else 0.01
        other = model.replace_tensor(name, array, model.tensors[name].quantization)
        assert not qfmt.verify(exported(model), other).ok
        assert not qfmt.verify(source, qfmt.convert(exported(other))).ok


def test_a_clamp_that_is_off_is_no_overflow(tmp_path: Path) -> None:
    """The node before the clamp, which does not add anything up, has the source's outputs."""
    model = qfmt.convert(converted(static(torch.nn.ReLU6()), torch.randn(1, 2, 4, 4) * 3, tmp_path / "m.pt"))
    (tmp_path / "m.onnx").write_bytes(model.to_onnx(form="qoperator").SerializeToString())
    assert qfmt.verify(tmp_path / "m.onnx", model).ok
    (name,) = (each.name for each in model.graph.constants() if each.name.endswith(".max"))
    report = qfmt.verify(tmp_path / "m.onnx", model.replace_tensor(name, np.float32(-6), None))
    assert not report.ok and not total(report, "saturated")


def test_a_clamp_of_the_input_that_is_missing(tmp_path: Path) -> None:
    """Inputs are drawn beyond the range of a quantizer that includes the clamp."""
    module = static(torch.nn.ReLU(), torch.nn.Conv2d(2, 3, 3), engine="qnnpack")
    model = qfmt.convert(converted(module, torch.randn(1, 2, 6, 6) * 3, tmp_path / "m.pt"), engine="onnx")
    (tmp_path / "m.onnx").write_bytes(model.to_onnx(form="qoperator").SerializeToString())
    assert qfmt.verify(tmp_path / "m.onnx", model).ok
    version = OPERATORS["Clip"].version
    nodes = [
        replace(node, operator="Clip", inputs=node.inputs[:1], attributes={}, version=version)
        if node.operator == "Relu"
        else node
        for node in model.nodes
    ]
    other = model.replace(graph=replace(model.graph, nodes=nodes))
    assert not qfmt.verify(tmp_path / "m.onnx", other).ok


def test_a_file_does_not_choose_the_tolerance(tmp_path: Path) -> None:
    model = qfmt.convert(converted(static(torch.nn.Linear(9, 4)), torch.randn(20, 9), tmp_path / "m.pt"), engine="onnx")
    (out,) = model.graph.outputs
    factor = Tensor.constant("factor", np.full(4, 1.008, np.float32))
    inner = replace(model.tensors[out], name="inner")
    last = replace(model.nodes[-1], outputs=("inner",))
    more = Node("Mul", ("inner", "factor"), (out,), {}, "more", OPERATORS["Mul"].version)
    more = replace(more, source_operator="aten::quantized_lstm")
    tensors = {**model.tensors, "inner": inner, "factor": factor}
    file = model.replace(graph=replace(model.graph, nodes=(*model.nodes[:-1], last, more), tensors=tensors))
    report = qfmt.verify(written(model, tmp_path / "m.onnx"), file)
    assert not report.ok and total(report, "wrong") > 0


def test_a_file_against_another_file(tmp_path: Path) -> None:
    model = qfmt.convert(converted(static(torch.nn.Linear(9, 4)), torch.randn(20, 9), tmp_path / "m.pt"))
    model.save(tmp_path / "m.qfb")
    report = qfmt.verify(tmp_path / "m.qfb", model)
    assert report.is_exact and not report.other_form
    (weight,) = (each.name for each in model.graph.constants() if each.dtype == "int8")
    assert not qfmt.verify(tmp_path / "m.qfb", damaged(model, weight)).ok
    with pytest.raises(QfmtError, match="nodes have another form than FILE; exchange the two"):
        qfmt.verify(tmp_path / "m.qfb", qfmt.convert(written(model, tmp_path / "m.onnx")))
    elsewhere = model.replace(source={**model.source, "format": "onnx", "framework": "qfmt"})
    assert elsewhere.content_id() == model.content_id()  # they are one in an archive
    assert qfmt.verify(tmp_path / "m.qfb", elsewhere).is_exact


def test_the_values_of_a_file_as_a_source_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run forgets what no node reads any more; a comparison needs all values."""
    names = [f"x{index}" for index in range(40)]
    tensors = {name: Tensor(name, "float32", (1000,)) for name in names}
    pairs = pairwise(names)
    nodes = [Node("Neg", (a,), (b,), {}, "", OPERATORS["Neg"].version) for a, b in pairs]
    model = Model(Graph(("x0",), ("x39",), nodes, tensors))
    model.save(tmp_path / "m.qfb")
    for module in ("qfmt.compare.verification", "qfmt.compare.side_by_side", "qfmt.interpreter"):
        monkeypatch.setattr(f"{module}.limit_for", lambda _: 60_000)
    assert len(model.run({"x0": np.ones(1000, np.float32)})["x39"]) == 1000
    with pytest.raises(RunError, match="more than the limit of 60"):
        qfmt.verify(tmp_path / "m.qfb", model)


def test_the_values_of_a_source_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process computes them one by one, and need not hold them: all are here."""
    model = qfmt.convert(converted(static(torch.nn.Linear(9, 400)), torch.randn(20, 9), tmp_path / "m.pt"))
    source = written(model, tmp_path / "m.onnx")
    (name,), x = model.graph.inputs, np.ones((100, 9), np.float32)
    monkeypatch.setattr("qfmt.frontends.isolation.parent.limit_for", lambda nbytes: nbytes + 100_000)
    for each in (tmp_path / "m.pt", source):
        assert qfmt.verify(each, model, {name: x[:5]}).ok
        with pytest.raises(RunError, match=r"more than the limit of 1\d\d\.?\d* kB; verify with smaller inputs"):
            qfmt.verify(each, model, {name: x})
        assert qfmt.verify(each, model, {name: x[:5]}).ok
    monkeypatch.setattr("qfmt.frontends.isolation.parent.limit_for", lambda nbytes: 30 * nbytes)
    assert x[:20].nbytes * 30 < 20 * 400 * 4  # the constants count, too
    for each in (tmp_path / "m.pt", source):
        assert qfmt.verify(each, model, {name: x[:20]}).ok


def test_nan_of_a_file_is_no_nan_of_its_source(tmp_path: Path) -> None:
    """Integers made from NaN are as the file states: but only if the values of the source make them so."""
    model = qfmt.convert(converted(static(torch.nn.Linear(9, 4)), torch.randn(20, 9), tmp_path / "m.pt"), engine="onnx")
    (bias,) = (each.name for each in model.graph.constants() if each.name.endswith("bias"))
    other = model.replace_tensor(bias, np.full(4, np.nan, np.float32), None)
    for form in ("qdq", "qoperator"):
        (tmp_path / "m.onnx").write_bytes(model.to_onnx(form=form).SerializeToString())
        assert qfmt.verify(tmp_path / "m.onnx", model).ok
        report = qfmt.verify(tmp_path / "m.onnx", other)
        assert not report.ok and not total(report, "stated")


@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_names_that_are_exchanged(what: str, tmp_path: Path) -> None:
    """The order is right, but arrays go by names."""
    a, b = (Tensor(name, "float32", (3,)) for name in "ab")
    y, z = (Tensor(name, "float32", (3,)) for name in "yz")
    version = OPERATORS["Sub"].version
    nodes = [Node("Sub", ("a", "b"), ("y",), {}, "", version), Node("Sub", ("b", "a"), ("z",), {}, "", version)]
    tensors = {each.name: each for each in (a, b, y, z)}
    model = Model(Graph(("a", "b"), ("y", "z"), nodes, tensors), source={"format": "onnx"}, engine="onnx")
    source = written(model, tmp_path / "m.onnx")
    assert qfmt.verify(source, model).ok
    names = {"a": "b", "b": "a"} if what == "inputs" else {"y": "z", "z": "y"}
    report = qfmt.verify(source, model.rename(names))
    assert not report.ok and report.first_wrong.startswith(f"the network's {what} ")


def test_a_constant_with_the_name_of_a_bias_that_no_node_has(tmp_path: Path) -> None:
    model = qfmt.convert(converted(static(torch.nn.Linear(9, 4)), torch.randn(20, 9), tmp_path / "m.pt"), engine="onnx")
    source = written(model, tmp_path / "m.onnx")
    for name in ("_quantized", "x_quantized"):
        stray = Tensor.constant(name, np.zeros(4, np.int32))
        file = qfmt.convert(source)
        file = file.replace(graph=replace(file.graph, tensors={**file.tensors, name: stray}))
        assert qfmt.verify(tmp_path / "m.pt", file).ok


class Twice(torch.nn.Module):
    def forward(self, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q = torch.quantize_per_tensor(a, 0.02, 128, torch.quint8)
        y, z = torch.ops.quantized.add(q, q, 0.05, 128), torch.ops.quantized.mul(q, q, 0.05, 128)
        return y, y, z


def test_a_quantized_tensor_that_is_returned_twice(tmp_path: Path) -> None:
    """ONNX has a copy of it, which dequantizes and quantizes. It must not be a copy of another output."""
    path = tmp_path / "m.pt"
    torch.jit.trace(Twice(), torch.randn(1, 4), check_trace=False).save(path)
    model = qfmt.convert(written(qfmt.convert(path, input_shapes={"a": (1, 4)}), tmp_path / "m.onnx"))
    report = qfmt.verify(path, model)
    assert report.ok and [found.equal for found in report.outputs] == [found.outputs for found in report.outputs]
    assert len(report.outputs) == 3
    _, second, third = model.graph.outputs
    copy = Node("Identity", (third,), (second,), version=OPERATORS["Identity"].version)
    others = [node for node in model.nodes if second not in node.outputs]
    wrong = qfmt.verify(path, model.replace(graph=replace(model.graph, nodes=(*others, copy))))
    assert not wrong.ok and [found.name for found in wrong.outputs if found.equal < found.outputs] == [second]


class Pt2(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        integers = ops.quantize_per_tensor(x.relu(), 0.1, 10, 0, 255, torch.uint8)
        result: torch.Tensor = ops.dequantize_per_tensor(integers, 0.1, 10, 0, 255, torch.uint8)
        return result


@pytest.mark.parametrize("grid", [(0.1, 10, "uint8"), (0.25, 3, "uint8"), (0.1, -5, "int8")])
def test_a_program_that_quantizes_an_input_which_the_file_takes_as_integers(
    grid: tuple[float, int, str], tmp_path: Path
) -> None:
    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(Pt2(), (torch.randn(2, 4),)), path)
    model = qfmt.convert(path, input_quantization={"x": grid})
    for file in model, model.to_integers():
        report = qfmt.verify(path, file)
        assert report.ok and report.outputs[0].equal == report.outputs[0].outputs > 0, report.first_wrong
