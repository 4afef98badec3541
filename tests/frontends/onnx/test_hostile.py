"""Invalid ONNX models cause one clear error that names the place, never a traceback or a partial file."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import TensorProto, helper

import qfmt
from networks.onnx_models import conv_net, dq, grids, node, proto, q
from qfmt import QfmtError
from qfmt.errors import BudgetError, InexpressibleNodesError, SourceError
from qfmt.frontends.onnx.external import tensors_within
from qfmt.frontends.onnx.opaque import ENCODED
from support.examples import examples

f32 = np.float32
FLOAT = TensorProto.FLOAT
Change = Callable[[onnx.ModelProto], Any]


def net() -> onnx.ModelProto:
    return conv_net(np.random.default_rng(0))


def initializer(model: onnx.ModelProto, name: str) -> TensorProto:
    return next(each for each in model.graph.initializer if each.name == name)


def cut(model: onnx.ModelProto) -> None:
    weights = initializer(model, "w")
    weights.raw_data = weights.raw_data[:-5]


def strip(model: onnx.ModelProto) -> None:
    initializer(model, "w").raw_data = b""


def cycle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "y"


def scales(model: onnx.ModelProto) -> None:
    initializer(model, "w.s").CopyFrom(onnx.numpy_helper.from_array(np.ones(3, f32), "w.s"))


def points(model: onnx.ModelProto) -> None:
    initializer(model, "w.z").CopyFrom(onnx.numpy_helper.from_array(np.zeros(2, np.int8), "w.z"))


def channels(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5


def sequence(model: onnx.ModelProto) -> None:
    model.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("x", FLOAT, None))


def convolution(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(each for each in model.graph.node if each.op_type == "Conv")


def function(name: str, **fields: Any) -> onnx.FunctionProto:
    made = helper.make_function("d", name, ["a"], ["o"], [helper.make_node("Neg", ["a"], ["o"])], [])
    for key, value in fields.items():
        getattr(made, key).extend(value)
    return made


def calls_with_a_graph(model: onnx.ModelProto) -> None:
    made = function("F", attribute=["body"])
    reference = made.node[0].attribute.add(name="body", ref_attr_name="body", type=onnx.AttributeProto.GRAPH)
    assert reference.ref_attr_name
    model.functions.append(made)
    model.graph.node.append(helper.make_node("F", ["x"], ["other"], domain="d", body=onnx.GraphProto(name="g")))


def branch(*nodes: onnx.NodeProto, **fields: Any) -> Change:
    """A change that adds an If with a branch of these nodes."""

    def change(model: onnx.ModelProto) -> None:
        inner = onnx.GraphProto(name="g", node=nodes, **fields)
        model.graph.node.append(helper.make_node("If", ["x"], ["other"], then_branch=inner, else_branch=inner))

    return change


def bytes_as_a_name(model: onnx.ModelProto) -> None:
    model.functions.append(function("F"))
    data = model.functions[0].SerializeToString().replace(b"\x01a", b"\x01\xff")
    model.functions[0].ParseFromString(data)


def both(model: onnx.ModelProto) -> None:
    initializer(model, "w").float_data.append(1.0)


BAD: dict[str, tuple[Change, str]] = {
    "opset 0": (lambda m: m.opset_import[0].__setattr__("version", 0), "opset 0"),
    "an opset beyond 32 bits": (lambda m: m.opset_import.add(version=1 << 40, domain="d"), "opset 1099511627776 of"),
    "a negative opset": (lambda m: m.opset_import.add(version=-1, domain="d"), "opset -1 of the domain d"),
    "another opset": (lambda m: m.opset_import.add(version=7), "states opsets .* and 7 of one domain, ai.onnx"),
    "another spelling": (lambda m: m.opset_import.add(version=7, domain="ai.onnx"), "and 7 of one domain, ai.onnx"),
    "no opset of ONNX": (lambda m: m.opset_import[0].__setattr__("domain", "com.microsoft"), "states no opset of them"),
    "one name for two functions": (
        lambda m: m.functions.extend([function("F")] * 2),
        "function 'd::F'.*twice",
    ),
    "one name for two inputs of a function": (lambda m: m.functions.append(function("F", input=["a"])), "'a'.*twice"),
    "a function with the graph of its caller": (calls_with_a_graph, "cannot be inlined"),
    "a name in a function that is not text": (bytes_as_a_name, "names that are not text"),
    "a name twice in a branch": (branch(*[helper.make_node("Neg", ["x"], ["t"])] * 2), "value 't'.*twice"),
    "an initializer twice in a branch": (
        branch(initializer=[TensorProto(name="t", data_type=1, dims=[0])] * 2),
        "initializer 't'.*twice",
    ),
    "kind of an attribute": (
        lambda m: convolution(m).attribute.append(helper.make_attribute("group", 1.5)),
        "group is of the kind FLOAT",
    ),
    "auto_pad": (
        lambda m: convolution(m).attribute.append(helper.make_attribute("auto_pad", "SOME")),
        "auto_pad is 'SOME'",
    ),
    "data in two forms": (both, "initializer w: has its data in float_data"),
    "a part of a tensor": (lambda m: initializer(m, "w").segment.__setattr__("end", 5), "is a part of a tensor"),
    "newer opset": (lambda m: m.opset_import[0].__setattr__("version", 99), r"opset 99.*onnx.version_converter"),
    "cycle": (cycle, "cycle"),
    "dangling input": (lambda m: convolution(m).input.__setitem__(0, "nowhere"), r"node conv \(Conv\).*'nowhere'"),
    "dangling output": (lambda m: m.graph.output[0].__setattr__("name", "nowhere"), "output 'nowhere'"),
    "no graph": (lambda m: m.ClearField("graph"), "unknown format"),
    "one name for two values": (lambda m: convolution(m).output.__setitem__(0, "xd"), "value 'xd'.*twice"),
    "one name for two initializers": (
        lambda m: initializer(m, "w.z").__setattr__("name", "b"),
        "initializer 'b'.*twice",
    ),
    "stripped weights": (strip, "initializer w: has 0 bytes.*stripped"),
    "cut weights": (cut, "initializer w: has 103 bytes, but its shape needs 108"),
    "negative size": (lambda m: initializer(m, "w").dims.__setitem__(0, -4), "initializer w"),
    "count of scales": (scales, r"DequantizeLinear.*scales"),
    "count of zero points": (points, r"DequantizeLinear.*zero points"),
    "axis": (lambda m: m.graph.node[2].attribute[0].__setattr__("i", 7), r"DequantizeLinear.*axis 7"),
    "channels": (channels, r"node conv \(Conv\).*5 channels"),
    "no inputs": (lambda m: convolution(m).ClearField("input"), r"node conv \(Conv\)"),
    "one input": (lambda m: convolution(m).input.__delitem__(slice(1, None)), r"node conv \(Conv\)"),
    "a sequence": (sequence, "sequence, not a tensor"),
    "strings": (
        lambda m: m.graph.input[0].type.tensor_type.__setattr__("elem_type", TensorProto.STRING),
        "strings cannot be stored",
    ),
    "no type": (lambda m: m.graph.input[0].ClearField("type"), "element type"),
    "an attribute of no function": (
        lambda m: convolution(m).attribute.add(name="group", ref_attr_name="g", type=2) and None,
        r"node .*its attribute group refers to g of a function, but is in none",
    ),
    "one name for two attributes": (
        lambda m: m.graph.node[2].attribute.append(m.graph.node[2].attribute[0]),
        r"node .*has two attributes of one name",
    ),
    "a function instead of an operator": (
        lambda m: m.functions.append(
            helper.make_function("", "Conv", ["x"], ["y"], [helper.make_node("Neg", ["x"], ["y"])], m.opset_import)
        ),
        "defines a function Conv, which is also a standard operator",
    ),
    "a function instead of an operator of ONNX Runtime": (
        lambda m: m.functions.append(
            helper.make_function(
                "com.microsoft", "Gelu", ["x"], ["y"], [helper.make_node("Neg", ["x"], ["y"])], m.opset_import
            )
        ),
        "defines a function Gelu, which is perhaps an operator of ONNX Runtime",
    ),
    "kernel": (lambda m: convolution(m).attribute.append(helper.make_attribute("kernel_shape", [5, 5])), "kernel"),
}


VALUES: list[tuple[onnx.NodeProto, str]] = [
    (helper.make_node("ReduceMax", ["x"], ["y"], "n", keepdims=2), "'keepdims' is 2, not 0 or 1"),
    (helper.make_node("ReduceMax", ["c"], ["y"], "n", keepdims=2), "'keepdims' is 2, not 0 or 1"),
    (helper.make_node("Gemm", ["x", "c"], ["y"], "n", transA=-1), "'transA' is -1, not 0 or 1"),
    (helper.make_node("Gelu", ["x"], ["y"], "n", approximate="xyz"), "'approximate' is 'xyz', not 'none' or 'tanh'"),
    (helper.make_node("Resize", ["x", "", "s"], ["y"], "n", mode="xyz"), "'mode' is 'xyz', not 'nearest', "),
    (helper.make_node("Resize", ["x", "", "s"], ["y"], "n", nearest_mode="xyz"), "'nearest_mode' is 'xyz', not "),
]


@pytest.mark.parametrize(("made", "words"), VALUES)
def test_values_that_an_attribute_may_not_have(made: onnx.NodeProto, words: str) -> None:
    """Also where qfmt computes the result in advance, or writes another operator."""
    constants = {"c": np.ones((2, 2), np.float32), "s": np.array([1, 1.7], np.float32)}
    source = proto([made], {"x": (FLOAT, [2, 2])}, {"y": FLOAT}, constants, opset=23)
    with pytest.raises(SourceError, match=f"^node n \\({made.op_type}\\): the attribute {words}"):
        qfmt.convert(source)


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said(name: str, tmp_path: Path) -> None:
    change, words = BAD[name]
    model = net()
    change(model)
    path = tmp_path / "bad.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(SourceError) as caught:
        qfmt.convert(path)
    assert re.search(words, str(caught.value)), caught.value
    assert "\n" not in str(caught.value)
    assert "bad.onnx" in str(caught.value)


def test_the_command_prints_one_line(tmp_path: Path) -> None:
    """onnx-ir logs warnings, which Python would print."""
    model = net()
    convolution(model).input[0] = "nothing"
    path = tmp_path / "bad.onnx"
    path.write_bytes(model.SerializeToString())
    command = [sys.executable, "-m", "qfmt", "convert", str(path), str(tmp_path / "bad.qfb")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "bad.qfb").exists()


# -- random files --------------------------------------------------------------------------------------------------

BYTES = net().SerializeToString()


def attempt(data: bytes, folder: Path) -> bool:
    """Whether the data becomes a model that can be saved and opened; errors other than QfmtError propagate."""
    path = folder / "any.onnx"
    path.write_bytes(data)
    try:
        qfmt.save(qfmt.convert(path), folder / "any.qfb")
        qfmt.load(folder / "any.qfb")
    except QfmtError as error:
        assert str(error)
        return False
    return True


@examples(50)
@given(changes=st.lists(st.tuples(st.integers(0, len(BYTES) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_changed_bytes_yield_a_model_or_an_error(
    changes: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(BYTES)
    for at, value in changes:
        data[at] = value
    attempt(bytes(data), tmp_path_factory.mktemp("any"))


@examples(25)
@given(end=st.integers(0, len(BYTES) - 1))
@example(end=BYTES.rindex(b"B"))  # the start of the opset, the last field
def test_a_file_cut_off_is_an_error(end: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert not attempt(BYTES[:end], tmp_path_factory.mktemp("cut"))


OPERATORS = [
    "Conv",
    "Gemm",
    "MatMul",
    "Add",
    "Relu",
    "Clip",
    "MaxPool",
    "Reshape",
    "Transpose",
    "Concat",
    "Split",
    "Slice",
    "Pad",
    "QuantizeLinear",
    "DequantizeLinear",
    "Resize",
    "Squeeze",
    "Unsqueeze",
    "Gather",
    "Softmax",
    "RequantShift",
    "Cast",
    "Constant",
    "ConstantOfShape",
    "Upsample",
    "TopK",
    "BatchNormalization",
    "Dropout",
    "Shape",
    "ReduceMean",
    "Loop",
]
MICROSOFT = [
    "QLinearAdd",
    "QGemm",
    "MatMulNBits",
    "GatherBlockQuantized",
    "QLinearConcat",
    "QLinearSoftmax",
    "DynamicQuantizeMatMul",
    "MatMulIntegerToFloat",
    "QLinearWhere",
    "QLinearAveragePool",
]
KEYS = [
    "axis",
    "kernel_shape",
    "pads",
    "strides",
    "perm",
    "block_size",
    "to",
    "bits",
    "N",
    "K",
    "div",
    "auto_pad",
    "mode",
    "axes",
    "value_float",
    "scales",
    "transB",
    "alpha",
    "n_levels",
    "signed",
    "group",
    "num_outputs",
    "opset",
]
VALUES = (
    st.integers(-9, 99)
    | st.floats(-2, 2, width=32)
    | st.sampled_from(["SAME_UPPER", "x"])
    | st.lists(st.integers(-3, 5), min_size=1, max_size=4)
)
ATTRIBUTES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3)
NAMES = st.sampled_from(["x", "u", "s", "z", "i", "w", ""])


@examples(150)
@given(
    operator=st.sampled_from([*OPERATORS, *MICROSOFT]),
    names=st.lists(NAMES, max_size=6),
    attributes=ATTRIBUTES,
    count=st.integers(1, 3),
    opset=st.sampled_from([6, 9, 10, 13, 21]),
)
def test_nodes_with_wrong_inputs_and_attributes(
    operator: str, names: list[str], attributes: dict[str, Any], count: int, opset: int
) -> None:
    """Operators with inputs and attributes of other operators."""
    domain = "com.microsoft" if operator in MICROSOFT else ""
    made = node(operator, names, [f"y{index}" for index in range(count)], domain=domain, **attributes)
    inputs = {"x": (FLOAT, [2, 3, 4, 4]), "u": (TensorProto.UINT8, [2, 3])}
    constants = {"s": f32(0.1), "z": np.uint8(3), "i": np.array([1, -1], np.int64), "w": np.ones((3, 3, 1, 1), f32)}
    source = proto([made], inputs, ["y0"], constants, opset=opset)
    try:
        model = qfmt.convert(source)
    except SourceError as error:
        assert operator in str(error)
    except QfmtError as error:
        assert str(error)
    else:
        assert model.graph.outputs == ("y0",)


def test_invalid_scales_stay_inputs(tmp_path: Path) -> None:
    """A scale that is invalid for a tensor stays in the graph; the result equals ONNX's."""
    for scale in (0.0, -0.5, np.nan, np.inf):
        constants = grids(x=(scale, np.uint8(3)))
        source = proto([q("x", "x", "xq"), dq("xq", "x", "y")], {"x": (FLOAT, [4])}, ["y"], constants)
        model = qfmt.convert(source)
        assert {each.operator for each in model.nodes} == {"ai.onnx.QuantizeLinear", "ai.onnx.DequantizeLinear"}
        qfmt.save(model, tmp_path / "m.qfb")


