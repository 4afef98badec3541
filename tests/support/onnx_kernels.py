"""The behaviour of ONNX Runtime's kernels on this processor, found by running them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from engine_sums import EXACT, ORDERS, first_order
from onnx_products import products
from qfmt import interpreter
from qfmt.model import Model
from qfmt.ops import OPERATORS
from qfmt.ops.overflow import computed_by
from qfmt.passes.hazards import KERNELS

from . import counts


@cache
def order(operator: str, types: str) -> str:
    """A key of ORDERS: the order in which products of these types are summed, as in `uint8 · int8`."""
    rows = (f"{operator} 3x3", f"{operator}, 64 features")
    (product,) = (each for each in products() if each.row in rows and each.column == types)
    found = first_order(product)
    assert found is not None, f"{operator} of {types} is neither exact nor recomputed"
    return found


def saturates() -> bool:
    """Whether kernels saturate."""
    counts.ENGINES["onnxruntime"] = order("MatMulInteger", "uint8 · int8") != EXACT
    return counts.ENGINES["onnxruntime"]


def as_computed_here(operator: str, types: str) -> AbstractContextManager[None]:
    """A context in which sums of products are those of the kernel for these types."""
    kernel = ORDERS[order(operator, types)]
    return computed_by(kernel) if kernel else nullcontext()


def run(model: Model, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`Model.run` of a dynamic network; each node has the sums of ONNX Runtime's kernel for it on this processor."""
    values: dict[str, np.ndarray] = {}
    steps = interpreter.trace(model, inputs, values)
    for node in model.nodes:
        with as_computed_here("ConvInteger" if "Conv" in node.operator else "MatMulInteger", "uint8 · int8"):
            next(steps)
    return {name: values[name] for name in model.graph.outputs}


def exact_here(model: Model, **options: Any) -> onnx.ModelProto:
    """The model in ONNX, with weights in the types of their inputs if the kernels for other types saturate."""
    return model.to_onnx(same_types=saturates(), **options)


def saturated(model: Model, inputs: Mapping[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """The outputs of a model with the sums of each saturating kernel, if kernels saturate on this processor."""
    for kernel in KERNELS["onnxruntime"] if saturates() else ():
        with computed_by(kernel):
            yield model.run(inputs)


def evaluated(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of onnx's reference evaluator, with ONNX Runtime's sums of ConvInteger and MatMulInteger on this
    processor."""
    return ReferenceEvaluator(model, new_ops=[ConvInteger, MatMulInteger, Pad]).run(None, dict(inputs))


class MatMulInteger(OpRun):
    op_domain = ""

    def _run(self, a: Any, b: Any, a_zero_point: Any = None, b_zero_point: Any = None) -> tuple[Any]:
        with as_computed_here("MatMulInteger", f"{a.dtype} · {b.dtype}"):
            return (OPERATORS["MatMulInteger"].reference(a, b, a_zero_point, b_zero_point),)


class ConvInteger(OpRun):
    op_domain = ""

    def _run(self, x: Any, w: Any, x_zero_point: Any = None, w_zero_point: Any = None, **given: Any) -> tuple[Any]:
        rank = x.ndim - 2
        complete = {"kernel_shape": w.shape[2:], "pads": (0,) * 2 * rank, "group": 1}
        complete |= dict.fromkeys(("strides", "dilations"), (1,) * rank)
        complete |= {name: given[name] for name in complete if given.get(name)}
        with as_computed_here("ConvInteger", f"{x.dtype} · {w.dtype}"):
            return (OPERATORS["ConvInteger"].reference(x, w, x_zero_point, w_zero_point, **complete),)


class Pad(OpRun):
    """Pad with support for negative pads, which onnx's own lacks."""

    op_domain = ""

    def _run(self, x: Any, pads: Any, value: Any = 0, **_: Any) -> tuple[Any]:
        before, after = np.reshape(pads, (2, x.ndim))
        kept = tuple(slice(max(0, -a), size + min(0, b)) for a, b, size in zip(before, after, x.shape, strict=True))
        widths = np.stack([before, after], 1).clip(0)
        return (np.pad(x[kept], widths, constant_values=value),)
