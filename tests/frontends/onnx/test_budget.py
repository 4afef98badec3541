"""The cost of converting ONNX is proportional to the file, however large its functions and constants become."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qfmt
from networks.onnx_models import node, proto, random_inputs
from qfmt.errors import BudgetError, QfmtError, RunError, SourceError
from qfmt.frontends.onnx import reading
from qfmt.frontends.onnx.importer import Importer
from qfmt.model import Model
from qfmt.ops import OPERATORS
from support import onnx_witness
from support.paths import HOSTILE

FLOAT = TensorProto.FLOAT

REFUSED = {
    "laughs14.onnx": "converting 935 bytes would take more than",
    "laughs30.onnx": "converting 1959 bytes would take more than",
    "concat.onnx": "node y (Add): sizes 4 and 68719476736 do not broadcast",
    "onnx-assert.onnx": "initializer add_ini_1_scale: has its data in float_data",
    "onnx-keyerror.onnx": "node concat_0 (Concat): its input inputs is absent",
}


COMPUTED = [
    "concat-inference.onnx",  # after a node with a wrong axis, onnx's inference would compute vectors that double
    "laughs-uncalled.onnx",  # functions that double, but are not called
    "lrn-window.onnx",  # a window of 2 ** 27 channels, of which there are two
    "tile-nothing.onnx",  # repeats of 2 ** 25, 0 and 0
    "block-size.onnx",  # blocks of 2 ** 30 elements, of which there are two
    "onnx-no-outputs.onnx",  # a node of an unknown operator, without outputs
]
"""Files with parts that are not needed."""

CONVERT = """
import json, resource, sys
from click.testing import CliRunner
from qfmt.cli import main
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
for path in sys.argv[1:]:
    done = CliRunner().invoke(main, ["convert", path, path + ".qfb"])
    print(json.dumps([done.exit_code, done.stderr]))