@pytest.mark.parametrize("where", ["tensor", "graph"])
def test_external_data_in_attributes_is_refused(where: str) -> None:
    """A crafted attribute with a tensor whose values are in a file on the machine that exports."""
    tensor = onnx.TensorProto(name="t", data_type=1, dims=[2], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/passwd")
    attribute = onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR, t=tensor)
    if where == "graph":
        inner = onnx.GraphProto(name="g", initializer=[tensor])
        attribute = onnx.AttributeProto(name="value", type=onnx.AttributeProto.GRAPH, g=inner)
    with pytest.raises(InexpressibleNodesError, match="refers to another file for its values"):
        with_opaque(attribute).to_onnx(opset=21)


def test_subgraphs_of_empty_nodes_are_counted_before_they_are_parsed() -> None:
    """Nodes of two bytes, in one attribute or in several, took 400 MB and 15 s in a file of 1 MB."""
    for count in (1, 8):
        inner = onnx.GraphProto(name="g", node=[onnx.NodeProto()] * (400_000 // count))
        attribute = onnx.AttributeProto(name="value", type=onnx.AttributeProto.GRAPH, g=inner)
        with pytest.raises(BudgetError, match="bytes of memory"):
            with_opaque(*[attribute] * count).to_onnx(opset=21)


def with_opaque(*attributes: onnx.AttributeProto) -> qfmt.Model:
    """A node of an unknown operator, with encoded attributes."""
    encoded = [ENCODED + base64.b64encode(attribute.SerializeToString()).decode() for attribute in attributes]
    tensors = {name: qfmt.Tensor(name, "float32", (2,)) for name in "xy"}
    node = qfmt.Node("vendor.Thing", ("x",), ("y",), {f"value{at}": each for at, each in enumerate(encoded)})
    return qfmt.Model(qfmt.Graph(("x",), ("y",), [node], tensors))


def test_functions_are_told_apart_by_their_overload() -> None:
    model, overloaded = net(), function("F")
    overloaded.overload = "1"
    model.functions.extend([function("F"), function("F1"), overloaded])
    assert qfmt.convert(model).content_id() == qfmt.convert(net()).content_id()


def test_a_file_beyond_protobuf_is_refused_by_its_size(tmp_path: Path) -> None:
    """Before it is read: this one has a hole."""
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.write(b"\x08\x07\x3a\xff\xff\xff\xff\x07")  # ir_version, and a graph of 2 GB
        file.truncate(1 << 40)
    with pytest.raises(SourceError, match=r"an ONNX model of 2 GB or more, .*save_as_external_data"):
        qfmt.convert(path)


# -- what runs the model -----------------------------------------------------------------------------------------------


def test_no_name_makes_it_a_model_of_another_format(tmp_path: Path) -> None:
    """ONNX Runtime takes bytes with ORTM at 4 for its own format: here that is the name of the producer."""
    model = net()
    model.producer_name = "ORTM"
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert path.read_bytes()[4:8] == b"ORTM"
    assert qfmt.verify(path, qfmt.convert(path), engine="onnxruntime").ok


def test_no_model_sets_options_of_the_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With this variable, ONNX Runtime takes options from a model: profiling writes a file."""
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    model, path = net(), tmp_path / "m.onnx"
    model.metadata_props.add(key="ort_config", value='{"session_options": {"enable_profiling": true}}')
    path.write_bytes(model.SerializeToString())
    assert qfmt.verify(path, qfmt.convert(path), engine="onnxruntime").ok


def test_no_operator_decodes_images(tmp_path: Path) -> None:
    """onnx's ImageDecoder imports Pillow, which runs Ghostscript for some images."""
    fake, path = tmp_path / "site" / "PIL", tmp_path / "m.onnx"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'imported')!r}).touch()\n")
    nodes = [
        node("ImageDecoder", ["image"], ["pixels"]),
        node("Cast", ["pixels"], ["real"], to=FLOAT),
        node("ReduceMax", ["real"], ["x.s"], keepdims=0),
        q("x", "x", "y"),
    ]
    constants = {"image": np.zeros(9, np.uint8), "x.z": np.uint8(0)}
    model = proto(nodes, {"x": (FLOAT, (2,))}, {"y": TensorProto.UINT8}, constants, opset=21)
    path.write_bytes(model.SerializeToString())
    start = f"import sys, qfmt; sys.path.append({str(fake.parent)!r}); path = {str(path)!r}"
    verify = "qfmt.verify(path, qfmt.convert(path), engine='reference')"
    command = [sys.executable, "-c", f"{start}; {verify}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Pillow must be installed" in done.stderr
    assert not (tmp_path / "imported").exists()


def test_places_of_tensors_are_short() -> None:
    """A node with a long name may have many tensors; each has a place for messages."""
    made = helper.make_node("Some", ["x"], ["y"], name="n" * 1_000_000, domain="d")
    made.attribute.append(helper.make_attribute("held", [helper.make_tensor("t" * 1_000_000, FLOAT, [0], [])] * 3))
    assert [len(where) < 300 for _, where in tensors_within(made)] == [True] * 3


def test_outputs_without_a_name_before_a_long_one(tmp_path: Path) -> None:
    """Each gets a name that begins with that of the last one."""
    made = helper.make_node("Some", ["x"], [*[""] * 100, "y" * 1_000_000], domain="d")
    path = tmp_path / "m.onnx"
    path.write_bytes(proto([made], {"x": (FLOAT, (2,))}, {"y" * 1_000_000: FLOAT}, {}).SerializeToString())
    with pytest.raises(BudgetError, match="would take more than"):
        qfmt.convert(path)


def test_a_node_without_outputs_is_dropped() -> None:
    model = net()
    model.graph.node.add(op_type="RNN", input=["x", "x", "x"], output=["", ""])
    model.graph.node.add(op_type="Unknown", domain="example", input=["x"])
    assert qfmt.convert(model).nodes == qfmt.convert(net()).nodes
