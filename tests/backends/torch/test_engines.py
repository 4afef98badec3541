"""Back to PyTorch: compares every engine of `Model.to_torch` with its specification, output by output."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from torch.ao import quantization as tq
from torch.ao.nn import quantized as nnq

import qfmt
from networks import pytorch
from qfmt.backends.torch.processor import quantized_kernels
from qfmt.compare.classes import Counts, classify
from qfmt.errors import RunError
from qfmt.interpreter import operands_of, trace
from qfmt.model import Model
from support.counts import tell
from support.paths import DIGITS, HELD_BACK, ROOT
from support.processes import end_of_fork
from support.torch_modules import archive, call, equal, expected_of, inputs_of, model_of, run

pytestmark = pytest.mark.usefixtures("engine_is_left_alone")

KERNELS = [
    name for name in ("fbgemm", "qnnpack", "onednn", "x86") if name in torch.backends.quantized.supported_engines
]
NAMES = list(pytorch.NETWORKS)
HALF, OTHER = (
    [pytest.param(name, marks=pytest.mark.slow if place % 2 == rest else ()) for place, name in enumerate(NAMES)]
    for rest in (1, 0)
)
"""Every other network, and the ones between; the rest is slow."""


# Engines


@pytest.mark.parametrize("name", OTHER)
def test_reference_is_run(name: str) -> None:
    model, inputs = model_of(name), inputs_of(name)
    module = model.to_torch("reference")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = call(module, inputs)
    same, total = equal(got, expected_of(name))
    print(f"{name}: {same} of {total} outputs equal; {len(module.report())} nodes by NumPy")
    assert same == total
    assert not any(value.is_quantized for value in module.state_dict().values())


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        *((name, "fbgemm") for name in NAMES),
        *((name, rules) for name in ("convolutions", "linears", "pooling") for rules in ("qnnpack", "onednn", "onnx")),
    ],
)
def test_auto_is_run_by_the_rules_of_every_engine(name: str, rules: str) -> None:
    module = model_of(name, rules).to_torch()
    same, total = equal(call(module, inputs_of(name)), expected_of(name, rules))
    tell(f"{name}, {rules}: {same} of {total} outputs of auto equal; {len(module.report())} nodes fell back")
    assert same == total


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", ["clip-low", "clip-high", "clip-both"])
def test_kernels_clip_by_one_bound_or_two(name: str, kernels: str) -> None:
    """QNNPACK's kernel requires both bounds."""
    with qfmt.load(ROOT / "tests" / "golden" / "1.0" / "float" / f"{name}.qfb") as model:
        x = model.vectors[0].inputs["x"].array
        got = model.to_torch(f"native:{kernels}")(torch.from_numpy(x.copy()))
        (expected,) = model.run({"x": x}).values()
    assert np.array_equal(got.numpy(), expected)


@pytest.mark.skipif("qnnpack" not in KERNELS, reason="this torch has no qnnpack")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("linear-integer-bias-uint8", "weights of int8, not uint8"),
        ("conv-transpose-float-bias", "a scale for each output channel"),
        ("clip-crossed", "ranges of two integers or more"),
    ],
)
def test_what_qnnpack_cannot_run_is_known_in_advance(name: str, reason: str) -> None:
    """torch packs the parameters, and fails when the kernel runs."""
    with qfmt.load(ROOT / "tests" / "golden" / "1.0" / "float" / f"{name}.qfb") as model:
        module = model.to_torch("native:qnnpack")
        (row,) = module.report()
        assert reason in row.reason
        for vector in model.vectors:
            given = [torch.from_numpy(value.array.copy()) for value in vector.inputs.values()]
            assert np.array_equal(module(*given).numpy(), vector.outputs["y"].array)


REFERENCE_WITHOUT_DEPRECATED_DTYPES = """
import sys, warnings
warnings.simplefilter("error")
import torch
def refuse(*args, **kwargs):
    raise AssertionError("a deprecated dtype was made")
for name in ("quantize_per_tensor", "quantize_per_channel", "_make_per_tensor_quantized_tensor",
             "_make_per_channel_quantized_tensor", "_empty_affine_quantized"):
    setattr(torch, name, refuse)
import qfmt
model = qfmt.convert(sys.argv[1])
for engine in ("reference", "onednn", "qdq"):
    module = model.to_torch(engine)
    assert "quint8" not in module.code and "qint8" not in module.code
    module(torch.zeros(1, 1, 8, 8))
"""


