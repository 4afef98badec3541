"""Export to ONNX: PyTorch networks, run by ONNX Runtime and by onnx's evaluator; files; unsupported nodes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import qfmt
from networks import pytorch
from networks.pytorch import convert, named
from qfmt.backends.onnx import write_onnx
from qfmt.backends.onnx.opsets import WITHOUT_RUNTIME, newest
from qfmt.compare.classes import Counts, classify
from qfmt.compare.report import COUNTS
from qfmt.errors import DestinationError, InexpressibleNodesError, RunError
from qfmt.file.replacing import NewFile
from qfmt.interpreter import operands_of, trace
from qfmt.model import Graph, Model, Node, Tensor
from support import onnx_kernels
from support import onnx_witness as witness
from support.paths import DIGITS, HELD_BACK, ROOT

f32 = np.float32

NETWORKS = [
    ("conv1d", "eager"), ("linears", "eager"), ("convolutions", "eager"), ("pooling", "fx"),
    ("resizing", "eager"), ("layout", "eager"), ("islands", "eager"), ("two_inputs", "fx"), ("activations", "eager"),
    ("normalizations", "eager"), ("arithmetic", "direct"), ("functions", "direct"), ("volumes", "direct"),
    ("signed", "direct"),
]  # fmt: skip
"""Together they contain every operator of statically quantized networks."""

ENGINES = {"plain": "onnxruntime", "fused": "onnxruntime:all"}
"""Optimization level → its name in `verify`."""


@pytest.fixture(scope="module", params=NETWORKS, ids="-".join)
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Any]:
    """A PyTorch network with the rules of ONNX, and inputs."""
    torch.backends.quantized.engine = "fbgemm"
    module, inputs = pytorch.quantized(*request.param)
    archive = pytorch.save_as(module, inputs, "trace", tmp_path_factory.mktemp("onnx") / "m.pt")
    model = convert(request.param[0], archive, "onnx")
    return model, named(model, inputs)


def test_every_node_equals_onnx_runtime(network: tuple[Model, Any]) -> None:
    """Each node alone is written as ONNX, and runs on its inputs in the network. What is not equal is a proven tie, or
    a sum of floats in another order."""
    model, inputs = network
    found, values = Counts(), {}
    given_ = dict(inputs)
    for node in trace(model, inputs, values):
        seen = {name: given_[name] for name in node.inputs if name and name in given_}
        given_ |= {name: values[name] for name in node.outputs}
        alone, operands = _alone(model, node, seen), operands_of(node, given_, model.tensors)
        for name, theirs in zip(node.outputs, witness.runtime(alone.to_onnx(), seen), strict=True):
            counts = classify(node, operands, model.tensors[name], given_[name], theirs, "onnxruntime")
            found = found.plus(counts)
            assert counts.equal + counts.tie + counts.close == counts.total, (node, name, counts)
    print(f"\n{found}")


def _alone(model: Model, node: Node, seen: Mapping[str, np.ndarray]) -> Model:
    names = {*filter(None, node.inputs), *node.outputs}
    tensors = {name: replace(model.tensors[name]) for name in names}
    for name, array in seen.items():
        tensors[name] = replace(tensors[name], shape=array.shape)
    return Model(Graph(tuple(seen), node.outputs, (node,), tensors), engine=model.engine)


def test_networks_equal_other_programs(network: tuple[Model, Any], tmp_path: Path) -> None:
    """In the whole network, each node computes the same from its inputs, but for proven ties: every eighth mean of 8
    integers is half-way, and float32 with the calibrated scale rounds it."""
    model, inputs = network
    proto = onnx_kernels.exact_here(model)
    onnx.checker.check_model(proto, full_check=True)
    onnx.save(proto, tmp_path / "m.onnx")
    for level, engine in ENGINES.items():
        report = qfmt.verify(tmp_path / "m.onnx", model, inputs, engine=engine)
        counts = {name: sum(getattr(node, name) for node in report.nodes) for name in COUNTS}
        print(f"\n{level}: {counts}")
        assert not report.first_wrong


def test_a_mobilenet_of_2019_runs_in_onnx_runtime(shared_data: Path) -> None:
    """For images of noise, the integers equal those of ONNX Runtime with fusions, also with the oldest opset. Names
    are kept."""
    model = qfmt.convert(shared_data / "torchscript" / "ios_mobilenet_quantized.pt", engine="onnx")
    rng = np.random.default_rng(0)
    image = {model.graph.inputs[0]: rng.normal(0, 1, (1, 3, 224, 224)).astype(f32)}
    for opset in (None, 13):
        proto = onnx_kernels.exact_here(model, opset=opset)
        onnx.checker.check_model(proto, full_check=True)
        tally = witness.compare(model, witness.runtime(proto, image, "fused"), image, witness.Tally())
        print(f"\nopset {proto.opset_import[0].version}: {tally}")
        assert tally.equal == tally.total == 1000
    stored = witness.initializers(model.to_onnx())
    weights = [each for each in model.graph.constants() if each.dtype == "int8"]
    assert len(weights) == 53
    assert all((stored[weight.name] == weight.array).all() for weight in weights)


# Names, files, and unsupported nodes


def test_names_are_those_of_the_model() -> None:
    model = qfmt.convert(DIGITS, engine="onnx")
    proto = model.to_onnx()
    assert [value.name for value in proto.graph.input] == list(model.graph.inputs)
    assert [value.name for value in proto.graph.output] == list(model.graph.outputs)
    stored = witness.initializers(proto)
    for weight in (tensor for tensor in model.graph.constants() if tensor.quantization is not None):
        assert stored[weight.name].dtype == np.int8
        np.testing.assert_array_equal(stored[weight.name], weight.array)
        np.testing.assert_array_equal(stored[f"{weight.name}.scale"], np.array(weight.quantization.scale, f32))
    names = [node.name for node in proto.graph.node]
    assert len(set(names)) == len(names)
    assert {node.name or node.outputs[0] for node in model.nodes} - {"dequant", "quant"} <= set(names)
    values = {name for node in proto.graph.node for name in [*node.input, *node.output]}
    assert {"conv.scale", "stem.0", "stem.0_dequantized", "stem.0.weight_dequantized", "quant.zero_point"} - values == {
        "conv.scale"
    }


def test_unknown_sizes_are_computed_at_run_time(tmp_path: Path) -> None:
    """The bins of an adaptive pool are computed from the image size at run time."""
    model = qfmt.convert(DIGITS, engine="onnx")
    x = np.load(HELD_BACK)["x"]
    proto = model.to_onnx()
    onnx.save(proto, tmp_path / "m.onnx")
    report = qfmt.verify(tmp_path / "m.onnx", model, {"x": x}, engine="onnxruntime")
    print(f"\n{sum(node.equal for node in report.nodes)} of {sum(node.outputs for node in report.nodes)} equal")
    assert report.ok, report.first_wrong  # what is not equal is a proven tie


def test_an_operator_that_qfmt_does_not_know_goes_back_as_it_came() -> None:
    x, y = Tensor("x", "float32", ("N",)), Tensor("y", "float32", ("N",))
    model = witness.one("com.example.vision.Fancy", [x], y, version=3, strength=0.5, mode="soft", sizes=(1, 2))
    (node,) = model.to_onnx().graph.node
    assert (node.domain, node.op_type) == ("com.example.vision", "Fancy")
    given_ = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    assert given_ == {"strength": 0.5, "mode": b"soft", "sizes": [1, 2]}
    imports = {each.domain: each.version for each in model.to_onnx().opset_import}
    assert imports["com.example.vision"] == 3


def test_unsupported_nodes_are_listed() -> None:
    a = {"kernel_shape": (2,), "strides": (1,), "pads": (0, 0), "dilations": (2,), "ceil_mode": 0}
    x = Tensor("x", "float32", (1, 1, 9))
    tensors = {t.name: t for t in [x, Tensor("y", "float32", (1, 1, 7)), Tensor("z", "float32", (1, 1, 5))]}
    nodes = tuple(
        Node("AveragePool", (one_,), (two,), {**a, "count_include_pad": 0}, f"pool_{two}", 22)
        for one_, two in (("x", "y"), ("y", "z"))
    )
    model = Model(Graph(("x",), ("z",), nodes, tensors))
    with pytest.raises(
        InexpressibleNodesError, match=r"2 nodes .* opset 18: AveragePool has no dilations .*pool_y, pool_z"
    ):
        model.to_onnx(opset=18)
    for opset in (12, 99):
        with pytest.raises(DestinationError, match=f"opset {opset} cannot be written; choose one from 13 to "):
            model.to_onnx(opset=opset)
    with pytest.raises(RunError, match="unknown ONNX form 'qlinear'"):
        model.to_onnx(form="qlinear")
    with pytest.raises(RunError, match="no graph"):
        Model(Graph((), (), (), {"w": Tensor.constant("w", np.ones(3, f32))})).to_onnx()


def test_large_weights_lie_in_a_file_beside_it(tmp_path: Path) -> None:
    model = qfmt.convert(DIGITS, engine="onnx")
    x = {"x": np.load(HELD_BACK)["x"][:5]}
    write_onnx(model, tmp_path / "one.onnx")
    write_onnx(model, tmp_path / "two.onnx", external=5000)
    (tmp_path / f"two.onnx.{'0' * 16}.data").write_bytes(b"of an earlier model")
    write_onnx(model, tmp_path / "two.onnx", external=5000)
    assert [path.name.rpartition(".")[2] for path in sorted(tmp_path.iterdir())] == ["onnx", "onnx", "data"]
    onnx.checker.check_model(str(tmp_path / "two.onnx"))
    single, double = (witness.runtime(str(tmp_path / name), x)[0] for name in ("one.onnx", "two.onnx"))
    np.testing.assert_array_equal(single, double)
    assert (tmp_path / "two.onnx").stat().st_size < (tmp_path / "one.onnx").stat().st_size - 8000


@pytest.mark.parametrize(("name", "kept"), [("m.onnx", "old"), ("m.onnx", "old.textproto"), ("é.onnx", "old.json")])
def test_weights_of_a_renamed_model_are_not_removed(name: str, kept: str, tmp_path: Path) -> None:
    """Nor those of a copy in another form."""
    w = {number: Tensor.constant("w", np.full(2000, number, f32)) for number in (1, 2)}
    nodes = (Node("Add", ("x", "w"), ("y",), version=14),)
    x, y = (Tensor(name, "float32", (2000,)) for name in "xy")
    one, two = (Model(Graph(("x",), ("y",), nodes, {"x": x, "y": y, "w": each})) for each in w.values())
    write_onnx(one, tmp_path / name, external=0)
    onnx.save(onnx.load(tmp_path / name, load_external_data=False), tmp_path / kept)
    (tmp_path / name).unlink()
    (tmp_path / "link").symlink_to("nothing")
    write_onnx(two, tmp_path / name, external=0)
    for each, number in (kept, 1), (name, 2):
        assert (onnx.numpy_helper.to_array(onnx.load(tmp_path / each).graph.initializer[0]) == number).all()
    (tmp_path / kept).unlink()
    write_onnx(two, tmp_path / name, external=0)
    assert len(list(tmp_path.glob("*.data"))) == 1


def test_weights_of_a_model_in_a_folder_above_are_not_removed(tmp_path: Path) -> None:
    """The weights of a model may lie in a folder below it."""
    below = tmp_path / "a" / "b" / "m.onnx"
    below.parent.mkdir(parents=True)
    kept, unused = (below.with_name(f"m.onnx.{digit * 16}.data") for digit in "01")
    model = qfmt.convert(DIGITS, engine="onnx")
    onnx.save_model(model.to_onnx(), tmp_path / "m.onnx", save_as_external_data=True, location=f"a/b/{kept.name}")
    unused.write_bytes(b"of an earlier model")
    write_onnx(model, below, external=5000)
    assert (kept.exists(), unused.exists()) == (True, False)


def test_a_large_folder_is_not_searched(tmp_path: Path) -> None:
    """To look for the names of weights in all files of a folder may take longer than to convert a model."""
    earlier, large = tmp_path / f"m.onnx.{'0' * 16}.data", tmp_path / "large"
    earlier.write_bytes(b"of an earlier model")
    with large.open("wb") as file:
        file.truncate(1 << 40)  # a hole
    write_onnx(qfmt.convert(DIGITS, engine="onnx"), tmp_path / "m.onnx", external=5000)
    assert earlier.exists()
    large.unlink()
    write_onnx(qfmt.convert(DIGITS, engine="onnx"), tmp_path / "m.onnx", external=5000)
    assert not earlier.exists()


def test_two_writers_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One would remove the weights that the other has written, and has not named in a model yet."""
    held: list[str] = []

    @contextmanager
    def alone(target: Path) -> Iterator[None]:
        held.append(target.name)
        yield
        held.append("end")

    settle = NewFile.settle

    def settled(file: NewFile) -> None:
        held.append(file.target.suffix)
        settle(file)

    monkeypatch.setattr("qfmt.file.replacing.alone", alone)
    monkeypatch.setattr(NewFile, "settle", settled)
    write_onnx(qfmt.convert(DIGITS, engine="onnx"), tmp_path / "m.onnx", external=5000)
    assert held == ["m.onnx", ".data", ".onnx", "end"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = qfmt.convert(DIGITS, engine="onnx")
    (tmp_path / "m.onnx").write_bytes(b"old")
    with pytest.raises(DestinationError):
        write_onnx(model, tmp_path / "nowhere" / "m.onnx")
    with pytest.raises(DestinationError):
        write_onnx(model, tmp_path)
    monkeypatch.setattr("onnx_ir.to_proto", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_onnx(model, tmp_path / "m.onnx", external=10)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    assert (tmp_path / "m.onnx").read_bytes() == b"old"


# The command


def command(*arguments: object, forbid: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """`qfmt` in a separate process, in which some packages cannot be imported."""
    code = f"import sys; sys.modules.update(dict.fromkeys({forbid!r})); from qfmt.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT)


def test_a_file_of_pytorch_becomes_onnx_without_torch(tmp_path: Path) -> None:
    done = command("convert", DIGITS, tmp_path / "m.onnx", "--engine", "onnx", forbid=("torch",))
    assert done.returncode == 0, done.stderr
    assert f"opset {newest()}" in done.stderr
    model = qfmt.convert(DIGITS, engine="onnx")
    assert (tmp_path / "m.onnx").read_bytes() == model.to_onnx().SerializeToString()


def test_a_qfb_becomes_onnx_of_a_chosen_opset_and_form(tmp_path: Path) -> None:
    qfmt.save(qfmt.convert(DIGITS, engine="onnx"), tmp_path / "m.qfb")
    done = command("convert", tmp_path / "m.qfb", tmp_path / "m.onnx", "--opset", "17", "--form", "qoperator")
    assert done.returncode == 0, done.stderr
    proto = onnx.load(tmp_path / "m.onnx")
    assert {each.domain: each.version for each in proto.opset_import} == {"": 17, "com.microsoft": 1}
    assert "QLinearConv" in witness.operators(proto)


@pytest.mark.parametrize(
    ("dest", "options", "forbid", "said"),
    [
        ("m.onnx", ["--opset", "9"], (), "ONNX opset 9 cannot be written; choose one from 13 to"),
        ("m.onnx", [], ("onnx",), "onnx and onnx-ir; run `pip install '.[onnx]'`"),
        (
            "m.onnx",
            [],
            ("onnx_ir",),
            "an ONNX model requires the packages onnx and onnx-ir; run `pip install '.[onnx]'`",
        ),
        ("m.qfb", ["--opset", "17"], (), "--opset, --form and --same-types are for ONNX"),
        ("m.qfb", ["--form", "qdq"], (), "--opset, --form and --same-types are for ONNX"),
        ("nowhere/m.onnx", [], (), "cannot be written: there is no directory"),
    ],
)
def test_what_is_wrong_is_told(
    dest: str, options: list[str], forbid: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = command("convert", DIGITS, tmp_path / dest, *options, forbid=forbid)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_onnx_runtime_an_opset_that_most_have_is_written() -> None:
    code = (
        "import sys; sys.modules['onnxruntime'] = None\nimport qfmt\n"
        "print(qfmt.convert(sys.argv[1]).to_onnx().opset_import[0].version)"
    )
    arguments = [sys.executable, "-c", code, str(DIGITS)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == f"{WITHOUT_RUNTIME}\n"
