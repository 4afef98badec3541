"""Write the matrix of operators and edges, qfmt/ops/matrix.json, from tests of each; `qfmt ops --matrix` prints it.

    python tools/operators.py              # rewrite the file
    python tools/operators.py --check
    python tools/operators.py Conv Gelu    # print the rows of some operators

A cell is empty if the edge supports the operator, else it has the reason why not. Each test is a network of one
node, from the random cases of tests/cases/operators.py: the edge supports the operator if one of them passes. For
PyTorch, the frontend is examined instead: it supports an operator if a call of torch is spelled as it, or lifted to
it.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import torch  # noqa: E402

import qfmt  # noqa: E402
import qfmt.backends.torch.processor as processor  # noqa: E402
from cases.operators import CASES, SOME_GRID  # noqa: E402
from cases.torch_nodes import one_node  # noqa: E402
from qfmt.errors import InexpressibleNodesError, NoIntegerFormError, QfmtError  # noqa: E402
from qfmt.model import Graph, Model, Node, Quantization, Tensor  # noqa: E402
from qfmt.ops import OPERATORS, Quantized  # noqa: E402
from qfmt.passes.lowering import lower_integer  # noqa: E402
from qfmt.rules import graph_violations  # noqa: E402

MATRIX = ROOT / "qfmt" / "ops" / "matrix.json"
FEW, MANY = 6, 100
"""Random cases of each operator; more for operators with many forms and rules, of which an edge may support few."""

ENGINES = ("reference", "native", "onednn", "qdq")

Try = Callable[[Model], str]
"""The reason why an edge does not support a network of one node; "" if it does."""


def case(name: str, kind: str, seed: int) -> Model:
    """A network of one node with known sizes."""
    model, inputs = one_node(name, kind, np.random.default_rng([seed, *name.encode(), len(kind)]))
    tensors = {
        key: replace(tensor, shape=inputs[key].shape) if key in inputs else tensor
        for key, tensor in model.tensors.items()
    }
    made = model.replace(graph=replace(model.graph, tensors=tensors))
    if OPERATORS[name].takes_weights:
        return on_weights(made, inputs)
    return requantizing(made) if name == "qfmt.Requantize" else made


def on_weights(model: Model, inputs: dict[str, np.ndarray[Any, Any]]) -> Model:
    """The same, with its weights as quantized constants."""
    (node,) = model.nodes
    tensors = dict(model.tensors)
    places = OPERATORS[node.operator].weights or (0,)
    for name in (node.inputs[index] for index in places):
        values = inputs[name] if name in inputs else tensors[name].array
        grid = Quantization.per_tensor(0.05, 0, "int8")
        tensors[name] = Tensor.constant(name, np.clip(np.rint(values / 0.05), -128, 127).astype(np.int8), grid)
    given = tuple(name for name in model.graph.inputs if tensors[name].data is None)
    node = replace(node, rule=OPERATORS[node.operator].rules[0])
    return model.replace(graph=replace(model.graph, inputs=given, nodes=(node,), tensors=tensors))


def requantizing(model: Model) -> Model:
    """The same, with a quantized output, and the rule that its parameters belong to."""
    (node,) = model.nodes
    output = replace(model.tensors["y0"], quantization=SOME_GRID)
    node = replace(node, rule=OPERATORS[node.operator].rules[0])
    return model.replace(graph=replace(model.graph, nodes=(node,), tensors={**model.tensors, "y0": output}))


def commonest_reason(name: str, kinds: Iterable[str], tried: Try) -> str:
    """The most frequent reason why cases fail; "" if one of the random cases passes."""
    found: Counter[str] = Counter()
    has_forms = OPERATORS[name].quantized in (Quantized.ACCUMULATES, Quantized.OWN, Quantized.MOVES)
    for index, kind in enumerate(kinds):
        for seed in range(MANY if has_forms else FEW):
            try:
                model = case(name, kind, seed)
                broken = graph_violations(model)
                reason = broken[0].what if broken else tried(model)
            except (InexpressibleNodesError, NoIntegerFormError) as error:
                reason = min(error.reasons)
            except QfmtError as error:
                reason = error.what
            if not reason:
                return ""
            found[reason] += index == 0
    return found.most_common(1)[0][0]


@cache
def lifted() -> set[str]:
    """Operators that torch calls are converted to: spelled, or named in the code of the frontend for torch."""
    names = {name for name, entry in OPERATORS.items() if entry.torch}
    folder = ROOT / "qfmt" / "frontends" / "torch"
    for path in sorted((*folder.glob("*.py"), *(folder / "operators").glob("*.py"))):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        compared = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Compare) for part in ast.walk(node)}
        words = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in compared)
        names.update(str(word.value) for word in words if word.value in OPERATORS)
    return names


def of_integers(name: str) -> str:
    """The kind of integer cases of an operator: one that supports no quantized tensors is tested between quantized
    ones."""
    return "float" if OPERATORS[name].is_real else "8 bits"


def from_torch(name: str) -> str:
    return "" if name in lifted() else "no call of torch is read as it"


def from_onnx(name: str) -> str:
    """The reason why ONNX models cannot contain an operator. ONNX's operators keep their names; qfmt's own are found
    by converting their export."""
    if onnx.defs.has(name.removeprefix("ai.onnx.")):
        return ""
    return commonest_reason(name, ("float", "8 bits"), _comes_back)


def _comes_back(model: Model) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        onnx.save(model.to_onnx(), path)
        again = qfmt.convert(path)
    there = any(node.operator == model.nodes[0].operator for node in again.nodes)
    return "" if there else "is written as other operators, and read as these"


def to_onnx(name: str) -> str:
    return commonest_reason(name, ("float", "8 bits"), _written)


def _written(model: Model) -> str:
    onnx.checker.check_model(model.to_onnx())
    return ""


def by_torch(engine: str, kind: str = "") -> Callable[[str], str]:
    def compute(model: Model) -> str:
        rows = model.to_torch(engine).report()
        return "; ".join(f"by {row.computed_by}: {row.reason}" for row in rows)

    return lambda name: commonest_reason(name, (kind or of_integers(name),), compute)


def in_integers(name: str) -> str:
    return commonest_reason(name, (of_integers(name), "8 bits"), _lowered)


def _lowered(model: Model) -> str:
    if not OPERATORS[model.nodes[0].operator].takes_integers:
        lower_integer(among_quantized(model), exact=True)
    return ""


def among_quantized(model: Model) -> Model:
    """The model with a DequantizeLinear before each float input, and a separate one of a single number."""
    if any(tensor.quantization for tensor in model.tensors.values()):
        return model
    grid, version = Quantization.per_tensor(0.1, 3, "int8"), OPERATORS["DequantizeLinear"].version
    tensors: dict[str, Tensor] = {**model.tensors, "beside": Tensor("beside", "float32", ())}
    inputs = {name: f"{name}.integers" for name in (*model.graph.inputs, "beside") if tensors[name].dtype == "float32"}
    nodes = [Node("DequantizeLinear", (own,), (name,), version=version) for name, own in inputs.items()]
    tensors |= {own: Tensor(own, "int8", tensors[name].shape, quantization=grid) for name, own in inputs.items()}
    given = [inputs.get(name, name) for name in (*model.graph.inputs, "beside")]
    graph = Graph(tuple(given), (*model.graph.outputs, "beside"), (*nodes, *model.nodes), tensors)
    return model.replace(graph=graph)


def in_c(name: str) -> str:
    return commonest_reason(name, (of_integers(name), "8 bits"), _in_c)


def _in_c(model: Model) -> str:
    own = OPERATORS[model.nodes[0].operator].takes_integers
    with tempfile.TemporaryDirectory() as folder:
        (model if own else lower_integer(among_quantized(model), exact=True)).to_c(Path(folder) / "c", name="c")
    return ""


EDGES: dict[str, Callable[[str], str]] = {
    "from PyTorch": from_torch,
    "from ONNX": from_onnx,
    "to ONNX": to_onnx,
    "to torch, float32": by_torch("native", "float"),
    **{f"to torch, {engine}": by_torch(engine) for engine in ENGINES},
    "integer-only": in_integers,
    "to C": in_c,
}


def row(name: str) -> dict[str, str]:
    if name not in CASES:
        return dict.fromkeys(EDGES, "no case")
    return {edge: ask(name) for edge, ask in EDGES.items()}


def matrix(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The cells of each operator: "" or a reason. Kernels that could overflow on this processor count as
    supported."""
    torch.backends.quantized.engine = "fbgemm"
    before, processor.saturates = processor.saturates, lambda *_: False
    try:
        return {name: row(name) for name in names}
    finally:
        processor.saturates = before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", metavar="OPERATOR", help="print the rows of these, and write nothing")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file is not current")
    options = parser.parse_args()
    names = options.operators
    if unknown := {*names} - OPERATORS.keys():
        parser.error(f"no operators: {', '.join(sorted(unknown))}")
    found: Any = matrix(names or sorted(OPERATORS))
    rows = (f" {json.dumps(name)}: {json.dumps(cells, ensure_ascii=False)}" for name, cells in found.items())
    text = "{\n" + ",\n".join(rows) + "\n}\n"
    if names:
        print(text, end="")
    elif options.check:
        return int(text != MATRIX.read_text(encoding="utf-8"))
    else:
        MATRIX.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