def test_plain_engines_make_no_deprecated_tensor() -> None:
    command = [sys.executable, "-c", REFERENCE_WITHOUT_DEPRECATED_DTYPES, str(DIGITS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


NATIVE = [
    pytest.param(name, kernels, marks=pytest.mark.slow if turn and (place + turn) % 3 else (), id=f"{name}-{kernels}")
    for place, name in enumerate(NAMES)
    for turn, kernels in enumerate(KERNELS)
]
"""Every network with the first kernels, and with one of the others, by turns; with the rest it is slow."""


@pytest.mark.filterwarnings("ignore:All inputs of this cat operator must share the same quantization parameters")
@pytest.mark.filterwarnings("ignore:Quantized Adaptive Average Pool 3D is not implemented for QNNPACK")
@pytest.mark.parametrize(("name", "kernels"), NATIVE)
def test_native_is_the_source(name: str, kernels: str) -> None:
    inputs = inputs_of(name)
    try:
        expected = [call(Source(name, kernels), inputs) for _ in range(2)]
    except RuntimeError as error:
        pytest.skip(f"torch itself does not run it with {kernels}: {str(error).strip().splitlines()[-1]}")
    module = model_of(name).to_torch(f"native:{kernels}")
    assert module.engine == f"native:{kernels}"
    got = call(module, inputs)
    same, total = equal(got, expected[0])
    steady = [(name, kernels) not in UNSTEADY and np.array_equal(a, b) for a, b in zip(*expected, strict=True)]
    print(f"{name} {kernels}: {same} of {total} outputs equal, {len(module.report())} nodes fell back")
    for mine, theirs, is_steady in zip(got, expected[0], steady, strict=True):
        if is_steady:
            np.testing.assert_array_equal(mine, theirs)
        else:
            print(f"an output of {theirs.size} is not compared: torch gives others each time")
    assert any(steady) or (name, kernels) in UNSTEADY


UNSTEADY = {("conv3d", "qnnpack")}
"""Cases that torch 2.13 computes differently in each run."""


class Source:
    """The source in torch, packed for and run with these kernels."""

    def __init__(self, name: str, kernels: str) -> None:
        self.kernels = kernels
        data = io.BytesIO(archive(name))  # made before: to make a network sets the kernels, too
        self.module = self._with_kernels(lambda: torch.jit.load(data))

    def __call__(self, *inputs: torch.Tensor) -> object:
        return self._with_kernels(lambda: self.module(*inputs))

    def _with_kernels(self, function: Callable[[], Any]) -> Any:
        torch.backends.quantized.engine = self.kernels
        try:
            return function()
        finally:
            torch.backends.quantized.engine = "fbgemm"


@pytest.mark.parametrize("name", NAMES)
def test_onednn_is_the_affine_rule(name: str) -> None:
    model, inputs = model_of(name, "onednn"), inputs_of(name)
    module = model.to_torch("onednn")
    same, total = equal(call(module, inputs), expected_of(name, "onednn"))
    print(f"{name}: {same} of {total} outputs equal; {len(module.report())} of {len(model.nodes)} nodes fell back")
    assert same == total or ties_of_nodes(model, inputs, "onednn")


def ties_of_nodes(model: Model, inputs: pytorch.Inputs, engine: str) -> int:
    """How many outputs of single nodes are ties, which later nodes spread; all others must be equal. The networks
    depend on the processor and the placement of memory: calibration sums floats."""
    values: dict[str, np.ndarray] = {}
    given = dict(zip(model.graph.inputs, (tensor.numpy() for tensor in inputs), strict=True))
    kept, found = dict(given), Counts()
    for node in trace(model, given, values):
        kept |= {name: values[name] for name in node.outputs}
        read = [name for name in dict.fromkeys(node.inputs) if name in kept]
        part = model.subgraph(inputs=read, outputs=node.outputs[:1])
        (theirs,) = call(part.to_torch(engine), tuple(torch.from_numpy(kept[name]) for name in part.graph.inputs))
        output = model.tensors[node.outputs[0]]
        operands = operands_of(node, kept, model.tensors)
        found = found.plus(classify(node, operands, output, kept[output.name], theirs, engine))
    tell(f"node by node: {found}")
    assert found.wrong == 0
    return found.tie


@pytest.mark.slow
def test_onednn_is_the_affine_rule_but_for_ties(tmp_path: Path) -> None:
    """MobileNetV2, calibrated with inputs of different sizes, so that it has other scales each time."""
    name, ties = "mobilenet_v2", 0
    for number in range(12):
        network, inputs = pytorch.quantize(name, "fx", scale=1 + number / 1000)
        model = qfmt.convert(pytorch.save_as(network, inputs, "trace", tmp_path / "m.pt"), engine="onednn")
        same, total = equal(call(model.to_torch("onednn"), inputs), run(model, inputs))
        ties += 0 if same == total else ties_of_nodes(model, inputs, "onednn")
    tell(f"{name}: {ties} ties in 12 networks")


@pytest.mark.parametrize("name", HALF)
def test_qdq_can_be_exported(name: str) -> None:
    model, inputs = model_of(name), inputs_of(name)
    module = model.to_torch("qdq")
    got = call(module, inputs)
    exported = torch.export.export(module, inputs, strict=False)
    same, total = equal(call(exported.module(), inputs), got)
    assert same == total
    near = sum(int(np.isclose(a, b, atol=0.1, rtol=0.02).sum()) for a, b in zip(got, expected_of(name), strict=True))
    print(f"{name}: {same} of {total} equal after export; {near} of {total} near those of the integers")
    # Floats round otherwise than the engine does, and deep networks move apart; unrelated ones are near by chance only.
    assert near > total // 2


def test_qdq_is_exported_strictly_with_a_free_batch() -> None:
    model, (image,) = model_of("resnet18"), inputs_of("resnet18")
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(model.to_torch("qdq"), (image,), dynamic_shapes=({0: batch},), strict=True)
    larger = torch.cat([image, image + 0.1, image - 0.1])
    same, total = equal(call(exported.module(), (larger,)), call(model.to_torch("qdq"), (larger,)))
    print(f"batch of {len(larger)}: {same} of {total} equal")
    assert same == total
    targets = {str(node.target) for node in exported.graph.nodes if node.op == "call_function"}
    assert "quantized_decomposed.dequantize_per_channel.default" in targets


@pytest.mark.filterwarnings("ignore")  # Inductor's warnings are about its own code
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_qdq_compiles_to_integer_kernels() -> None:
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    model, inputs = model_of("mobilenet_v2"), inputs_of("mobilenet_v2")
    module = model.to_torch("qdq")
    with torch.no_grad(), config.patch(freezing=True):
        compiled = torch.compile(module)
        result, sources = run_and_get_code(compiled, *inputs)
    integer = sum(source.count("onednn.qconv") + source.count("onednn.qlinear") for source in sources)
    near = float((result - module(*inputs)).abs().max())
    print(f"{integer} calls of integer kernels; largest difference to the module itself {near:.3g}")
    assert integer >= 50
    assert near < 0.2


@pytest.mark.parametrize("engine", ["reference", "native", "onednn", "qdq", "auto"])
def test_batch_size_is_free(engine: str) -> None:
    model, (image,) = model_of("shufflenet_v2"), inputs_of("shufflenet_v2")
    module = model.to_torch(engine)
    whole = call(module, (torch.cat([image, image]),))[0]
    parts = [call(module, (image[index : index + 1],))[0] for index in range(len(image))]
    assert whole.shape[0] == 2 * len(image)
    same, total = equal([whole], [np.concatenate(parts + parts)])
    assert same == total


EMPTY = {
    "conv1d": (torch.nn.Conv1d(3, 5, 3), (0, 3, 9), (0, 5, 7)),
    "linear of three dimensions": (torch.nn.Linear(3, 5), (0, 7, 3), (0, 7, 5)),
    "no rows": (torch.nn.Linear(3, 5), (2, 0, 3), (2, 0, 5)),
}
"""Layer, shapes of its input and output."""


@pytest.mark.parametrize("engine", ["reference", "auto", "fast"])
@pytest.mark.parametrize("kind", EMPTY)
def test_results_without_elements_have_their_dimensions(kind: str, engine: str) -> None:
    """Kernels of oneDNN add and drop dimensions."""
    layer, given, wanted = EMPTY[kind]
    net = torch.nn.Sequential(tq.QuantStub(), layer, tq.DeQuantStub()).eval()
    net.qconfig = tq.get_default_qconfig("onednn")
    example, x = torch.ones([size or 2 for size in given]), torch.ones(given)
    with pytorch.quiet():
        prepared = tq.prepare(net)
        prepared(example)
        model = qfmt.convert(torch.jit.trace(tq.convert(prepared), example), engine="onednn")
    assert run(model, (x,))[0].shape == wanted
    assert call(model.to_torch(engine), (x,))[0].shape == wanted


@pytest.mark.skipif(len(KERNELS) < 2, reason="this torch has one set of kernels")
def test_native_keeps_its_kernels() -> None:
    """Those of torch's setting when it is made, if the model has no engine of torch."""
    model = qfmt.convert(DIGITS).replace(engine="")
    first, second = KERNELS[:2]
    torch.backends.quantized.engine = first
    try:
        module = model.to_torch("native")
        torch.backends.quantized.engine = second
        copies = copy.deepcopy(module), pickle.loads(pickle.dumps(module))
        module.load_state_dict(module.state_dict())
        assert {each.engine for each in (module, *copies)} == {f"native:{first}"}
    finally:
        torch.backends.quantized.engine = "fbgemm"


@pytest.mark.skipif(len(KERNELS) < 2, reason="this torch has one set of kernels")
def test_kernels_of_a_thread_are_not_those_of_others() -> None:
    """torch's setting is of the process."""
    model = qfmt.convert(DIGITS).replace(engine="")
    began, end = threading.Event(), threading.Event()
    found: list[str] = []
    before, other = torch.backends.quantized.engine, next(name for name in KERNELS if name != "fbgemm")

    def hold() -> None:
        with quantized_kernels(other):
            began.set()
            end.wait()

    def make() -> None:
        found.append(model.to_torch("native").engine)

    holder, maker = threading.Thread(target=hold), threading.Thread(target=make)
    holder.start()
    began.wait()
    assert torch.backends.quantized.engine == other
    if hasattr(os, "fork"):
        assert end_of_fork(lambda: os._exit(torch.backends.quantized.engine != before)) == 0
    maker.start()
    end.set()
    maker.join()
    holder.join()
    assert found == [f"native:{before}"]


def test_auto_reports_its_engine() -> None:
    module = model_of("resnet18").to_torch()
    assert module.engine == "auto"
    assert {row.computed_by for row in module.report()} <= {"reference"}
    assert module.engine in str(module.report())
    assert module.engine in repr(module)


def test_digits_by_every_engine() -> None:
    """360 held-back images; the outputs of torch with fbgemm are stored with them."""
    stored = np.load(HELD_BACK)
    x, theirs = torch.from_numpy(stored["x"]), [stored["outputs"]]
    model, affine = qfmt.convert(DIGITS), qfmt.convert(DIGITS, engine="onednn")
    expected = {"reference": theirs, "native:fbgemm": theirs, "auto": theirs, "onednn": run(affine, (x,))}
    for engine, outputs in expected.items():
        same, total = equal(call((affine if engine == "onednn" else model).to_torch(engine), (x,)), outputs)
        print(f"{engine}: {same} of {total} outputs equal")
        assert same == total
    # In floats some outputs move by a step, so only the accuracy is as that of the source: 95 % or more, as README says
    right = int((call(model.to_torch("qdq"), (x,))[0].argmax(1) == stored["labels"]).sum())
    print(f"qdq: {right} of {len(x)} digits right")
    assert right >= 0.95 * len(x)


def test_published_mobilenet(shared_data: Path) -> None:
    path = shared_data / "torchscript" / "ios_mobilenet_quantized.pt"
    model = qfmt.convert(path)
    image = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(5))
    expected = run(model, (image,))
    same, total = equal(call(model.to_torch("reference"), (image,)), expected)
    print(f"reference: {same} of {total} outputs equal to run")
    assert same == total
    for kernels in KERNELS:
        torch.backends.quantized.engine = kernels
        theirs = call(torch.jit.load(path), (image,))
        torch.backends.quantized.engine = "fbgemm"
        same, total = equal(call(model.to_torch(f"native:{kernels}"), (image,)), theirs)
        print(f"native:{kernels}: {same} of {total} outputs equal to torch's")
        assert same == total
    assert qfmt.convert(model.to_torch("native")).content_id() == model.content_id()


# Dynamic quantization, embeddings


class Recurrent(torch.nn.Module):
    """Layers in both directions, batch first and not, with linear layers around them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(12, 16)
        self.lstm = torch.nn.LSTM(16, 10, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = torch.nn.GRU(20, 9, bidirectional=True)
        self.last = torch.nn.Linear(18, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, (hidden, _) = self.lstm(torch.relu(self.first(x)))
        z, _ = self.gru(y)
        return self.last(z), hidden


class Tables(torch.nn.Module):
    """8-bit embeddings, and 8-bit and 4-bit embedding bags."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        weight = torch.randn(30, 16)
        kinds = {"eight": torch.quint8, "four": torch.quint4x2}
        for name, kind in kinds.items():
            observer = tq.PerChannelMinMaxObserver(
                dtype=kind, qscheme=torch.per_channel_affine_float_qparams, ch_axis=0
            )
            observer(weight)
            scales, points = observer.calculate_qparams()
            packed = torch.quantize_per_channel(weight, scales, points, 0, kind)
            bag = nnq.EmbeddingBag(30, 16, mode="sum", include_last_offset=True, dtype=kind)
            bag.set_weight(packed)
            self.add_module(name, bag)
            if kind == torch.quint8:
                self.rows = nnq.Embedding(30, 16)
                self.rows.set_weight(packed)

    def forward(self, indices: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.rows(indices), self.eight(indices, offsets), self.four(indices, offsets)


def test_no_bag_of_a_matrix_is_omitted(tmp_path: Path) -> None:
    """torch's kernel takes the last one for the end of the offsets."""
    table = torch.nn.EmbeddingBag(30, 16, mode="sum", include_last_offset=True).eval()
    table.qconfig = tq.float_qparams_weight_only_qconfig
    indices = torch.arange(12).reshape(4, 3)
    path = pytorch.save_as(tq.convert(tq.prepare(torch.nn.Sequential(table))), (indices,), "trace", tmp_path / "m.pt")
    model = qfmt.convert(path)
    (wanted,) = model.run({model.graph.inputs[0]: indices.numpy()}).values()
    assert wanted.shape == (4, 16)
    np.testing.assert_array_equal(model.to_torch()(indices).numpy(), wanted)


@cache
def dynamic(name: str, kernels: str) -> tuple[Model, pytorch.Inputs, list[np.ndarray]]:
    """The model, inputs, and the outputs of the source with these kernels."""
    torch.manual_seed(1)
    torch.backends.quantized.engine = kernels
    try:
        if name == "tables":
            source: torch.nn.Module = Tables()
            inputs: pytorch.Inputs = (torch.randint(0, 30, (11,)), torch.tensor([0, 2, 2, 7, 11]))
        else:
            kind = torch.qint8 if name == "int8" else torch.float16
            source = tq.quantize_dynamic(Recurrent().eval(), {torch.nn.LSTM, torch.nn.GRU, torch.nn.Linear}, dtype=kind)
            inputs = (torch.randn(3, 7, 12),)
        with TemporaryDirectory() as folder:
            path = pytorch.save_as(source, inputs, "trace", Path(folder) / "m.pt")
            model = qfmt.convert(path, engine=kernels)
        return model, inputs, call(source, inputs)
    finally:
        torch.backends.quantized.engine = "fbgemm"


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", ["int8", "float16", "tables"])
def test_dynamic_networks(name: str, kernels: str) -> None:
    try:
        model, inputs, expected = dynamic(name, kernels)
    except RuntimeError as error:
        pytest.skip(f"torch itself does not run it with {kernels}: {str(error).strip().splitlines()[-1]}")
    module = model.to_torch(f"native:{kernels}")
    same, total = equal(call(module, inputs), expected)
    print(f"{name} {kernels}: {same} of {total} outputs equal to torch's; {module.report()}")
    assert same == total
    assert len(module.report()) == 0
    assert qfmt.convert(module).content_id() == model.content_id()
    same, total = equal(call(model.to_torch("reference"), inputs), run(model, inputs))
    assert same == total
    for mine, theirs in zip(call(model.to_torch("onednn"), inputs), run(model, inputs), strict=True):
        if name == "float16":  # sums of floats, in the order of the processor
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)
        else:
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("engine", ["auto", "fast", "native", "native:qnnpack", "onednn", "reference"])
def test_bags_that_do_not_fit_are_refused(engine: str) -> None:
    """The kernels of torch read beyond their arrays."""
    model, (indices, _), _ = dynamic("tables", "fbgemm")
    module = model.to_torch(engine)
    for offsets in [0, -(10**9), 11], [0, 5, 3, 11], [0, 10**6], [2, 11]:
        with pytest.raises(
            RunError, match=r"node .*\(qfmt.EmbeddingBag\): offsets of bags begin with 0, grow, and end at"
        ):
            module(indices, torch.tensor(offsets))


def test_bags_that_do_not_fit_are_refused_in_a_trace() -> None:
    model, (indices, offsets), _ = dynamic("tables", "fbgemm")
    module = model.to_torch("native")
    traced = torch.jit.trace(module, (indices, offsets))
    other = indices[:7], torch.tensor([0, 3, 3, 5, 7])
    assert all(torch.equal(a, b) for a, b in zip(traced(*other), module(*other), strict=True))
    for bad in [0, -(10**9), 11], [0, 5, 3, 11], [0, 10**6], [2, 11]:
        with pytest.raises(RuntimeError, match=r"out of bounds: -1|the last offset value should be"):
            traced(indices, torch.tensor(bad))
    for engine in "reference", "onednn", "qdq":
        with pytest.raises(RunError, match="is computed by NumPy, which a trace does not record"):
            torch.jit.trace(model.to_torch(engine), (indices, offsets))


@pytest.mark.parametrize("kernels", ["fbgemm", "qnnpack"])
@pytest.mark.parametrize("kind", ["static", "dynamic", "LSTM"])
def test_features_that_do_not_fit_the_weights_are_refused(kind: str, kernels: str, tmp_path: Path) -> None:
    """The script states no sizes. Some kernels of torch read beyond the input, or divide by zero."""
    with quantized_kernels(kernels), pytorch.quiet():
        if kind == "static":
            layers = nnq.Quantize(0.1, 3, torch.quint8), nnq.Linear(8, 4), nnq.DeQuantize()
            source: torch.nn.Module = torch.nn.Sequential(*layers)
        else:
            layer = torch.nn.LSTM(8, 4) if kind == "LSTM" else torch.nn.Linear(8, 4)
            source = tq.quantize_dynamic(torch.nn.Sequential(layer), {type(layer)})
        torch.jit.save(torch.jit.script(source), tmp_path / "m.pt")
    model, shape = qfmt.convert(tmp_path / "m.pt", engine=kernels), (3, 2) if kind == "LSTM" else (2,)
    for engine in "auto", "fast", "native", f"native:{kernels}", "onednn", "reference", "qdq":
        module = model.to_torch(engine)
        module(torch.ones(*shape, 8))
        for features in 0, 1, 4, 64:
            with pytest.raises((RuntimeError, RunError)):
                module(torch.ones(*shape, features))


class Cut(torch.nn.Module):
    """A cell that gets as many features of an input, and of its state, as other inputs have elements."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(8, 6)

    def forward(self, x: torch.Tensor, h: torch.Tensor, n: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.cell(x[:, : n.shape[0]], h[:, : k.shape[0]])
        return result


@pytest.mark.parametrize("kernels", ["fbgemm", "qnnpack"])
def test_features_of_cells_that_only_the_run_tells(kernels: str, tmp_path: Path) -> None:
    with quantized_kernels(kernels), pytorch.quiet():
        source = tq.quantize_dynamic(Cut(), {torch.nn.GRUCell})
        torch.jit.save(torch.jit.script(source), tmp_path / "m.pt")
    sizes = {"x": ["B", "X"], "h": ["B", "H"], "n": ["N"], "k": ["K"]}
    model = qfmt.convert(tmp_path / "m.pt", engine=kernels, input_shapes=sizes)
    for engine in "auto", "fast", "native", f"native:{kernels}", "onednn", "reference":
        module = model.to_torch(engine)
        module(torch.ones(2, 9), torch.ones(2, 9), torch.ones(8), torch.ones(6))
        for x, h in (3, 6), (0, 6), (800, 6), (8, 3), (8, 600):
            with pytest.raises((RuntimeError, RunError)):
                module(torch.ones(2, 800), torch.ones(2, 600), torch.ones(x), torch.ones(h))


class CutImage(torch.nn.Module):
    """A layer that gets as many channels as another input has elements."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.quant, self.layer, self.dequant = nnq.Quantize(0.1, 3, torch.quint8), layer, nnq.DeQuantize()

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.dequant(self.layer(self.quant(x)[:, : n.shape[0]]))
        return result


IMAGE_LAYERS = {
    "Conv1d": lambda: (nnq.Conv1d(4, 3, 1), (6,)),
    "Conv2d": lambda: (nnq.Conv2d(4, 3, 3), (6, 6)),
    "Conv2d, groups": lambda: (nnq.Conv2d(4, 4, 1, groups=2), (6, 6)),
    "ConvTranspose2d": lambda: (nnq.ConvTranspose2d(4, 3, 3), (6, 6)),
}


@pytest.mark.parametrize("kernels", ["fbgemm", "qnnpack"])
@pytest.mark.parametrize("name", IMAGE_LAYERS)
def test_channels_that_only_the_run_tells(name: str, kernels: str, tmp_path: Path) -> None:
    """QNNPACK checks those of the first call only."""
    with quantized_kernels(kernels), pytorch.quiet():
        layer, size = IMAGE_LAYERS[name]()
        torch.jit.save(torch.jit.script(CutImage(layer)), tmp_path / "m.pt")
    shapes = {"x": ["B", "C", *size], "n": ["N"]}
    model, x = qfmt.convert(tmp_path / "m.pt", engine=kernels, input_shapes=shapes), torch.rand(2, 8, *size)
    (wanted,) = model.run({"x": x.numpy(), "n": np.ones(4, np.float32)}).values()
    for engine in "auto", "fast", "native", f"native:{kernels}", "onednn", "reference":
        module = model.to_torch(engine)
        if engine == "auto":
            np.testing.assert_array_equal(module(x, torch.ones(4)).numpy(), wanted)
        module(x, torch.ones(4))
        for channels in 0, 1, 2, 8:
            with pytest.raises((RuntimeError, RunError)):
                module(x, torch.ones(channels))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", ["GRUCell", "RNNCell"])
def test_dynamic_cells_need_no_fallback(name: str, kernels: str) -> None:
    """torch quantizes their inputs to 7 bits, with QNNPACK to 8, and so does its own cell in the module."""
    torch.manual_seed(4)
    torch.backends.quantized.engine = kernels
    try:
        cell = getattr(torch.nn, name)
        source = tq.quantize_dynamic(torch.nn.ModuleList([cell(6, 5)]).eval(), {cell})[0]
        inputs = torch.randn(7, 6), torch.randn(7, 5)
        expected = call(source, inputs)
        with TemporaryDirectory() as folder:
            model = qfmt.convert(pytorch.save_as(source, inputs, "trace", Path(folder) / "m.pt"), engine=kernels)
    finally:
        torch.backends.quantized.engine = "fbgemm"
    module = model.to_torch(f"native:{kernels}")
    same, total = equal(call(module, inputs), expected)
    print(f"{name} {kernels}: {same} of {total} outputs equal to torch's")
    assert same == total
    assert not module.report()