"""


def test_hostile_files_are_converted_or_refused_in_one_line(tmp_path: Path) -> None:
    """By a process with 2 GB of address space and 60 s of time."""
    names = [*REFUSED, *COMPUTED]
    for name in names:
        shutil.copy(HOSTILE / name, tmp_path)
    command = [sys.executable, "-c", CONVERT, *(tmp_path / name for name in names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for name, line in zip(names, done.stdout.splitlines(), strict=True):
        status, told = json.loads(line)
        assert status == (2 if name in REFUSED else 0), (name, told)
        assert name in COMPUTED or (REFUSED[name] in told and told.count("\n") == 1), (name, told)
    assert {path.name for path in tmp_path.iterdir()} == {*names, *(f"{name}.qfb" for name in COMPUTED)}


MANY = 30_000
EMPTY = [TensorProto(name=f"t{index}", data_type=FLOAT, dims=[0]) for index in range(MANY)]
MUCH = {
    "initializers": ([node("Relu", ["x"], ["y"])], ["x"], EMPTY),
    "inputs": ([node("Relu", ["x"], ["y"])], ["x", *(f"x{index}" for index in range(MANY))], []),
    "outputs": ([node("Split", ["x"], ["y", *(f"y{index}" for index in range(MANY))], axis=0)], ["x"], []),
    "attributes": ([node("F", ["x"], ["y"], domain="a", **{f"a{i}": 1 for i in range(MANY)})], ["x"], []),
}


@pytest.mark.parametrize("name", MUCH)
def test_small_files_that_need_much_memory(name: str, tmp_path: Path) -> None:
    nodes, inputs, initializers = MUCH[name]
    values = [helper.make_tensor_value_info(each, FLOAT, [1]) for each in (*inputs, "y")]
    graph = helper.make_graph(nodes, "g", values[:-1], values[-1:], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    with pytest.raises(BudgetError, match="would take more than"):
        qfmt.convert(tmp_path / "m.onnx")


def functions(count: int, calls: int) -> list[onnx.FunctionProto]:
    """F0, which calls F1 `calls` times, and so on; the last one consists of Relus."""
    made = []
    for index in range(count):
        names = ["a", *(f"t{call}" for call in range(calls - 1)), "o"]
        inner = [("Relu", "") if index == count - 1 else (f"F{index + 1}", "d")] * calls
        nodes = [node(kind, [names[at]], [names[at + 1]], domain=domain) for at, (kind, domain) in enumerate(inner)]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
        made.append(helper.make_function("d", f"F{index}", ["a"], ["o"], nodes, opsets))
    return made


def called(made: list[onnx.FunctionProto]) -> onnx.ModelProto:
    return proto([node("F0", ["x"], ["y"], domain="d")], {"x": (FLOAT, [1, 4])}, ["y"], opset=17, functions=made)


def test_functions_that_networks_have_are_inlined(tmp_path: Path) -> None:
    source = called(functions(5, 3))
    (tmp_path / "m.onnx").write_bytes(source.SerializeToString())
    assert len(qfmt.convert(tmp_path / "m.onnx").nodes) == 3**5


@pytest.mark.parametrize(("made", "words"), [
    (functions(65, 1), "more than 64 levels deep"),
    ([*functions(2, 1)[:1], helper.make_function("d", "F1", ["a"], ["o"], [node("F0", ["a"], ["o"], domain="d")],
      [helper.make_opsetid("d", 1)])], "recursively"),
])  # fmt: skip
def test_recursive_and_deeply_nested_functions(made: list[onnx.FunctionProto], words: str) -> None:
    with pytest.raises(SourceError, match=words):
        qfmt.convert(called(made))


def side_by_side(count: int) -> onnx.ModelProto:
    """Empty functions, each called once: onnx-ir compares the names of all with those of all others."""
    made = [helper.make_function("d", f"f{index}", [], [], [], []) for index in range(count)]
    calls = [node(each.name, [], [], domain="d") for each in made]
    return proto([node("Relu", ["x"], ["y"]), *calls], {"x": (FLOAT, [1, 4])}, ["y"], opset=17, functions=made)


@pytest.mark.parametrize("made", [called(functions(60, 2)), side_by_side(8000)], ids=["nested", "side by side"])
def test_functions_are_counted_before_they_are_inlined(
    made: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnx_ir.passes.common import InlinePass

    def inlined(*_: object) -> None:
        raise AssertionError("inlined before it was counted")

    monkeypatch.setattr(InlinePass, "call", inlined)
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(BudgetError):
        qfmt.convert(tmp_path / "m.onnx")


# -- constants -----------------------------------------------------------------------------------------------------


def _doubled(count: int) -> list[onnx.NodeProto]:
    return [node("Concat", [f"w{at}", f"w{at}"], [f"w{at + 1}"], axis=0) for at in range(count)]


def _ranges(count: int) -> list[onnx.NodeProto]:
    return [node("Range", ["zero", "huge", "one"], [f"w{at + 1}"]) for at in range(count)]


def _stretched(count: int) -> list[onnx.NodeProto]:
    return [node("Expand", ["w0", "shape"], [f"w{at + 1}"]) for at in range(count)]


def _products(count: int) -> list[onnx.NodeProto]:
    """Many multiplications in few bytes: matrices of 1000 × 1000."""
    nodes = [node("Expand", ["w0", "square"], ["m0"])]
    return nodes + [node("MatMul", [f"m{at}", f"m{at}"], [f"m{at + 1}"]) for at in range(count)]


@pytest.mark.parametrize("make", [_doubled, _ranges, _stretched, _products])
def test_constants_are_computed_within_the_budget(
    make: Callable[[int], list[onnx.NodeProto]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that exceeds the budget is not folded; the bytes of all computed constants are counted."""
    nodes = make(30)
    result = nodes[-1].output[0]
    constants = {"w0": np.ones(4, np.float32), "zero": np.float32(0), "one": np.float32(1), "huge": np.float32(1e12),
                 "shape": np.array([1 << 18, 4]), "square": np.array([1000, 1000])}  # fmt: skip
    if make is _products:
        constants["w0"] = np.ones((1, 1), np.float32)
    source = proto([*nodes, node("Mul", ["x", result], ["y"])], {"x": (FLOAT, [])}, ["y"], constants, opset=17)
    (tmp_path / "m.onnx").write_bytes(source.SerializeToString())
    made: list[Importer] = []
    run = Importer.run
    monkeypatch.setattr(Importer, "run", lambda self, graph: (made.append(self), run(self, graph))[1])
    model = qfmt.convert(tmp_path / "m.onnx")
    (importer,) = made
    held = sum(tensor.data.nbytes for tensor in importer.tensors.values() if tensor.data is not None)
    print(f"{held} bytes of constants, {importer.budget.spent_bytes} of {importer.budget.bytes} bytes spent")
    assert held <= importer.budget.spent_bytes <= importer.budget.bytes
    assert 0 < len(model.nodes) <= len(nodes) + 1


