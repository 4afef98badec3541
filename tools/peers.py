"""Test other converters on the ONNX files of README.md's table, and write tools/peers.json.

    pip install onnx2torch onnx2pytorch   # and a matching torchvision, in a separate environment
    python tools/peers.py

Each converts the unchanged file to a module. Its outputs are compared with those of ONNX Runtime without
optimizations: "yes" means that the largest difference is below a hundredth of the largest output.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from conversions import OPSET, OTHERS, PEERS, ROWS  # adds the project to the path


def let_torchvision_be_imported() -> None:
    """Make torchvision importable, which both converters import. The kernels in its wheel need GPU libraries.
    Without them the import fails, unless the operators that it registers shapes for exist. These networks do not use
    them."""
    import torch

    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):  # it exists
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def onnx2torch(model: Any) -> Any:
    from onnx2torch import convert

    return convert(model)


def onnx2pytorch(model: Any) -> Any:
    from onnx2pytorch import ConvertModel

    return ConvertModel(model)


def tried(convert: Callable[[Any], Any], path: Path) -> str:
    """The cell: "yes", or the reason why not."""
    import numpy as np
    import onnx
    import torch

    from networks import onnx_runtime
    from support import onnx_witness

    model = onnx.load(path)
    given = onnx_runtime.inputs(model, 3)
    try:
        module = convert(model).eval()
    except Exception as error:
        return f"no: {_first(error)}"
    try:
        with torch.no_grad():
            got = module(*(torch.from_numpy(array) for array in given.values()))
    except Exception as error:
        return f"no, when run: {_first(error)}"
    (wanted,) = onnx_witness.runtime(str(path), given)
    largest = float(np.abs(got.numpy() - wanted).max() / np.abs(wanted).max())
    return "yes" if largest < 0.01 else f"other outputs, by {largest:.0%}"


def _first(error: Exception) -> str:
    first = (str(error).strip() or "no reason").splitlines()[0].replace("|", "/")
    lacking = re.search(r"operation_type='(\w+)', version=(\d+)", first) or re.search(r"op_type=(\w+)()", first)
    if lacking is not None:
        return f"lacks {lacking[1]}" + (f" of opset {lacking[2]}" if lacking[2] else "")
    sentence = first.partition(". ")[0]
    return f"{type(error).__name__}, {sentence[:50]}"


def _float_networks() -> Iterator[tuple[str, Path]]:
    """The same networks before quantization, to test that the converters work here."""
    import onnx

    from networks import onnx_runtime

    with tempfile.TemporaryDirectory() as folder:
        for name in onnx_runtime.NETWORKS:
            onnx.save(onnx_runtime.network(name, OPSET), Path(folder) / "m.onnx")
            yield name, Path(folder) / "m.onnx"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    warnings.simplefilter("ignore")
    let_torchvision_be_imported()
    for other in OTHERS:
        importlib.import_module(other)  # an import error is not a result
    converters = {"onnx2torch": onnx2torch, "onnx2pytorch": onnx2pytorch}
    rows = {}
    for name, make in ROWS.items():
        if name.startswith("ONNX"):
            with tempfile.TemporaryDirectory() as folder:
                path = make(Path(folder))
                rows[name] = {other: tried(converters[other], path) for other in OTHERS}
    floats = {name: {other: tried(converters[other], path) for other in OTHERS} for name, path in _float_networks()}
    versions = {other: importlib.metadata.version(other) for other in OTHERS}
    text = json.dumps({"versions": versions, "rows": rows, "not quantized": floats}, indent=2, ensure_ascii=False)
    PEERS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
