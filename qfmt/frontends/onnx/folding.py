"""Constant folding, while an ONNX graph is read."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from ...budget import AT_ONCE, READ, Budget
from ...errors import QfmtError, RunError
from ...memory import Memory, available
from ...model import DTYPES, Node, Tensor, static_shape
from ...notation import size
from ...ops import OPERATORS, Trait, has
from ...ops.quantization import is_static
from ...passes.constants import computed
from ...passes.qdq import DEQUANTIZE, QUANTIZE
from ...passes.sizes import inferred

_NOT_COMPUTED = (DEQUANTIZE, QUANTIZE)
"""Kept as nodes over constants: the passes turn them into quantized constants."""


def folded(node: Node, tensors: Mapping[str, Tensor], memory: Charged) -> list[Tensor]:
    """The outputs of a node as constants; [] if an input is not constant or the budget is too small."""
    given, budget = node.input_tensors(tensors), memory.budget
    if node.operator in _NOT_COMPUTED or not given or any(each is not None and each.data is None for each in given):
        return []
    first = given[0]
    if node.operator == "Clip" and first is not None and DTYPES[first.dtype].is_quantizable:
        budget.allocate(first.data.nbytes if first.data is not None else 0)
        return []  # the range of a weight: `passes.attaching` clips it, and sets quant_min and quant_max
    if not _is_affordable(node, tensors, budget):
        return []
    outputs = [tensors[name] for name in node.outputs]
    moved = {*first.aliases, first.name} if has(node, Trait.ANY_MOVE) and first is not None else ()
    budget.spend(len(moved))
    try:
        with memory.spent():
            return computed(node, given, outputs, tuple(sorted(moved)))
    except _TooMuchError:
        return []


class _TooMuchError(RunError):
    """A node over constants takes too much memory or time."""


class Charged(Memory):
    """What nodes over constants take while they are computed: each up to twice the bytes of a budget, and half of its
    remaining operations, which are charged for the time to fill the memory."""

    __slots__ = ()

    budget: Budget

    def __init__(self, budget: Budget) -> None:
        super().__init__(int(min(2 * budget.bytes, available() // 2)), budget=budget)

    def require(self, nbytes: int) -> None:
        time = nbytes // READ
        if nbytes > self.limit or 2 * time > self.budget.operations - self.budget.spent_operations:
            hint = "nodes over constants take, in all, too much for the size of the file; let the exporter compute them"
            raise _TooMuchError(f"takes {size(nbytes)} to compute a constant", hint=hint)
        self.budget.spend(time)


def _is_affordable(node: Node, tensors: Mapping[str, Tensor], budget: Budget) -> bool:
    """Charge the budget for folding a node; False if it is too expensive, and the node stays.

    One node may use half of the remaining budget, so that later nodes can still be read.
    """
    sizes = _sizes(node, tensors)
    if sizes is None:
        return False
    operator, outputs = OPERATORS[node.operator], [tensors[name] for name in node.outputs]
    nbytes = sum(-(-size * DTYPES[each.dtype].bits // 8) for size, each in zip(sizes, outputs, strict=True))
    read = [prod(static_shape(tensors[name])) for name in node.inputs if name]
    work = operator.work(read, sizes)
    if 2 * nbytes > budget.bytes - budget.spent_bytes:
        return False
    if 2 * (work // AT_ONCE) > budget.operations - budget.spent_operations:
        return False
    budget.spend(work // AT_ONCE)
    return True


def _sizes(node: Node, tensors: Mapping[str, Tensor]) -> list[int] | None:
    """The maximum number of elements of each output of a node over constants; None if unknown."""
    first = static_shape(tensors[node.inputs[0]]) if node.inputs[0] else ()
    if node.operator in ("NonZero", "Compress"):  # the size depends on the data; the input bounds it
        return [prod(first) * (len(first) if node.operator == "NonZero" else 1)]
    shapes = [tensors[name].shape for name in node.outputs]
    if any(shape is None or None in shape for shape in shapes):
        try:
            known = inferred(node, tensors)
        except QfmtError:
            return None
        shapes = [known[min(index, len(known) - 1)] if known else None for index in range(len(shapes))]
    counts = [prod(shape) for shape in shapes if is_static(shape)]
    return counts if len(counts) == len(shapes) else None
