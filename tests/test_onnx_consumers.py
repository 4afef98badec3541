"""Other programs read the ONNX that qfmt writes: TVM and OpenVINO. Skipped where they are not installed.

Passed with apache-tvm 0.27.0.post1 and openvino 2026.4.1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_networks
import onnx_witness
import pytest

import qfmt

OPSET = 17

CASES = [
    ("cnn", "qdq u8s8"),
    ("cnn", "qdq u8s8 per channel"),
    ("generator", "qdq s8s8 per channel"),
    ("transformer", "qdq u8s8"),
    ("mlp", "qdq u8s8"),
    ("mlp", "dynamic"),
]


def by_tvm(model: onnx.ModelProto, given: dict[str, Any]) -> Any:
    tvm = pytest.importorskip("tvm", reason="needs apache-tvm")
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    module = relax.transform.LegalizeOps()(from_onnx(model, keep_params_in_input=False))
    machine = relax.VirtualMachine(relax.build(module, target="llvm"), tvm.cpu())
    out = machine["main"](*map(tvm.runtime.tensor, given.values()))
    return (out if hasattr(out, "numpy") else out[0]).numpy()


def by_openvino(model: onnx.ModelProto, given: dict[str, Any]) -> Any:
    openvino = pytest.importorskip("openvino", reason="needs openvino")
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model.SerializeToString(), b""), "CPU")
    return next(iter(compiled(list(given.values())).values()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("runs", [by_tvm, by_openvino])
@pytest.mark.parametrize(("name", "form"), CASES)
def test_it_is_read_as_the_source_is(name: str, form: str, runs: Any, tmp_path: Path) -> None:
    path = onnx_networks.dynamic(name, tmp_path) if form == "dynamic" else onnx_networks.static(name, form, tmp_path)
    source, back = onnx.load(path), qfmt.convert(path).to_onnx(opset=OPSET)
    given = onnx_networks.inputs(source, 3)
    mine, theirs = runs(back, given), runs(source, given)
    (wanted,) = onnx_witness.runtime(back, given)
    print(f"{name} {form}, {runs.__name__}: {(mine == theirs).sum()} of {mine.size} as from the source, "
          f"{(mine == wanted).sum()} as ONNX Runtime has them")  # fmt: skip
    largest = np.abs(theirs).max()
    assert np.abs(mine - theirs).max() <= 0.03 * largest
    if runs is by_tvm:
        assert np.abs(mine - wanted).max() <= 0.03 * largest
