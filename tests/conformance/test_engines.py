"""Runs the conformance suite in other programs: torch's quantized kernels, ONNX Runtime, and the onnx reference.

The suite states the results of the specification. An engine that is documented to follow a rule must compute the
same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as state

import qfmt
from qfmt import Model
from qfmt.backends.torch.module import Report
from qfmt.backends.torch.values import to_array, to_tensor
from qfmt.errors import InexpressibleNodesError, QfmtError
from support import onnx_kernels, processor
from support.conformance import READABLE, path_of
from support.counts import tell

TORCH = {
    "float_bias": "fbgemm",
    "integer_bias_reciprocal": "qnnpack",
    "affine": "onednn",
    "reciprocal_fma": "fbgemm",
    "premultiplied": "fbgemm",
    "sum": "fbgemm",
    "product": "fbgemm",
    "dynamic_fma": "fbgemm",
    "lookup_float32": "fbgemm",
    "lookup_float16": "fbgemm",
}
"""Rule → the engine of torch that follows it."""

NOT_TAKEN = (state.InvalidArgument, state.InvalidGraph, state.NotImplemented)
"""Exceptions for types that the runtime, or its Python interface, does not support."""

ONNX = {"divide", "integer_bias", "dynamic_divide"}

BEYOND_INT32 = {
    "fixed-point-double-1", "fixed-point-double-30", "fixed-point-single-1", "fixed-point-single-30",
    "mixed-rows", "mixed-rows-none", "multiply-shift-int32", "multiply-shift-shift-0", "power-of-two-0",
}  # fmt: skip
"""Files with numbers beyond int32 before the clamp: ONNX Runtime 1.31 does not clamp these in int64 vectors."""


OTHERWISE = {
    "add-sum-telling": "torch's add_scalar has a grid of its own; quantized::add rounds in another way",
    "linear-affine-telling": "onednn differs at some ties",
    "linear-affine-channels-telling": "the same",
    "linear-integer-bias-overflow": "ONNX Runtime gets the bias as a real number",
    "linear-integer-bias-reciprocal-overflow": "qnnpack converts an infinite bias to int32",
    "linear-integer-bias-exact": "ONNX Runtime gets int16 as real numbers",
    "linear-integer-bias-int32-channels": "the same",
    "linear-integer-bias-int32-near": "ONNX Runtime gets the bias as a real number",
    "resize-crop": "ONNX Runtime does not crop an axis with a scale of 1",
    "resize-nearest-float32": "ONNX Runtime divides by the factor, and does not multiply by f32(in / out)",
    "resize-nearest-float32-floor": "the same",
    "resize-nearest-half": "ONNX Runtime multiplies by in - 1 before it divides by out - 1",
}
"""Files for which an engine does not compute what the specification states, and why."""


def files(level: str) -> Iterator[tuple[str, Model, set[str]]]:
    for entry in READABLE:
        if entry["level"] == level and entry["name"] not in OTHERWISE:
            model = qfmt.load(path_of(entry))
            yield entry["name"], model, {node.rule for node in model.nodes} - {""}


def equal(ours: np.ndarray, theirs: Any) -> int:
    """The number of equal elements; 0 if dtype or shape differ."""
    there = np.asarray(theirs)
    return int((ours == there).sum()) if (ours.shape, ours.dtype) == (there.shape, there.dtype) else 0


@pytest.mark.parametrize("engine", sorted({*TORCH.values()}))
def test_torch_agrees_with_the_suite(engine: str) -> None:
    if engine not in torch.backends.quantized.supported_engines:
        pytest.skip(f"this torch has no {engine}")
    counts: dict[str, list[int]] = {}
    for name, model, rules in files("float"):
        if len(rules) != 1 or TORCH.get(rule := rules.pop()) != engine:
            continue
        try:
            module = model.to_torch(f"native:{engine}")
        except QfmtError:
            continue
        report = module.report()
        assert isinstance(report, Report)
        if len(report):
            continue  # the reference computes it
        for vector in model.vectors:
            given = [value.array for value in vector.inputs.values()]
            made = module(*(torch.from_numpy(np.array(array)) for array in given))
            ours = vector.outputs["y"].array
            if equal(ours, made.numpy()) < ours.size:
                ours = processor.run(model, {key: value.array for key, value in vector.inputs.items()}, engine)["y"]
            numbers = ~np.isnan(given[0]) if given[0].dtype.kind == "f" and given[0].shape == ours.shape else ...
            same = equal(ours[numbers].reshape(-1), made.numpy()[numbers].reshape(-1))
            assert same == ours[numbers].size, (name, vector.name)
            found = counts.setdefault(rule, [0, 0])
            found[0] += same
            found[1] += ours[numbers].size
    assert counts
    for rule, (same, total) in counts.items():
        tell(f"conformance suite, {rule}: {same:,} of {total:,} outputs are those of torch's {engine}")


@pytest.mark.parametrize("level", ["integer", "float"])
def test_auto_agrees_with_the_suite(level: str) -> None:
    """Every output of every file: kernels with other results are not chosen."""
    total = 0
    for name, model, _ in (each for each in files(level) if each[1].vectors):
        module = model.to_torch()
        for vector in model.vectors:
            made = module(*(to_tensor(value.array, value.dtype) for value in vector.inputs.values()))
            results = made if isinstance(made, tuple) else (made,)
            for value, result in zip(vector.outputs.values(), results, strict=True):
                ours, theirs = value.array, to_array(result, value.dtype)
                assert np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f"), (name, vector.name)
                total += ours.size
    assert total > 1000
    tell(f"conformance suite, {level}: {total:,} of {total:,} outputs are those of the engine auto")


@pytest.mark.parametrize("level", ["integer", "float"])
def test_onnx_runtime_agrees_with_the_suite(level: str) -> None:
    total, count, left_out = 0, 0, []
    for name, model, rules in files(level):
        if level == "float" and not rules <= ONNX:
            continue
        try:
            default, same = (session_of(model.to_onnx(same_types=same)) for same in (False, True))
            results = [(run(default, vector.inputs), run(same, vector.inputs)) for vector in model.vectors]
        except (InexpressibleNodesError, *NOT_TAKEN, ValueError, RuntimeError) as error:
            left_out.append(f"{name}: {error}")
            continue
        if name in BEYOND_INT32:
            continue
        count += 1
        for vector, both in zip(model.vectors, results, strict=True):
            given = {key: value.array for key, value in vector.inputs.items()}
            for output, by_default, theirs in zip(model.graph.outputs, *both, strict=True):
                ours = vector.outputs[output].array
                assert equal(ours, theirs) == ours.size, (name, vector.name)
                assert equal(ours, by_default) == ours.size or any(
                    equal(sums[output], by_default) == ours.size for sums in onnx_kernels.saturated(model, given)
                ), (name, vector.name)
                total += 2 * ours.size
    assert count > {"integer": 150, "float": 20}[level]
    tell(
        f"conformance suite, {level}: {total:,} of {total:,} outputs of {count} files are those of ONNX Runtime; "
        f"{len(left_out)} files hold what it does not take"
    )


def session_of(proto: Any) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # threads take longer to start than these networks to run
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, inputs: Any) -> list[Any]:
    names = [each.name for each in session.get_inputs()]
    arrays = [value.array for value in inputs.values()]
    result: list[Any] = session.run(None, dict(zip(names, arrays, strict=True)))
    return result
