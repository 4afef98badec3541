"""What `verify` found, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..notation import json_value


@dataclass(frozen=True, slots=True)
class WeightComparison:
    """A constant of the file compared with that of the source, bit by bit.

    `different` of `elements` stored values differ, by at most `largest`. `differences` says, as "source → file", what
    else differs: dtype, shape, quantization. `witnesses` names who read the source's constant: "conversion" (qfmt, in
    a fresh conversion), and for ONNX also "onnx" (its own reader).
    """

    name: str
    read_by: tuple[str, ...]
    elements: int
    different: int
    largest: float
    differences: tuple[str, ...]
    witnesses: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.different and not self.differences


NOTHING = "nothing was compared: no output has elements and a reference"

COUNTS = ("outputs", "equal", "tie", "close", "saturated", "overflow", "stated", "wrong")
"""What is counted of a node."""


@dataclass(frozen=True, slots=True)
class NodeComparison:
    """A node of the file compared with that of the source, both run on the source's inputs: counts of output elements.

    `largest` is the largest difference, in integer steps or in real numbers. `differences` says, as
    "source → file", what the file states differently: rule, attributes, scales. `saturated`
    outputs are those where torch's own kernel overflows, and which are correct in the file
    (docs/spec/conversions.md, "Kernels that saturate"); `stated` ones follow from what the file states: a rule of
    another engine than the one that ran, the integer for NaN, or, in an integer-only file, that they may differ
    (`differs`).
    """

    name: str
    operator: str
    outputs: int = 0
    equal: int = 0
    tie: int = 0
    close: int = 0
    saturated: int = 0
    overflow: int = 0
    stated: int = 0
    wrong: int = 0
    largest: float = 0.0
    differences: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.wrong and not self.differences


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """An output of the whole network: source and file are each run from the inputs to the outputs.

    `argmax_equal` of `argmax_total` samples have their largest element at the same index (outputs [sample, class]).
    `reached`: it is computed from an output of a node that differs, so it may differ, too.
    """

    name: str
    outputs: int
    equal: int
    largest: float
    argmax_equal: int = 0
    argmax_total: int = 0
    reached: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `qfmt.verify`.

    `engine` ran the source, in the package `version` ("" if it was not run).
    `same_source`: whether the file states that it was made from exactly this source (None: it does not state it).
    `missing` are nodes that only the source has; `interface` lists differences in the inputs and outputs of the whole
    network, as "source → file". `skipped` says why no nodes were compared, "" if they were;
    `notes` are remarks that do not affect the result. `beyond` are outputs of the source that an integer-only file does
    not compute. `other_form`: one of the two is ONNX, so nodes have other forms, and only the inputs speak for them,
    for `uncompared`, constants of the source that have another form, too, and for `unpaired`, constants that the file
    reads and that were compared with none of the source. `integer_only`: the file was lowered to integers, so its nodes
    differ from those of the source; each node that computes a tensor of the source is compared.
    `lowered_anew`: whether such a file is, but for names, what the lowering makes of the source; if not, only the
    inputs speak for what the lowering made (None: not integer-only, or not run). `rules_compared`: the file states the
    rules of this engine, in the source's own terms, so a rule that differs is an error.
    """

    source: str
    engine: str
    version: str
    same_source: bool | None
    inputs: str
    weights: tuple[WeightComparison, ...]
    nodes: tuple[NodeComparison, ...]
    outputs: tuple[OutputComparison, ...]
    missing: tuple[str, ...] = ()
    interface: tuple[str, ...] = ()
    skipped: str = ""
    notes: tuple[str, ...] = field(default=())
    beyond: tuple[str, ...] = ()
    uncompared: tuple[str, ...] = ()
    unpaired: tuple[str, ...] = ()
    other_form: bool = False
    integer_only: bool = False
    lowered_anew: bool | None = None
    rules_compared: bool = True

    @property
    def ok(self) -> bool:
        """Whether everything compared is equal, or differs only as two runs of torch may: at rounding ties, in the
        last bits of floats, where a kernel of torch overflows."""
        return not self.first_wrong

    @property
    def is_exact(self) -> bool:
        """Whether every output of every node is equal, without any such difference."""
        return self.ok and all(node.equal == node.outputs for node in self.nodes)

    @property
    def first_wrong(self) -> str:
        """The first node, in the order of the graph, that differs or reads a weight that differs: "conv1 (Conv)"."""
        off = {reader for weight in self.weights if not weight.ok for reader in weight.read_by}
        for node in self.nodes:
            if not node.ok or node.name in off:
                return f"{node.name} ({node.operator})"
        for weight in self.weights:
            if not weight.ok:
                return weight.name
        if self.missing:
            return f"{self.missing[0]}, which is only in the source"
        if self.interface:
            return self.interface[0]
        compared: list[NodeComparison | OutputComparison] = [*self.nodes, *self.outputs]
        if self.nodes and not self.skipped and not any(each.outputs for each in compared):
            return NOTHING
        # a tie in one node may change everything after it; without ties, the outputs must be equal
        return next((each.name for each in self.outputs if each.equal < each.outputs and not each.reached), "")

    def to_dict(self) -> dict[str, Any]:
        """For JSON: all fields, `ok` and `first_wrong`. An infinite difference (another shape) is "inf"."""
        found = {"ok": self.ok, "first_wrong": self.first_wrong, "exact": self.is_exact, **asdict(self)}
        made: dict[str, Any] = json_value(found)
        return made
