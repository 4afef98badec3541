"""The results of kernels whose sums overflow 16 bits: there the engine's own output is wrong.

Recomputing in the kernel's order reproduces its outputs bit by bit. That proves that an output differs for this reason
and no other. The kernel that an engine uses depends on the layer and on the processor, so all its kernels are tried.
An output that none of them reproduces may still be an overflow, in an order that qfmt does not know: if the kernel
saturates elsewhere in the node, and two products of the sum together exceed int16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..arrays import Array
from ..interpreter import execute
from ..model import Node, Tensor
from ..ops import Operand
from ..ops.overflow import AnyPair, computed_by
from ..passes.hazards import KERNELS


def saturated(node: Node, operands: Sequence[Operand | None], output: Tensor, engine: str) -> Iterator[Array]:
    """One output of a node, as each saturating kernel of the engine computes it."""
    for kernel in KERNELS.get(engine.partition(":")[0], ()):
        with computed_by(kernel):
            yield _executed(node, operands, output)


def can_overflow(node: Node, operands: Sequence[Operand | None], output: Tensor, engine: str) -> Array:
    """Where an output depends on a sum with two products that together exceed int16; broadcasts against the output."""
    if engine.partition(":")[0] not in KERNELS:
        return np.array(False)
    noting = AnyPair()
    with computed_by(noting):
        shape = _executed(node, operands, output).shape
    if len(noting.found) == 1 and noting.found[0].shape == shape:
        return noting.found[0]
    return np.array(any(found.any() for found in noting.found))


def _executed(node: Node, operands: Sequence[Operand | None], output: Tensor) -> Array:
    # operators with sums have one output or, as recurrent layers, multiple similar ones
    return execute(node, operands, [output] * len(node.outputs))[node.outputs.index(output.name)]