def test_constants_that_networks_compute_become_constants() -> None:
    """Sizes, masks, and transposed weights from one initializer."""
    nodes = [
        node("Range", ["zero", "n", "one"], ["r"]),
        node("Transpose", ["w"], ["wt"]),
        node("NonZero", ["w"], ["at"]),
        node("Cast", ["at"], ["real"], to=FLOAT),
        node("MatMul", ["x", "wt"], ["m"]),
        node("ReduceSum", ["real"], ["t"]),
        node("Add", ["m", "r"], ["a"]),
        node("Add", ["a", "t"], ["y"]),
    ]
    constants = {"w": np.arange(12, dtype=np.float32).reshape(4, 3), "zero": np.float32(0), "n": np.float32(4),
                 "one": np.float32(1)}  # fmt: skip
    source = proto(nodes, {"x": (FLOAT, [2, 3])}, ["y"], constants, opset=17)
    model = qfmt.convert(source)
    assert [each.operator for each in model.nodes] == ["MatMul", "Add", "Add"]
    given = random_inputs(source)
    (want,), got = onnx_witness.runtime(source, given), model.run(given)
    assert np.array_equal(got["y"] if isinstance(got, dict) else got[0], want)


def _clips(count: int, parallel: bool) -> onnx.ModelProto:
    """Clips of one weight of 80 kB, or each of the one before."""
    rng = np.random.default_rng(0)
    constants = {f"low{i}": np.int16(i - 29_000) for i in range(count)}
    constants |= {"w": rng.integers(-30_000, 30_000, 40_000).astype(np.int16), "s": np.float32(0.1)}
    nodes = [node("Clip", ["w" if parallel or not i else f"c{i - 1}", f"low{i}"], [f"c{i}"]) for i in range(count)]
    nodes += [node("DequantizeLinear", [f"c{i}", "s"], [f"d{i}"]) for i in range(0 if parallel else count - 1, count)]
    read = [each.output[0] for each in nodes if each.op_type == "DequantizeLinear"]
    return proto([*nodes, node("Sum", ["x", *read], ["y"])], {"x": (FLOAT, [1])}, {"y": FLOAT}, constants, opset=21)


def test_clips_of_one_weight_are_charged(tmp_path: Path) -> None:
    onnx.save(_clips(400, parallel=True), tmp_path / "m.onnx")
    with pytest.raises(BudgetError, match=r"\(Clip\): converting"):
        qfmt.convert(tmp_path / "m.onnx")


def test_a_chain_of_clips_keeps_its_ends_only(tmp_path: Path) -> None:
    onnx.save(_clips(400, parallel=False), tmp_path / "m.onnx")
    model = qfmt.convert(tmp_path / "m.onnx")
    (weight,) = (each for each in model.graph.constants() if each.dtype == "int16" and each.array.size > 1)
    assert weight.quantization is not None and weight.quantization.quant_min == 399 - 29_000
    assert len(weight.aliases) <= 1


