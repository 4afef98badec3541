"""The seeds: small files of every kind, from the conformance suite and from layers that torch quantizes."""

from __future__ import annotations

import io
import json
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import qfmt
from qfmt.errors import QfmtError
from qfmt.model import Model

from .batches import Seed

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "tests" / "golden" / "1.0"
SAMPLES = ROOT / "tests" / "samples"
HOSTILE = ROOT / "tests" / "hostile"

LARGEST = 100_000
"""The maximum size in bytes of a seed from a folder."""

KINDS = ("qfb", "float", "integer", "torchscript", "saved", "exported", "safetensors", "onnx", "converted")


def seeds(kind: str, folders: tuple[Path, ...] = ()) -> list[Seed]:
    """The seeds of one of KINDS, and files in these folders with the suffix of one."""
    found = [*_made(kind)]
    suffix = found[0].name.rpartition(".")[2]
    suffixes = {".pt", ".pth", ".pkl"} if suffix == "pt" else {f".{suffix}"}
    for folder in (HOSTILE, *folders):
        paths = [path for path in sorted(folder.rglob("*")) if path.suffix in suffixes]
        found += [Seed(path.name, path.read_bytes()) for path in paths if path.stat().st_size < LARGEST]
    return found


@cache
def _made(kind: str) -> tuple[Seed, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's deprecation warnings
        return (*_MAKERS[kind](),)


def _suite(*levels: str) -> Iterator[Seed]:
    for level in levels:
        for path in sorted((SUITE / level).glob("*.qfb")):
            yield Seed(path.name, path.read_bytes())


def _models(every: int = 1) -> Iterator[tuple[str, Model]]:
    for path in sorted((SUITE / "float").glob("*.qfb"))[::every]:
        yield path.stem, qfmt.load(path)


def _feeds(model: Model) -> tuple[Any, ...]:
    import torch

    tensors = [model.tensors[name] for name in model.graph.inputs]
    sizes = [[size if isinstance(size, int) else 2 for size in tensor.shape or ()] for tensor in tensors]
    return tuple(
        torch.zeros(size, dtype=getattr(torch, tensor.dtype)) for size, tensor in zip(sizes, tensors, strict=True)
    )


# Files by torch


def _torchscript() -> Iterator[Seed]:
    import torch

    for name, module, inputs in _layers():
        for how in ("trace", "script"):
            with suppress(RuntimeError), torch.no_grad():
                made = (
                    torch.jit.trace(module, inputs, check_trace=False) if how == "trace" else torch.jit.script(module)
                )
                buffer = io.BytesIO()
                torch.jit.save(made, buffer)
                yield Seed(f"{name}-{how}.pt", _repacked(buffer.getvalue()))
    yield from (Seed(f"{name}.pt", _archive(code)) for name, code in CODE.items())


def _repacked(data: bytes) -> bytes:
    """An archive without unnecessary entries and padding."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(buffer, "w") as target:
        for name in source.namelist():
            if not name.endswith((".debug_pkl", "serialization_id")):
                target.writestr(zipfile.ZipInfo(name), source.read(name))
    return buffer.getvalue()


CODE = {
    "branches": """\
    if True:
      y = torch.relu(x)
    else:
      y = x
    for i in range(3):
      y = torch.add(y, y)
    s = [torch.size(y, 0), -1]
    return torch.reshape(y, s)
""",
    "containers": """\
    d = {"a": x, "b": torch.relu(x)}
    l = [d["a"], d["b"]]
    t = (torch.cat(l, 0), 1)
    y, n, = t
    while torch.lt(n, 3):
      n = torch.add(n, 1)
    _0 = torch.append(l, y)
    return torch.quantize_per_tensor(torch.cat(l, 0), 0.5, 3, 13)
""",
    "texts": """\
    a = torch.mul("ab", 3)
    b = torch.format("{}{}", a, 1)
    c = torch.len(b)
    q = torch.quantize_per_tensor(x, 0.1, torch.floordiv(c, 2), 13)
    return torch.dequantize(torch.slice(q, 0, 0, 2))
""",
}
"""Bodies of `forward` with constructs that traces of layers lack."""


def _archive(body: str) -> bytes:
    code = f"class M(Module):\n  def forward(self: __torch__.M,\n    x: Tensor) -> Tensor:\n{body}"
    entries = {"data.pkl": b"\x80\x02c__torch__\nM\n)\x81}b.", "constants.pkl": b"\x80\x02).", "version": b"3\n"}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in {**entries, "code/__torch__.py": code.encode()}.items():
            archive.writestr(zipfile.ZipInfo(f"m/{name}"), content)
    return buffer.getvalue()


def _layers() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Quantized layers of torch: name, module, inputs."""
    import torch
    from torch import nn
    from torch.ao.nn import quantized as nnq
    from torch.ao.nn.quantized import dynamic as nnqd

    class Between(nn.Module):
        """A module between quantizing and dequantizing."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.quant = nnq.Quantize(torch.tensor([0.05]), torch.tensor([7]), torch.quint8)
            self.inner, self.dequant = inner, nnq.DeQuantize()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.dequant(self.inner(self.quant(x)))

    class Sums(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.ops.quantized.add(x, torch.relu(x), 0.1, 3)
            z = torch.ops.quantized.mul(y, x, 0.2, 5)
            y = torch.ops.quantized.cat([y, z], 1, 0.1, 3)
            return torch.ops.quantized.add_relu(y, y, 0.3, 0)

    class Moves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = nn.functional.max_pool2d(x, 2)
            x = nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
            a, b = torch.chunk(x.permute(0, 2, 3, 1), 2, dim=1)
            x = torch.stack([a, b], 0)[:, :, 0].unsqueeze(1).flatten(1)
            return torch.clamp(x.mean(1, keepdim=True), 0.0, 6.0)

    class Floats(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.dequantize()
            x = nn.functional.softmax(nn.functional.layer_norm(x, [4]), -1) * torch.sigmoid(x) - x.abs().sum(2, True)
            return torch.quantize_per_tensor(torch.matmul(x, x.transpose(-1, -2)), 0.1, 3, torch.quint8)

    torch.manual_seed(0)
    image, vector, sequence = torch.randn(1, 2, 4, 4), torch.randn(2, 4), torch.randn(3, 1, 4)
    activations = nn.Sequential(nnq.Hardswish(0.1, 3), nnq.LeakyReLU(0.1, 3), nnq.ELU(0.1, 3), nnq.Sigmoid(1 / 256, 0))
    yield "linear", Between(nnq.Linear(4, 3)), (vector,)
    yield "convolution", Between(nn.Sequential(nnq.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nnq.BatchNorm2d(2))), (image,)
    yield "transposed", Between(nnq.ConvTranspose2d(2, 2, 2, stride=2)), (image,)
    yield "volume", Between(nnq.Conv3d(1, 2, 2)), (torch.randn(1, 1, 2, 2, 3),)
    yield "row", Between(nnq.Conv1d(4, 2, 2)), (sequence.transpose(0, 1).transpose(1, 2),)
    yield "activations", Between(activations), (image,)
    yield "norms", Between(nn.Sequential(nnq.InstanceNorm2d(2, None, None, 0.1, 3), nn.AvgPool2d(2))), (image,)
    yield "sums", Between(Sums()), (image,)
    yield "moves", Between(Moves()), (image,)
    yield "floats", Between(Floats()), (image,)
    yield "embedding", nnq.Embedding(6, 4), (torch.tensor([[1, 2]]),)
    yield "dynamic", nn.Sequential(nnqd.Linear(4, 3)), (vector,)
    lstm = torch.ao.quantization.quantize_dynamic(nn.LSTM(4, 2), {nn.LSTM}, dtype=torch.qint8)
    yield "lstm", lstm.eval(), (sequence,)
    gru = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.GRU(4, 2)), {nn.GRU}, dtype=torch.qint8)
    yield "gru", gru[0].eval(), (sequence,)


def _saved() -> Iterator[Seed]:
    """state_dicts and modules, in the formats of new and old versions of torch."""
    import torch
    from torch import fx
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.linear(x)) + 1

    def saved(name: str, value: Any) -> Iterator[Seed]:
        for form, new in (("zip", True), ("old", False)):
            with suppress(RuntimeError, AttributeError, TypeError):
                buffer = io.BytesIO()
                torch.save(value, buffer, _use_new_zipfile_serialization=new)
                data = buffer.getvalue()
                yield Seed(f"{name}-{form}.pt", _repacked(data) if new else data)

    for name, module, _ in _layers():
        yield from saved(f"{name}-state", module.state_dict())
        chain = getattr(module, "inner", module)
        yield from saved(f"{name}-module", torch.nn.Sequential(chain))
    q = torch.quantize_per_channel(torch.randn(3, 4), torch.rand(3) + 0.1, torch.zeros(3), 0, torch.qint8)
    yield from saved("tensors", {"q": q, "w": torch.randn(2, 3).T, "n": 1, "b": torch.zeros(2, dtype=torch.bfloat16)})
    prepared = prepare_fx(Net().eval(), get_default_qconfig_mapping("fbgemm"), (torch.randn(2, 4),))
    prepared(torch.randn(2, 4))
    yield from saved("fx", convert_fx(prepared))
    yield from saved("traced", fx.symbolic_trace(Net()))
    yield from (Seed(path.name, path.read_bytes()) for path in sorted(SAMPLES.glob("*.pt")))


def _exported() -> Iterator[Seed]:
    import torch

    for name, model in _models(every=4):
        with suppress(QfmtError, RuntimeError, KeyError, ValueError, NotImplementedError):
            module, buffer = model.to_torch("qdq"), io.BytesIO()
            torch.export.save(torch.export.export(module, _feeds(model)), buffer)
            yield Seed(f"{name}.pt2", _repacked(buffer.getvalue()))


# Files by other programs


def _safetensors() -> Iterator[Seed]:
    yield Seed("torchao.safetensors", (SAMPLES / "torchao.safetensors").read_bytes())
    arrays = {"w": ("I8", [2, 3], bytes(6)), "s": ("F32", [2], bytes(8)), "b": ("BF16", [2, 1], bytes(4))}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    contents = b""
    for name, (kind, shape, data) in arrays.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(contents), len(contents) + len(data)]}
        contents += data
    text = json.dumps(header).encode()
    yield Seed("small.safetensors", struct.pack("<Q", len(text)) + text + contents)


def _onnx() -> Iterator[Seed]:
    """The suite in ONNX, in both forms, and models with constructs that qfmt does not export."""
    for name, model in _models(every=2):
        for form in ("qdq", "qoperator"):
            with suppress(QfmtError):
                yield Seed(f"{name}-{form}.onnx", model.to_onnx(form=form).SerializeToString())
    for path in sorted((SUITE / "integer").glob("*.qfb"))[::5]:
        with suppress(QfmtError):
            yield Seed(f"{path.stem}.onnx", qfmt.load(path).to_onnx().SerializeToString())
    yield from _by_hand()


def _by_hand() -> Iterator[Seed]:
    """Functions that call functions, graphs in nodes, recurrent layers, operators of ONNX Runtime, constants."""
    from onnx import TensorProto, helper, numpy_helper

    node, value = helper.make_node, helper.make_tensor_value_info
    numbers = np.random.default_rng(0)

    def constant(name: str, array: Any) -> TensorProto:
        return numpy_helper.from_array(np.asarray(array), name)

    def model(name: str, nodes: list[Any], constants: list[TensorProto], shape: list[Any], **more: Any) -> Seed:
        x, y = value("x", TensorProto.FLOAT, shape), value("y", TensorProto.FLOAT, None)
        graph = helper.make_graph(nodes, "g", [x], [y], constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("own", 1)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=10, **more)
        return Seed(f"{name}.onnx", made.SerializeToString())

    grid = [constant("s", np.float32(0.1)), constant("z", np.uint8(3))]
    both = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["d"])]
    opset = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    inner = helper.make_function("own", "F", ["a"], ["b"], [node("Relu", ["a"], ["b"])], opset)
    body = [node("F", ["a"], ["c"], domain="own"), node("Elu", ["c"], ["b"])]
    body[1].attribute.add(name="alpha", ref_attr_name="alpha", type=1)
    outer = helper.make_function("own", "G", ["a"], ["b"], body, opset, ["alpha"])
    call = node("G", ["d"], ["y"], domain="own", alpha=0.5)
    yield model("functions", [*both, call], grid, [1, 4], functions=[inner, outer])
    then, other = (
        helper.make_graph([node(operator, ["d"], ["o"])], operator, [], [value("o", TensorProto.FLOAT, None)])
        for operator in ("Relu", "Neg")
    )
    branch = node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    yield model("branches", [*both, branch], [*grid, constant("c", np.array(True))], [1, 4])
    ends = [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []), value("a", TensorProto.FLOAT, [1, 4])]
    step = [node("Identity", ["c"], ["c2"]), node("Add", ["a", "a"], ["a2"])]
    loop = helper.make_graph(
        step, "loop", ends, [value("c2", TensorProto.BOOL, []), value("a2", TensorProto.FLOAT, None)]
    )
    turns = [constant("n", np.array(3)), constant("t", np.array(True))]
    yield model("loop", [*both, node("Loop", ["n", "t", "d"], ["y"], body=loop)], [*grid, *turns], [1, 4])
    weights = [constant("w", numbers.normal(size=(1, 8, 4)).astype("f4")), constant("r", np.ones((1, 8, 2), "f4"))]
    lstm = node("LSTM", ["d", "w", "r"], ["h", "y"], hidden_size=2)
    yield model("lstm", [*both, lstm], [*grid, *weights], [2, 1, 4])
    packed = [constant("p", np.zeros((3, 1, 16), np.uint8)), constant("ps", np.ones((3,), "f4"))]
    bits = node("MatMulNBits", ["d", "p", "ps"], ["y"], domain="com.microsoft", K=32, N=3, bits=4, block_size=32)
    yield model("few-bits", [*both, bits], [*grid, *packed], [2, 32])
    shapes = [
        node("Shape", ["d"], ["sh"]), node("Gather", ["sh", "i0"], ["g"]), node("Unsqueeze", ["g", "ax"], ["u"]),
        node("Concat", ["u", "rest"], ["to"], axis=0), node("Reshape", ["d", "to"], ["y"]),
    ]  # fmt: skip
    indices = [constant("i0", np.array(0)), constant("ax", np.array([0])), constant("rest", np.array([-1]))]
    yield model("shapes", [*both, *shapes], [*grid, *indices], [2, 4])
    folded = [
        node("ConstantOfShape", ["n"], ["k"]), node("Expand", ["k", "n"], ["e"]),
        node("Range", ["f0", "f4", "f1"], ["r"]), node("Tile", ["r", "n1"], ["t"]),
        node("Add", ["t", "e"], ["a"]), node("Mul", ["d", "a"], ["y"]),
    ]  # fmt: skip
    scalars = [constant(f"f{number}", np.float32(number)) for number in (0, 1, 4)]
    yield model("constants", [*both, *folded], [*grid, *scalars, constant("n", [4]), constant("n1", [1])], [4])


def _converted() -> Iterator[Seed]:
    """Sources that become networks, with the `.qfb` of each."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for kind, every in (("torchscript", 1), ("saved", 3), ("exported", 5), ("onnx", 10)):
            for seed in _made(kind)[::every]:
                path = Path(folder) / seed.name
                path.write_bytes(seed.data)
                with suppress(QfmtError):
                    qfmt.save(qfmt.convert(path), path.with_suffix(".qfb"))
                    yield Seed(f"{seed.name}.src", seed.data, path.with_suffix(".qfb").read_bytes())


_MAKERS: dict[str, Callable[[], Iterator[Seed]]] = {
    "qfb": lambda: _suite("read", "float", "integer"),
    "float": lambda: _suite("float"),
    "integer": lambda: _suite("integer"),
    "torchscript": _torchscript,
    "saved": _saved,
    "exported": _exported,
    "safetensors": _safetensors,
    "onnx": _onnx,
    "converted": _converted,
}
