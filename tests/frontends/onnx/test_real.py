"""Compares published ONNX files (../shared/data; skipped if absent) with ONNX Runtime, node by node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import qfmt
from qfmt.compare import Report
from qfmt.ops import OPERATORS
from support import processor
from support.counts import tell


class Expected(NamedTuple):
    """The expected results for a file; see README.md in ../shared/data."""

    refused: str = ""
    """Part of the reason if qfmt refuses the file."""
    engine: str = "onnxruntime"
    off_by_one: str = ""
    """The node, if any, that the engine computes with less precision than float32."""
    shapes: Mapping[str, tuple[int, ...]] = {}


TESTDATA = "onnx_ort_testdata"
FILES: dict[str, Expected] = {
    f"{TESTDATA}/conv.int4_weights.qdq.onnx": Expected(),
    f"{TESTDATA}/conv_qdq_external_ini.onnx": Expected(),
    f"{TESTDATA}/conv_qdq_s8s8_perchannel.onnx": Expected(),
    f"{TESTDATA}/conv_qdq_u8u8.onnx": Expected(),
    f"{TESTDATA}/dynamic_quantize_matmul_int8_bias.onnx": Expected(),
    f"{TESTDATA}/dynamic_quantize_matmul_uint8.onnx": Expected(),
    f"{TESTDATA}/float8/te.cast_fp8_1_fp32.onnx": Expected(),
    f"{TESTDATA}/layout_transform_const_folding.qdq.onnx": Expected(),
    f"{TESTDATA}/layout_transform_reshape.qdq.onnx": Expected(),
    f"{TESTDATA}/matmul_integer_to_float_int8.onnx": Expected(),
    f"{TESTDATA}/matmul_integer_to_float_int8_bias_initializer_index0.onnx": Expected(
        shapes={"B": (64, 4), "b_scale": (4,)}
    ),
    f"{TESTDATA}/matmul_integer_to_float_uint8_bias.onnx": Expected(),
    f"{TESTDATA}/nhwc_resize_sizes_opset18.quant.onnx": Expected(),
    f"{TESTDATA}/nnapi_internal_uint8_support.onnx": Expected(),
    f"{TESTDATA}/ort_github_issue_12151_neg_dq_axis.onnx": Expected(),
    f"{TESTDATA}/qdq_with_multi_consumer_dq_nodes.onnx": Expected(),
    f"{TESTDATA}/qdq_with_multi_consumer_q_dq_axis.onnx": Expected(),
    f"{TESTDATA}/qnn_ep_partial_support.onnx": Expected(),
    f"{TESTDATA}/test_conv_follow_convtrans_s8.onnx": Expected(),
    f"{TESTDATA}/transform/fusion/constant_folding_dequantizelinear.qdq16.onnx": Expected(),
    f"{TESTDATA}/transform/fusion/constant_folding_dequantizelinear.qdq_contrib.onnx": Expected(),
    f"{TESTDATA}/transform/fusion/constant_folding_qdq_node_unit.graph_output.qdq16_contrib.onnx": Expected(),
    f"{TESTDATA}/transform/fusion/constant_folding_qdq_node_unit.onnx": Expected(),
    f"{TESTDATA}/transform/fusion/dynamic_quantize_matmul_bias_b_no_zp.onnx": Expected(),
    f"{TESTDATA}/transform/fusion/matmul_integer_to_float16_int8.onnx": Expected(),
    f"{TESTDATA}/transform/fusion/qdq_fusion_int8.onnx": Expected(shapes={"A": (1, 1, 1024, 4096)}),
    f"{TESTDATA}/transform/fusion/qdq_fusion_zp_not_provided.onnx": Expected(shapes={"A": (1, 1, 1024, 4096)}),
    f"{TESTDATA}/transform/qdq_conv.onnx": Expected(),
    f"{TESTDATA}/transform/qdq_optimization/dup_qdq.onnx": Expected(),
    # ONNX Runtime has no DequantizeLinear for bfloat16; onnx's reference divides in bfloat16, qfmt in float32.
    f"{TESTDATA}/transform/qdq_optimization/dup_qdq_bfloat16.onnx": Expected(
        engine="reference", off_by_one="add_input_q"
    ),
    f"{TESTDATA}/transform/qdq_optimization/dup_qdq_float16.onnx": Expected(),
    f"{TESTDATA}/transform/qdq_with_multi_consumer_dq_nodes.fixed.qdq16_contrib.onnx": Expected(),
    f"{TESTDATA}/transform/runtime_optimization/matmulnbits_add.onnx": Expected(),
    f"{TESTDATA}/transform/runtime_optimization/qdq_convs.onnx": Expected(),
    f"{TESTDATA}/transpose_optimizer_cancel_transpose_per_axis_dq.onnx": Expected(),
    f"{TESTDATA}/transpose_optimizer_in_place_transpose_unsqueeze_per_axis_dq.onnx": Expected(),
    f"{TESTDATA}/transpose_optimizer_shared_initializers.onnx": Expected(),
    "onnx_qdq/mobilenetv2_torch1.12/model.onnx": Expected(),
    "onnx_qdq/polygraphy_qdq_conv.onnx": Expected(),
    "onnx_qdq/polygraphy_weightless_qdq_conv.onnx": Expected("its weights were stripped"),
    "onnx_qop/onnx2c/test_qlinearadd_int8.onnx": Expected(),
    "onnx_qop/onnx2c/test_qlinearadd_uint8.onnx": Expected(),
    "onnx_qop/onnx2c/test_qlinearmul_int8.onnx": Expected(),
    "onnx_qop/onnx2c/test_qlinearmul_uint8.onnx": Expected(),
    "onnx_qop/tract_qlstm_3-2-3_T3_S1/model.onnx": Expected(),
    "onnx_qop/tract_qrelu_1/model.onnx": Expected(),
    "onnx_qop/tract_qsigmoid_1/model.onnx": Expected(),
    "onnx_qop/tract_qtanh_1/model.onnx": Expected(),
}
CONVERTED = [name for name, expected in FILES.items() if not expected.refused]
MOBILENET = "onnx_qdq/mobilenetv2_torch1.12"

NOT_RUN = {"ai.onnx.Scan", "ai.onnx.Resize", "com.microsoft.MatMulNBits"}
"""Operators in these files that qfmt has no reference for: they are kept and reported."""


def test_every_file_is_expected(shared_data: Path) -> None:
    there = {str(path.relative_to(shared_data)) for path in shared_data.glob("onnx*/**/*.onnx")}
    assert there == FILES.keys()


@pytest.mark.parametrize("name", [name for name in FILES if FILES[name].refused])
def test_unsupported_files_are_refused_with_the_reason(name: str, shared_data: Path) -> None:
    with pytest.raises(qfmt.QfmtError, match=FILES[name].refused):
        qfmt.convert(shared_data / name)


@pytest.mark.parametrize("name", CONVERTED)
def test_node_by_node_nothing_differs_from_onnx_runtime_but_ties(name: str, shared_data: Path, tmp_path: Path) -> None:
    expected = FILES[name]
    stored = tmp_path / "m.qfb"
    qfmt.save(qfmt.convert(shared_data / name), stored)
    assert qfmt.check(stored) == []
    report = qfmt.verify(shared_data / name, stored, samples=1, engine=expected.engine, input_shapes=expected.shapes)
    print(f"{name}: {told(report)}")
    wrong = [each for each in (*report.nodes, *report.weights) if not each.ok]
    assert report.ok or [(each.name, each.largest) for each in wrong] == [(expected.off_by_one, 1)], wrong
    assert not report.skipped and report.same_source
    assert all(output.outputs for output in report.outputs)
    assert {node.operator for node in report.nodes} <= OPERATORS.keys() | NOT_RUN


OPTIMIZED = [name for name in CONVERTED if FILES[name].engine == "onnxruntime" and not FILES[name].shapes]


@pytest.mark.parametrize("name", [name for name in OPTIMIZED if "multi_consumer_dq_nodes" not in name])
def test_onnx_runtime_with_all_optimizations_differs_in_ties_only(name: str, shared_data: Path) -> None:
    report = qfmt.verify(shared_data / name, qfmt.convert(shared_data / name), samples=1, engine="onnxruntime:all")
    print(f"{name}: {told(report)}")
    assert report.ok, (report.first_wrong, [each for each in (*report.nodes, *report.weights) if not each.ok])


def told(report: Report) -> str:
    kinds = ("outputs", "equal", "tie", "close", "wrong")
    counts = ", ".join(f"{sum(getattr(node, kind) for node in report.nodes):,} {kind}" for kind in kinds)
    asked = sum(len(weight.witnesses) > 1 for weight in report.weights)
    return f"{counts}; {asked} of {len(report.weights)} constants are what onnx reads"


# -- stored outputs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["qrelu_1", "qsigmoid_1", "qtanh_1"])
def test_stored_outputs_of_tract(name: str, shared_data: Path) -> None:
    folder = shared_data / "onnx_qop" / f"tract_{name}"
    with np.load(folder / "io.npz") as stored:
        given, expected = stored["input"], stored["output"]
    model = qfmt.convert(folder / "model.onnx")
    (got,) = model.run({model.graph.inputs[0]: given}).values()
    print(f"{name}: {(got == expected).sum()} of {expected.size} equal")
    assert got.dtype == expected.dtype and np.array_equal(got, expected)


def test_stored_output_of_mobilenet_as_closely_as_onnx_runtime_without_fusion(shared_data: Path) -> None:
    folder = shared_data / MOBILENET
    given, expected = (tensor(folder / "test_data_set_0" / f"{kind}_0.pb") for kind in ("input", "output"))
    model = qfmt.convert(folder / "model.onnx")
    (got,) = model.run({model.graph.inputs[0]: given}).values()
    unfused = run_by_onnx_runtime(folder / "model.onnx", given, optimized=False)
    fused = run_by_onnx_runtime(folder / "model.onnx", given, optimized=True)
    mine, theirs = (int((each == expected).sum()) for each in (got, unfused))
    step = model.tensors[model.nodes[-1].inputs[0]].quantization
    assert step is not None
    largest = np.abs(got - expected).max() / step.scale[0]
    tell(
        f"QDQ MobileNetV2, equal to the stored 1000 outputs: qfmt {mine}, ONNX Runtime without fusion {theirs}, with "
        f"all its optimizations {(fused == expected).sum()}; qfmt is off by at most {largest:.0f} step"
    )
    assert mine >= theirs
    assert got.argmax() == expected.argmax() and largest < 1.5


def test_every_engine_of_pytorch_runs_mobilenet(shared_data: Path) -> None:
    folder = shared_data / MOBILENET
    given = tensor(folder / "test_data_set_0" / "input_0.pb")
    model = qfmt.convert(folder / "model.onnx")
    step = model.tensors[model.nodes[-1].inputs[0]].quantization
    assert step is not None
    exact, native = (processor.run(model, {model.graph.inputs[0]: given}, kernels) for kernels in ("qnnpack", "x86"))
    for engine in ("reference", "onednn", "native", "qdq", "auto"):
        module = model.to_torch(engine=engine)
        (expected,) = (native if engine == "native" else exact).values()  # qnnpack's kernels have exact sums
        with torch.no_grad():
            got = module(torch.tensor(given)).numpy()
        off = np.abs(got - expected).max() / step.scale[0]
        print(f"{engine}: {(got == expected).sum()} of {expected.size} equal, largest difference {off:.0f} steps")
        assert engine != "reference" or np.array_equal(got, expected)
        assert got.argmax() == expected.argmax() and off < 4.5  # engines round differently


def tensor(path: Path) -> Any:
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def run_by_onnx_runtime(path: Path, given: Any, *, optimized: bool) -> Any:
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options)
    return session.run(None, {session.get_inputs()[0].name: given})[0]
