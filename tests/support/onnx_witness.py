"""Other programs that run ONNX models: ONNX Runtime, without and with its fusions, and onnx's reference
evaluator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotImplemented_

from qfmt.model import Graph, Model, Node, Tensor

LEVELS = {
    "plain": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "fused": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
"""ONNX Runtime, unoptimized; or with integer kernels instead of the nodes between DQ and Q."""

ABSENT = (NotImplemented_, Fail, InvalidGraph, ValueError, IndexError, TypeError, RuntimeError)
"""Errors for an operator or types without a kernel in ONNX Runtime, or a case that onnx's evaluator lacks."""

Arrays = Mapping[str, np.ndarray]


def runtime(
    model: onnx.ModelProto | str, inputs: Arrays, level: str = "plain", entries: Mapping[str, str] | None = None
) -> list[np.ndarray]:
    """Outputs of ONNX Runtime for a model, or for a file. `entries` configure its session."""
    return loaded(model, level, entries).run(None, dict(inputs))


def loaded(
    model: onnx.ModelProto | str, level: str = "plain", entries: Mapping[str, str] | None = None
) -> ort.InferenceSession:
    """ONNX Runtime with a model, or with a file."""
    options = ort.SessionOptions()
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    options.graph_optimization_level = LEVELS[level]
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    source = model if isinstance(model, str) else model.SerializeToString()
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def evaluator(model: onnx.ModelProto, inputs: Arrays) -> list[np.ndarray]:
    """The outputs of onnx's reference evaluator for a model."""
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, dict(inputs))


@dataclass
class Tally:
    """Counts of output elements by their distance from ours; `close` are floats within the tolerance."""

    equal: int = 0
    one: int = 0
    more: int = 0
    close: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.equal + self.one + self.more + self.close

    def count(self, other: Tally) -> None:
        """Add the counts of another tally."""
        self.equal, self.one = self.equal + other.equal, self.one + other.one
        self.more, self.close = self.more + other.more, self.close + other.close

    def __str__(self) -> str:
        text = f"{self.equal} of {self.total} equal"
        parts = ((self.close, "close"), (self.one, "off by one"), (self.more, "more"))
        return ", ".join([text, *(f"{count} {what}" for count, what in parts if count)])

    def add(self, ours: np.ndarray, theirs: Any, where: str = "", tolerance: float = 1e-5) -> None:
        """Count one output. Floats are equal, close or wrong."""
        theirs = np.asarray(theirs)
        if ours.size == theirs.size == 0:
            return
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            self.faults.append(f"{where}: {ours.dtype}{ours.shape}, theirs {theirs.dtype}{theirs.shape}")
            return
        same = (ours == theirs) | ((ours != ours) & (theirs != theirs))
        with np.errstate(invalid="ignore"):
            distance = np.where(same, 0, np.abs(ours.astype(np.float64) - theirs.astype(np.float64)))
        self.equal += int(same.sum())
        off = ~same
        if ours.dtype.kind == "f":
            largest = np.abs(ours[np.isfinite(ours)]).max(initial=1).astype(np.float64)
            close = off & (distance <= tolerance * largest)
            self.close += int(close.sum())
            off &= ~close
        one = off & (distance <= (ours.dtype.kind != "f"))
        self.one += int(one.sum())
        off &= ~one
        self.more += int(off.sum())
        if off.any():
            at = tuple(int(i) for i in np.argwhere(off)[0])
            self.faults.append(f"{where}{list(at)}: ours {ours[at]}, theirs {theirs[at]}, {off.sum()} of {off.size}")


def compare(model: Model, theirs: Iterable[Any], inputs: Arrays, tally: Tally, **options: Any) -> Tally:
    """Compare the outputs of a witness with `Model.run`, and count."""
    ours = model.run(inputs)
    for name, array in zip(model.graph.outputs, theirs, strict=True):
        tally.add(ours[name], array, f"{name}", **options)
    return tally


def one(
    operator: str, inputs: list[Tensor], output: Tensor, rule: str = "", version: int = 1, **attributes: Any
) -> Model:
    """A model of one node; inputs without data are those of the graph."""
    tensors = {tensor.name: tensor for tensor in [*inputs, output]}
    node = Node(operator, tuple(t.name for t in inputs), (output.name,), attributes, "node", version, rule)
    outside = tuple(tensor.name for tensor in inputs if not tensor.is_constant)
    return Model(Graph(outside, (output.name,), (node,), tensors), engine="onnx")


def initializers(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {each.name: onnx.numpy_helper.to_array(each) for each in proto.graph.initializer}


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}


def floats(proto: onnx.ModelProto) -> list[str]:
    """The names of all values that are floats, or whose type is unknown."""
    graph = onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph
    kinds = {each.name: each.data_type for each in graph.initializer}
    for value in (*graph.value_info, *graph.output, *graph.input):
        kinds[value.name] = value.type.tensor_type.elem_type
    made = {name for node in graph.node for name in node.output if name}
    return sorted(name for name in made | kinds.keys() if kinds.get(name, 0) in FLOATS | {0})