def test_a_thousand_nodes_that_unpack_the_same_weight(tmp_path: Path) -> None:
    """Each node would have a separate copy: rows are padded, so that the bytes cannot be shared."""
    count, size = 1000, 256
    rng = np.random.default_rng(0)
    constants = {"w": rng.integers(0, 256, (size, size // 32, 16)).astype(np.uint8),
                 "s": np.ones((size, size // 32), np.float32)}  # fmt: skip
    keys = {"N": size, "K": size - 1, "bits": 4, "block_size": 32, "domain": "com.microsoft"}
    nodes = [node("MatMulNBits", ["x0", "w", "s"], [f"x{at + 1}"], **keys) for at in range(count)]
    source = proto(nodes, {"x0": (FLOAT, [1, size - 1])}, [f"x{count}"], constants)
    (tmp_path / "m.onnx").write_bytes(source.SerializeToString())
    with pytest.raises(BudgetError, match="bytes of memory"):
        qfmt.convert(tmp_path / "m.onnx")


def test_the_cost_of_a_file_is_proportional_to_its_nodes(tmp_path: Path) -> None:
    spent = []
    for count in (100, 200, 300):
        nodes = [node("Relu", [f"x{at}"], [f"x{at + 1}"]) for at in range(count)]
        source = proto(nodes, {"x0": (FLOAT, [1, 4])}, [f"x{count}"])
        (tmp_path / "m.onnx").write_bytes(source.SerializeToString())
        model, budget = reading.read(tmp_path / "m.onnx")
        Importer(model, budget).run(model.graph)
        spent.append(np.array([budget.spent_operations, budget.spent_bytes]))
    steps = np.diff(spent, axis=0)
    assert (steps[0] == steps[1]).all() and (steps > 0).all()


def test_a_constant_in_a_function_that_is_called_a_thousand_times(tmp_path: Path) -> None:
    large = onnx.numpy_helper.from_array(np.arange(1 << 15, dtype=np.float32))
    body = [node("Constant", [], ["c"], value=large), node("Add", ["a", "c"], ["o"])]
    function = helper.make_function("d", "F", ["a"], ["o"], body, [helper.make_opsetid("", 17)])
    nodes = [node("F", [f"x{at}"], [f"x{at + 1}"], domain="d") for at in range(1000)]
    source = proto(nodes, {"x0": (FLOAT, [1 << 15])}, ["x1000"], opset=17, functions=[function])
    (tmp_path / "m.onnx").write_bytes(source.SerializeToString())
    with pytest.raises(BudgetError, match="bytes of memory"):
        qfmt.convert(tmp_path / "m.onnx")


def test_shapes_are_not_copied_along_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnx's inference took 39 s for 5000 dimensions and 2000 nodes: it is quadratic in the size of the file."""
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", None)
    nodes = [node("Det", ["x"], ["d"]), node("NonMaxSuppression", ["x", "x"], ["boxes"]), node("Relu", ["d"], ["y"])]
    model = qfmt.convert(proto(nodes, {"x": (FLOAT, [1] * 30)}, ["y", "boxes"]))
    assert model.tensors["d"].dtype == "float32" and "assumed_types" not in model.source


@pytest.mark.parametrize(("calls", "name"), [(3000, "v"), (300, "v" * 100_000)])
def test_names_in_a_function_that_is_called_often(calls: int, name: str, tmp_path: Path) -> None:
    """Inlining numbers equal names by trying all numbers: seconds for a file of 100 kB, and each copy is a text."""
    body = [node("Relu", ["a"], [name]), node("Relu", [name], ["o"])]
    function = helper.make_function("d", "F", ["a"], ["o"], body, [helper.make_opsetid("", 17)])
    nodes = [node("F", [f"x{at}"], [f"x{at + 1}"], domain="d") for at in range(calls)]
    source = proto(nodes, {"x0": (FLOAT, [4])}, [f"x{calls}"], opset=17, functions=[function])
    (tmp_path / "m.onnx").write_bytes(source.SerializeToString())
    with pytest.raises(BudgetError, match="would take more than"):
        qfmt.convert(tmp_path / "m.onnx")


def test_parameters_of_a_function_that_calls_leave_out(tmp_path: Path) -> None:
    body, given = [node("Relu", ["a"], ["o"])], ["a", *(f"a{at}" for at in range(2000))]
    function = helper.make_function("d", "F", given, ["o"], body, [helper.make_opsetid("", 17)])
    nodes = [node("F", ["x"], [f"x{at}"], domain="d") for at in range(2000)]
    source = proto(nodes, {"x": (FLOAT, [4])}, ["x0"], opset=17, functions=[function])
    (tmp_path / "m.onnx").write_bytes(source.SerializeToString())
    with pytest.raises(BudgetError, match="operations"):
        qfmt.convert(tmp_path / "m.onnx")


def test_a_tensor_in_a_function_of_an_unknown_operator(tmp_path: Path) -> None:
    """Each node that is kept has its own copy of the attribute, as text."""
    large = onnx.numpy_helper.from_array(np.arange(1 << 14, dtype=np.float32))
    function = helper.make_function(
        "d", "F", ["a"], ["o"], [node("Odd", ["a"], ["o"], domain="e", t=large)], [helper.make_opsetid("e", 1)]
    )
    nodes = [node("F", ["x"], [f"x{at}"], domain="d") for at in range(500)]
    source = proto(nodes, {"x": (FLOAT, [4])}, [f"x{at}" for at in range(500)], opset=17, functions=[function])
    (tmp_path / "m.onnx").write_bytes(source.SerializeToString())
    with pytest.raises(BudgetError, match="bytes of memory"):
        qfmt.convert(tmp_path / "m.onnx")


def converted(tmp_path: Path, nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], **more: Any) -> Model:
    """A file with the input x, and one output y."""
    source = proto(nodes, {"x": (FLOAT, [1, 200])}, ["y"], constants, **{"opset": 17, **more})
    (tmp_path / "m.onnx").write_bytes(source.SerializeToString())
    return qfmt.convert(tmp_path / "m.onnx")


def odd(**attributes: Any) -> onnx.NodeProto:
    return node("Odd", ["a"], ["o"], domain="e", **attributes)


def with_metadata() -> onnx.NodeProto:
    made = odd()
    for at in range(1000):
        made.metadata_props.add(key=f"k{at}", value="")
    return made


COPIED = {
    "attributes": odd(**{f"k{at}": 1 for at in range(1000)}),
    "metadata": with_metadata(),
    "inputs of a graph": odd(
        g=helper.make_graph([], "g", [onnx.ValueInfoProto(name=f"i{at}") for at in range(1000)], [])
    ),
    "outputs of a graph": odd(g=helper.make_graph([], "g", [], [onnx.ValueInfoProto(name="a")] * 1000)),
}


@pytest.mark.parametrize("kind", COPIED)
def test_what_each_call_of_a_function_copies(kind: str, tmp_path: Path) -> None:
    """A file of 180 kB took minutes."""
    function = helper.make_function("d", "F", ["a"], ["o"], [COPIED[kind]], [helper.make_opsetid("e", 1)])
    nodes = [node("F", [f"x{at}" if at else "x"], [f"x{at + 1}"], domain="d") for at in range(1000)]
    with pytest.raises(BudgetError, match=r"would take more than .* bytes of memory"):
        converted(tmp_path, [*nodes, node("Relu", ["x1000"], ["y"])], {}, functions=[function])


def test_references_to_a_long_attribute(tmp_path: Path) -> None:
    """Each is a copy."""
    body = [odd() for _ in range(100)]
    for at, each in enumerate(body):
        each.output[0] = f"o{at}"
        each.attribute.add(name="k", ref_attr_name="long", type=onnx.AttributeProto.INTS)
    function = helper.make_function("d", "F", ["a"], ["o0"], body, [helper.make_opsetid("e", 1)], ["long"])
    with pytest.raises(BudgetError, match=r"would take more than .* bytes of memory"):
        converted(tmp_path, [node("F", ["x"], ["y"], domain="d", long=[1] * 20_000)], {}, functions=[function])


@pytest.mark.parametrize("operator", ("Odd", "Transpose"))
def test_a_long_attribute_in_a_function(operator: str, tmp_path: Path) -> None:
    body = [node(operator, ["a"], ["o"], domain="e" if operator == "Odd" else "", perm=[0] * 1000)]
    opsets = [helper.make_opsetid("e", 1), helper.make_opsetid("", 17)]
    function = helper.make_function("d", "F", ["a"], ["o"], body, opsets)
    nodes = [node("F", [f"x{at}" if at else "x"], [f"x{at + 1}"], domain="d") for at in range(1000)]
    with pytest.raises(BudgetError, match="would take more than"):
        converted(tmp_path, [*nodes, node("Relu", ["x1000"], ["y"])], {}, functions=[function])


BYTES = np.ones((200, 200), np.int8)
ZERO, ONE = np.int8(0), np.float32(1)
SHARED: dict[str, list[tuple[str, str, str]]] = {
    "Transpose": [
        ("DequantizeLinear", "w s", "t0"),
        *[("Transpose", f"t{at}", f"t{at + 1}") for at in range(500)],
        ("Relu", "t500", "q"),
    ],
    "QuantizeLinear": [
        each
        for at in range(500)
        for each in (("QuantizeLinear", "f s z", f"t{at}"), ("DequantizeLinear", f"t{at} s z", f"q{at}"))
    ],
    "DynamicQuantizeMatMul": [("DynamicQuantizeMatMul", "x w s z", f"q{at}") for at in range(600)],
    "MatMul": [("RequantShift", "x s zero", "i"), *[("MatMul", "i half", f"q{at}") for at in range(1000)]],
}
"""Nodes: operator, inputs, output."""


@pytest.mark.parametrize("kind", SHARED)
def test_nodes_that_share_a_weight(kind: str, tmp_path: Path) -> None:
    """Each has a copy of it, or reads all of it, while passes work on the graph."""
    nodes = [
        node(name, given.split(), [made], domain="com.microsoft" if name.startswith("Dynamic") else "")
        for name, given, made in SHARED[kind]
    ]
    nodes.append(node("Sum", [made for _, _, made in SHARED[kind] if made.startswith("q")], ["y"]))
    constants = {"w": BYTES, "f": BYTES.astype(np.float32), "half": BYTES / np.float32(2), "s": ONE, "z": ZERO,
                 "zero": np.float32(0)}  # fmt: skip
    with pytest.raises(QfmtError, match=r"would take more than|takes .* to compute a constant"):
        converted(
            tmp_path, nodes, {name: constants[name] for each in nodes for name in each.input if name in constants}
        )


def test_what_is_out_of_proportion_is_said(tmp_path: Path) -> None:
    """A file with many QuantizeLinear over one constant may be honest."""
    nodes = [node(name, given.split(), [made]) for name, given, made in SHARED["QuantizeLinear"]]
    nodes.append(node("Sum", [made for _, _, made in SHARED["QuantizeLinear"] if made.startswith("q")], ["y"]))
    with pytest.raises(RunError, match=r"\.onnx: node .* nodes over constants take, in all, too much") as caught:
        converted(tmp_path, nodes, {"f": BYTES.astype(np.float32), "s": ONE, "z": ZERO})
    assert "malicious" not in str(caught.value)


def test_a_node_that_needs_much_memory_between_small_constants_is_not_computed(tmp_path: Path) -> None:
    """Two elements, in padding of 3 GB."""
    far = 400_000_000
    nodes = [node("Conv", ["c", "k"], ["f"], strides=[2 * far + 2], pads=[far, far]), node("Add", ["f", "x"], ["y"])]
    constants = {"c": np.ones((1, 1, 2), np.float32), "k": np.ones((1, 1, 1), np.float32)}
    assert [each.operator for each in converted(tmp_path, nodes, constants).nodes] == ["Conv", "Add"]


TOO_LARGE = {
    "groups": (node("GroupNormalization", ["i", "r", "r"], ["y"], num_groups=2_000_000_000),
               "an index is outside dimension 0, which has size 4"),
    "dimensions": (node("Relu", ["d"], ["y"]), "initializer d: has 33 dimensions; a tensor has up to 32"),
    "parts": (node("Split", ["x", "sizes"], ["y", "z"]), "splits into 1,000 parts, but has 2 outputs"),
    "no scale": (node("Resize", ["i", "", "scales"], ["y"]), r"the scales \[1.0, 1.0, nan\] are not all finite"),
    "scales": (node("Resize", ["x", "", "many"], ["y"]), "has 33 scales or sizes; a tensor has up to 32 dimensions"),
    "sizes": (node("Resize", ["x", "", "", "sizes"], ["y"]), "has 1,000 scales or sizes; a tensor has up to 32"),
}  # fmt: skip


@pytest.mark.parametrize("kind", TOO_LARGE)
def test_sizes_that_are_refused(kind: str, tmp_path: Path) -> None:
    made, words = TOO_LARGE[kind]
    constants = {"i": np.ones((1, 4, 2), np.float32), "r": np.ones(4, np.float32), "d": np.ones([1] * 33, np.float32)
                 if kind == "dimensions" else ONE, "sizes": np.ones(1000, np.int64),
                 "scales": np.array([1, 1, np.nan], np.float32), "many": np.full(33, 2, np.float32)}  # fmt: skip
    with pytest.raises(SourceError, match=words):
        converted(tmp_path, [made], constants, opset=18)


@pytest.mark.parametrize("limit", ("nan", "inf"))
def test_a_range_without_an_end(limit: str) -> None:
    with pytest.raises(QfmtError, match=f"a range from 1.0 to {limit} by 1.0 has no number of elements"):
        OPERATORS["Range"].reference(ONE, np.float32(limit), ONE)


@pytest.mark.parametrize("shapes", ([(200, 1), (1, 200), ()], [(200,), (200,), (200, 1)]))
def test_scales_that_would_make_a_weight_larger(shapes: list[tuple[int, ...]]) -> None:
    """The node is kept, and not computed: of 20,000 numbers each, it took 3 GB."""
    w, s, z = (np.ones(shape, np.float32) for shape in shapes)
    made = node("Quant", ["w", "s", "z", "b"], ["q"], domain="qonnx.custom_op.general")
    source = proto([made, node("Add", ["q", "x"], ["y"])], {"x": (FLOAT, [200, 200])}, ["y"],
                   {"w": w, "s": s, "z": z, "b": np.float32(4)})  # fmt: skip
    assert [each.operator for each in qfmt.convert(source).nodes] == ["qonnx.custom_op.general.Quant", "Add"]


def test_a_long_chain_of_moves_of_a_constant() -> None:
    """Each result had the names of all before it."""
    nodes = [node("DequantizeLinear", ["w", "s"], ["t0"])]
    nodes += [node("Transpose", [f"t{at}"], [f"t{at + 1}"]) for at in range(200)]
    nodes += [node("Add", ["x", "t200"], ["y"])]
    constants = {"w": np.ones((2, 2), np.int8), "s": np.float32(0.5)}
    model = qfmt.convert(proto(nodes, {"x": (FLOAT, [2, 2])}, ["y"], constants))
    (weight,) = (tensor for tensor in model.graph.constants() if tensor.dtype == "int8")
    assert "w" in (weight.name, *weight.aliases) and len(weight.aliases) == 64


def delimited(number: int, payload: bytes) -> bytes:
    """A field of a message, with its length in five bytes."""
    size = bytes(len(payload) >> shift & 0x7F | 0x80 for shift in (0, 7, 14, 21)) + bytes([len(payload) >> 28])
    return bytes([number << 3 | 2]) + size + payload


EMPTY = {
    "nodes": delimited(7, b"\x0a\x00" * 250_000),
    "values": delimited(7, b"\x6a\x00" * 250_000),
    "initializers": delimited(7, b"\x2a\x00" * 250_000),
    "attributes": delimited(7, delimited(1, b"\x2a\x00" * 250_000)),
    "sizes": delimited(7, delimited(13, delimited(2, delimited(1, delimited(2, b"\x0a\x00" * 1_000_000))))),
    "functions": delimited(7, b"") + b"\xca\x01\x00" * 250_000,
    "outputs": delimited(7, delimited(1, b"\x12\x00" * 250_000)),
    "dims": delimited(7, delimited(5, delimited(1, b"\x01" * 1_000_000))),
    "integers": delimited(7, delimited(1, delimited(5, b"\x40\x00" * 1_000_000))),
    "floats": delimited(7, delimited(1, delimited(5, delimited(7, bytes(5_000_000))))),
    "a text": delimited(7, delimited(1, delimited(4, "é".encode() * 2_000_000))),
    "texts": delimited(7, delimited(1, delimited(5, b"\x4a\x00" * 500_000))),
}


@pytest.mark.parametrize("kind", EMPTY)
def test_small_messages_and_elements_are_counted_before_they_are_parsed(kind: str, tmp_path: Path) -> None:
    """3 MB of messages took up to 1.2 GB and 48 s."""
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08" + delimited(8, b"\x0a\x00\x10\x11") + EMPTY[kind])
    with pytest.raises(BudgetError, match=r"would take more than .* bytes of memory"):
        qfmt.convert(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    "end", [b"\x0a", b"\x0a\x80", b"\x0a\x03\x00\x00", b"\x0b\x0c", b"\x0d\x00", b"\x08" + b"\xff" * 11]
)
def test_what_is_no_message_is_damaged(end: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08" + delimited(7, b"\x12" + delimited(0, b"x" * 200_000)[1:]) + end)
    with pytest.raises(SourceError, match="not a complete ONNX model"):
        qfmt.convert(tmp_path / "m.onnx")


def test_a_constant_with_a_long_name_that_many_nodes_read(tmp_path: Path) -> None:
    """An alias of it is short. On each grid it becomes another constant."""
    nodes = [node("Identity", ["c" * 20_000], ["c"])]
    nodes += [node("DequantizeLinear", ["c", f"s{index}"], [f"y{index}"]) for index in range(1000)]
    constants = {"c" * 20_000: np.ones(2, np.int8)}
    constants |= {f"s{index}": np.float32(1 + index) for index in range(1000)}
    path = tmp_path / "m.onnx"
    outputs = {f"y{index}": FLOAT for index in range(1000)}
    path.write_bytes(proto(nodes, {"x": (FLOAT, (2,))}, outputs, constants).SerializeToString())
    with pytest.raises(BudgetError, match="would take more than"):
        qfmt.convert(path)


@pytest.mark.parametrize("part", ["op_type", "domain", "attribute", "dimension"])
def test_long_terms(part: str, tmp_path: Path) -> None:
    """Each node of a function that is called, or each shape, would have a copy."""
    for length in (1000, 1001):
        long = "N" * length
        made = node(long if part == "op_type" else "Some", ["x"], ["y"], domain=long if part == "domain" else "d")
        if part == "attribute":
            made.attribute.append(helper.make_attribute(long, 1))
        sizes = (long if part == "dimension" else "N",)
        path = tmp_path / f"{length}.onnx"
        path.write_bytes(proto([made], {"x": (FLOAT, sizes)}, {"y": FLOAT}, {}).SerializeToString())
    qfmt.convert(tmp_path / "1000.onnx")
    with pytest.raises(SourceError, match="a name of 1,001 characters"):
        qfmt.convert(tmp_path / "1001.onnx")


def test_grids_of_a_shared_scale(tmp_path: Path) -> None:
    """Each value of an attribute states another one."""
    nodes = [node("QuantizeLinear", ["x", "s"], [f"y{index}"], block_size=index + 1) for index in range(1000)]
    path = tmp_path / "m.onnx"
    outputs = {f"y{index}": TensorProto.UINT8 for index in range(1000)}
    made = proto(nodes, {"x": (FLOAT, (20_000, 1))}, outputs, {"s": np.ones((20_000, 1), np.float32)}, opset=21)
    path.write_bytes(made.SerializeToString())
    with pytest.raises(BudgetError, match="would take more than"):
        qfmt.convert(path)


def test_scales_of_a_softmax_are_read_if_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of nodes may share many."""
    read = []
    monkeypatch.setattr(Importer, "value", lambda im, name: read.append(name))
    path = tmp_path / "m.onnx"
    made = node("QLinearSoftmax", ["x", "s", "", "s"], ["y"], domain="com.microsoft", opset=13)
    constants = {"s": np.ones(2, np.float32)}
    path.write_bytes(
        proto([made], {"x": (TensorProto.UINT8, (2,))}, {"y": TensorProto.UINT8}, constants).SerializeToString()
    )
    qfmt.convert(path)
    assert not read
