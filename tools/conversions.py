"""Write the table "what converts to what" of README.md from actual conversions; tests/docs/test_conversions.py
checks that it is current.

    python tools/conversions.py            # rewrite the table
    python tools/conversions.py --check

Each row is a quantized network in one kind of file. The columns' cells are "yes" if

- the file converts and is valid;
- `run` equals PyTorch or ONNX Runtime, node by node, except for proven ties;
- the module of PyTorch computes the same bits as `run`;
- ONNX Runtime, not optimized, computes from the exported ONNX what it computes from the source, or, for PyTorch
sources, what `run` computes, except for ties of float32.

tools/peers.json, which tools/peers.py writes, has the results of other converters on the same ONNX files.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

README, PEERS = ROOT / "README.md", ROOT / "tools" / "peers.json"
BEGIN, END = "<!-- conversions: tools/conversions.py -->", "<!-- end of conversions -->"
COLUMNS = (".qfb", "run", "PyTorch", "ONNX")
OTHERS = ("onnx2torch", "onnx2pytorch")

OPSET = 17
"""The opset of the ONNX files: the newest of which the other converters support all float operators."""

Make = Callable[[Path], Path]


def _torch(name: str, mode: str, kind: str) -> Make:
    def make(folder: Path) -> Path:
        import torch

        from networks import pytorch

        torch.backends.quantized.engine = "fbgemm"
        module, inputs = pytorch.quantized(name, mode)
        if kind in ("trace", "script", "freeze"):
            return pytorch.save_as(module, inputs, kind, folder / "m.pt")
        with pytorch.quiet():
            torch.save(module if kind == "pickle" else module.state_dict(), folder / "m.pt")
        return folder / "m.pt"

    return make


def _static(network: str, form: str) -> Make:
    def make(folder: Path) -> Path:
        from networks import onnx_runtime

        return onnx_runtime.static(network, form, folder, OPSET)

    return make


def _dynamic(folder: Path) -> Path:
    from networks import onnx_runtime

    return onnx_runtime.dynamic("mlp", folder)


def _by_blocks(**options: Any) -> Make:
    def make(folder: Path) -> Path:
        from networks import onnx_runtime

        return onnx_runtime.weight_only("mlp", folder, bits=4, block_size=16, is_symmetric=True, **_format(**options))

    return make


def _format(qdq: bool) -> dict[str, Any]:
    from networks import onnx_runtime

    return onnx_runtime.QDQ if qdq else {}


ROWS: dict[str, Make] = {
    "PyTorch, eager mode, TorchScript traced": _torch("resnet18", "eager", "trace"),
    "PyTorch, eager mode, TorchScript scripted": _torch("resnet18", "eager", "script"),
    "PyTorch, FX, TorchScript traced": _torch("resnet18", "fx", "trace"),
    "PyTorch, FX, `torch.save` of the module": _torch("resnet18", "fx", "pickle"),
    "PyTorch, `torch.save` of the state_dict": _torch("resnet18", "fx", "state_dict"),
    "ONNX, QDQ, 8 bits": _static("cnn", "qdq u8s8"),
    "ONNX, QDQ, 8 bits per channel": _static("cnn", "qdq u8s8 per channel"),
    "ONNX, QDQ, transposed convolution": _static("generator", "qdq s8s8 per channel"),
    "ONNX, QDQ, transformer": _static("transformer", "qdq u8s8"),
    "ONNX, QDQ, 16-bit activations": _static("cnn", "qdq s16s8 per channel"),
    "ONNX, QDQ, 4-bit weights": _static("cnn", "qdq int4"),
    "ONNX, QDQ around float weights": _static("cnn", "qdq float weights"),
    "ONNX, QLinear operators": _static("cnn", "qoperator u8s8"),
    "ONNX, dynamic": _dynamic,
    "ONNX, block-wise 4-bit weights, QDQ": _by_blocks(qdq=True),
    "ONNX, block-wise 4-bit weights, MatMulNBits": _by_blocks(qdq=False),
}


def cells(path: Path) -> dict[str, str]:
    """Column → "yes", or the reason why not."""
    import qfmt

    model = qfmt.convert(path)
    model.save(path.with_suffix(".qfb"))
    if qfmt.check(path.with_suffix(".qfb")):
        return dict.fromkeys(COLUMNS, "no")
    stored = qfmt.load(path.with_suffix(".qfb"))
    if stored.no_graph:
        return {".qfb": "tensors", **dict.fromkeys(COLUMNS[1:], "no graph")}
    passed = {
        "run": qfmt.verify(path, stored, samples=1).ok,
        "PyTorch": _same_in_torch(stored),
        "ONNX": _same_in_onnx(stored, path if path.suffix == ".onnx" else None),
    }
    return {".qfb": "yes", **{column: "yes" if ok else "no" for column, ok in passed.items()}}


def _inputs(model: Any) -> dict[str, Any]:
    from qfmt.compare import random_inputs

    shapes = next(iter(random_inputs.shapes(model, {}, [])))
    return next(iter(random_inputs.draw(model, shapes, 1, model.engine)))


def _same_in_torch(model: Any) -> bool:
    import numpy as np
    import torch

    given = _inputs(model)
    with torch.no_grad():
        got = model.to_torch(engine="reference")(*(torch.from_numpy(array) for array in given.values()))
    outputs = model.run(given).values()
    got = got if isinstance(got, tuple) else (got,)
    return all(np.array_equal(mine.numpy(), wanted) for mine, wanted in zip(got, outputs, strict=True))


def _same_in_onnx(model: Any, source: Path | None) -> bool:
    import qfmt
    from support import onnx_witness

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        path.write_bytes(model.to_onnx(**_as(source)).SerializeToString())
        if source is None:
            return bool(qfmt.verify(path, model, samples=1).ok)
        given = _inputs(model)
        pairs = zip(onnx_witness.runtime(str(path), given), onnx_witness.runtime(str(source), given), strict=True)
        return all(mine.tobytes() == theirs.tobytes() for mine, theirs in pairs)


def _as(source: Path | None) -> dict[str, Any]:
    """The form and the opset of a source: ONNX Runtime has other kernels for other opsets."""
    import onnx

    if source is None:
        return {}
    proto = onnx.load(source, load_external_data=False)
    (opset,) = (each.version for each in proto.opset_import if not each.domain)
    is_qoperator = any(node.op_type.startswith("QLinear") for node in proto.graph.node)
    by_blocks = any(node.op_type == "MatMulNBits" for node in proto.graph.node)  # DequantizeLinear since opset 21
    return {"opset": max(opset, 21 if by_blocks else 0), "form": "qoperator" if is_qoperator else "qdq"}


def table() -> str:
    """The table in Markdown."""
    versions = json.loads(PEERS.read_text(encoding="utf-8"))["versions"]
    heads = [f"{name} {versions[name]}" for name in OTHERS]
    lines = [f"| from | {' | '.join((*COLUMNS, *heads))} |", "|---" * (1 + len(COLUMNS) + len(OTHERS)) + "|"]
    return "\n".join([*lines, *map(row, ROWS)]) + "\n"


def row(name: str) -> str:
    """One line of the table."""
    peers = json.loads(PEERS.read_text(encoding="utf-8"))["rows"].get(name, {})
    with tempfile.TemporaryDirectory() as folder:
        found = cells(ROWS[name](Path(folder)))
    return f"| {name} | {' | '.join((*found.values(), *(peers.get(other, '') for other in OTHERS)))} |"


def written(text: str) -> str:
    """The text between the marks in README.md."""
    return text.partition(BEGIN + "\n")[2].partition(END)[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the table is not current")
    check = parser.parse_args().check
    text, new = README.read_text(encoding="utf-8"), table()
    if check:
        return int(written(text) != new)
    README.write_text(text.replace(BEGIN + "\n" + written(text), BEGIN + "\n" + new), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
