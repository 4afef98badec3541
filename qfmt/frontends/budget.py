"""What one conversion may cost. A source comes from a stranger, and a few bytes can describe endless work.

Each conversion has one Budget, made where the size of its source is known, and handed to everything that reads,
decodes, evaluates or folds. Time then grows linearly with the source, and so does memory.
"""

from __future__ import annotations

from ..errors import BudgetError

OPERATIONS = 200_000, 2
"""Operations of a conversion: so many, and so many more for each byte of the source. One takes about a microsecond."""

BYTES = 16 << 20, 10
"""Bytes that a conversion decodes, expands or computes: so many, and so many more for each byte of the source."""

NODE = 40
"""Operations that a node of the graph counts as: shapes, names and checks take so much longer than a step."""

NODE_BYTES = 1500
"""Bytes that a node and its tensors take."""


class Budget:
    """Counts what one conversion spends; raises BudgetError when that is out of proportion to the source.

    `source_bytes` is the size of the source; None for an object in memory, which is the caller's own and not limited.
    What is spent is never given back: a bound holds for the whole conversion, however often it starts again.
    """

    __slots__ = ("bytes", "operations", "source_bytes", "spent_bytes", "spent_operations")

    def __init__(self, source_bytes: int | None) -> None:
        self.source_bytes = source_bytes
        self.operations, self.bytes = (
            float("inf") if source_bytes is None else fixed + factor * source_bytes
            for fixed, factor in (OPERATIONS, BYTES)
        )
        self.spent_operations = self.spent_bytes = 0

    def spend(self, operations: int = 1) -> None:
        """Count operations: steps of an evaluation, opcodes of a pickle, elements that are looked at."""
        self.spent_operations += operations
        if self.spent_operations > self.operations:
            raise self._exceeded(f"{self.operations} operations")

    def allocate(self, nbytes: int) -> None:
        """Count bytes before they are decompressed, decoded, expanded or computed."""
        self.spent_bytes += nbytes
        if self.spent_bytes > self.bytes:
            raise self._exceeded(f"{self.bytes} bytes of memory")

    def hold(self, elements: int) -> None:
        """Count a list, tuple or dict that is made of so many elements."""
        self.spend(elements)
        self.allocate(64 + 16 * elements)

    def node(self, tensors: int = 3) -> None:
        """Count a node that is added to a graph, with so many inputs and outputs."""
        self.spend(NODE + tensors)
        self.allocate(NODE_BYTES + 100 * tensors)

    def _exceeded(self, limit: str) -> BudgetError:
        what = f"converting {self.source_bytes} bytes would take more than {limit}"
        return BudgetError(what, hint="no network needs that much: the file is hostile or damaged")
