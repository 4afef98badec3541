"""What one conversion may cost. A source is not trusted, and a few bytes can describe endless work.

Each conversion has one Budget, made where the size of its source is known, and handed to everything that reads,
decodes, evaluates or folds. So time and memory grow linearly with the source. Work on a Model
(lowering, writing C) has a separate Budget, by the size of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .errors import BudgetError

if TYPE_CHECKING:
    from .model import Model, Node, Tensor

OPERATIONS = 300_000, 4
"""Operations of a conversion: a constant, plus a number for each byte of the source. One takes about a microsecond."""

MODEL_OPERATIONS = 2_000_000, 2
"""The same for work on a Model: the cost of a node does not depend on the size of its file."""

BYTES = 16 << 20, 10
"""Bytes that a conversion decodes, expands or computes: a constant, plus a number for each byte of the source."""

NODE = 40
"""Operations that a node of the graph counts as: its shapes, names and checks take longer than a step."""

NODE_BYTES = 1500
"""Bytes of memory for a node and its tensors."""

TENSOR, TENSOR_BYTES = 60, 2500
"""The same for a tensor that a file contains or names, from its header to the written file."""

LONGEST_PATH = 2000
"""The most characters in the path of a module: calls look at it, and tensors get names that begin with it."""

READ = 100
"""Bytes of constants that are read and summed in the time of an operation."""

AT_ONCE = 1 << 8
"""Elements, or products of two, that are computed in the time of an operation."""

GRAPH_BYTES = 100
"""What a node, and a tensor, adds to the size of a model; in a file it has more bytes than that."""


def reading(key: object) -> int:
    """Operations to compare a text with an equal one, as a look-up in a dict may, beside the first one."""
    return len(key) // AT_ONCE if isinstance(key, str | bytes) else 0


class Budget:
    """Counts what one conversion spends; raises BudgetError when that is out of proportion to the source.

    `source_bytes` is the size of the source; None for an object in memory, which has no limit.
    Cost is never refunded: a bound holds for the whole conversion, however often it restarts. `work` names
    the work in the error message.
    """

    __slots__ = ("bytes", "hint", "operations", "reached", "source_bytes", "spent_bytes", "spent_operations", "work")

    def __init__(
        self, source_bytes: int | None, work: str = "converting", operations: tuple[int, int] = OPERATIONS
    ) -> None:
        self.source_bytes, self.work = source_bytes, work
        self.hint = "networks rarely need that much: the file may be malicious or damaged"
        self.operations, self.bytes = (
            float("inf") if source_bytes is None else fixed + factor * source_bytes
            for fixed, factor in (operations, BYTES)
        )
        self.spent_operations = self.spent_bytes = 0
        self.reached: dict[str, int] = {}

    @classmethod
    def of(cls, model: Model, work: str) -> Budget:
        """For work on a Model, whose size is that of its constants, each counted once, and its graph."""
        stored = (data for tensor in model.tensors.values() for _, data in tensor.stored())
        constants = {data.sha256(): data.nbytes for data in stored}
        graph = GRAPH_BYTES * (len(model.nodes) + len(model.tensors))
        budget = cls(sum(constants.values()) + graph, work, MODEL_OPERATIONS)
        budget.hint = "that is out of proportion to its size"
        return budget

    def spend(self, operations: int = 1) -> None:
        """Count operations: steps of an evaluation, opcodes of a pickle, elements that are read."""
        self.spent_operations += operations
        if self.spent_operations > self.operations:
            raise self._exceeded(f"{self.operations} operations")

    def allocate(self, nbytes: int) -> None:
        """Count bytes before they are decompressed, decoded, expanded or computed."""
        self.spent_bytes += nbytes
        if self.spent_bytes > self.bytes:
            raise self._exceeded(f"{self.bytes} bytes of memory")

    def reach(self, what: str, nbytes: int) -> None:
        """Count memory that is used again and again, as far as it is more than before."""
        if (more := nbytes - self.reached.get(what, 0)) > 0:
            self.allocate(more)
            self.reached[what] = nbytes

    def hold(self, elements: int) -> None:
        """Count a list, tuple or dict of that many elements."""
        self.spend(elements)
        self.allocate(64 + 16 * elements)

    def node(self, tensors: int = 3) -> None:
        """Count a node that is added to a graph, with its numbers of inputs and outputs."""
        self.spend(NODE + tensors)
        self.allocate(NODE_BYTES + 100 * tensors)

    def path(self, path: str) -> None:
        """Refuse the path of a module, or of its packed parameters, that is too long to be looked at by each call."""
        if len(path) > LONGEST_PATH:
            what = f"a module has a path of {len(path):,} characters; {LONGEST_PATH:,} are allowed"
            raise BudgetError(what, hint=self.hint)

    def visit(self, node: Node, tensors: Mapping[str, Tensor]) -> None:
        """Count a node that is examined, and the constants that it reads: nodes may share them."""
        read = (tensors[name].data for name in node.inputs if name)
        self.spend(NODE + sum(data.nbytes for data in read if data is not None) // READ)

    def compute(self, work: int, nbytes: int) -> None:
        """Count what a node computes now: elements or products (`Operator.work`), and the bytes of its outputs."""
        self.spend(work // AT_ONCE)
        self.allocate(nbytes)

    def tensor(self, count: int = 1) -> None:
        """Count tensors that a file holds or names."""
        self.spend(count * TENSOR)
        self.allocate(count * TENSOR_BYTES)

    def _exceeded(self, limit: str) -> BudgetError:
        what = f"{self.work} {self.source_bytes} bytes would take more than {limit}"
        return BudgetError(what, hint=self.hint)
