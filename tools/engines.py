"""Compare engines on two quantized convolutions: the tables of docs/integers.md.

    python tools/engines.py --tflite PYTHON    # rewrite them; that Python has ai-edge-litert (tools/run_litert.py)
    python tools/engines.py                    # print them, without TFLite
    python tools/engines.py --sums 1000000     # which sums are exact on this processor, from so many outputs each

Each engine computes conv1 from the same input, conv2 from fbgemm's output of conv1, and both in sequence. The tables
count outputs that differ from the rule that qfmt states for the engine, from fbgemm, and from exact rational
arithmetic.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import re
import subprocess
import sys
import warnings
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from engine_kernels import FORMS, Engine, Run, as_model, by_rule, engines, lowered, torch_engine
from engine_sums import tables as tables_of_sums
from qfmt.passes.lowering import lower_integer
from two_convolutions import Network, depthwise_layer, exact, measured_network, tied_network

PAGE = Path(__file__).resolve().parent.parent / "docs" / "integers.md"
SIZE = 128
"""The size of an image: 16 channels of 128 x 128 are 262,144 outputs."""

COLUMNS = {
    "engines": [
        "engine",
        "its rule in qfmt",
        "≠ its rule",
        "conv1 ≠ fbgemm",
        "conv2 ≠ fbgemm",
        "both in sequence ≠ fbgemm",
        "by at most",
    ],
    "ties": ["engine", "≠ its rule", "≠ ties to even", "≠ ties away from zero", "≠ ties up"],
    "saturation": ["engine", "≠ its rule", "largest difference"],
    "forms": [
        "form",
        "accumulators of conv1 that differ",
        "of conv2",
        "outputs of conv1 that differ",
        "of conv2",
        "of both in a row",
    ],
}
"""The tables, which are in the page between `<!-- NAME: tools/engines.py -->` and `<!-- end -->`."""

Table = dict[str, list[str]]
"""The cells of each row, by its first one."""


class Outputs(NamedTuple):
    """Outputs of conv1, of conv2 on fbgemm's output of conv1, and of both in sequence."""

    conv1: np.ndarray
    conv2: np.ndarray
    both: np.ndarray

    @classmethod
    def of(cls, run: Run, network: Network, between: np.ndarray) -> Outputs:
        conv1, conv2 = run(network.conv1, network.x), run(network.conv2, between)
        return cls(conv1, conv2, conv2 if np.array_equal(conv1, between) else run(network.conv2, conv1))

    def differing(self, other: Outputs) -> list[int]:
        return [int((a != b).sum()) for a, b in zip(self, other, strict=True)]

    def largest_difference(self, other: Outputs) -> int:
        return max(int(np.abs(a.astype(np.int16) - b).max()) for a, b in zip(self, other, strict=True))


def _count(number: int) -> str:
    return f"{number:,}"


def table_of_engines(found: list[Engine], size: int = SIZE) -> Table:
    network = measured_network(size)
    between = by_rule("float_bias")(network.conv1, network.x)
    reference = Outputs.of(torch_engine("fbgemm"), network, between)
    rows = {}
    for engine in found:
        outputs, from_rule = _compared(engine, network, between)
        counts = map(_count, outputs.differing(reference))
        rows[engine.name] = [engine.rule, from_rule, *counts, str(outputs.largest_difference(reference))]
    return rows


def _compared(engine: Engine, network: Network, between: np.ndarray) -> tuple[Outputs, str]:
    """The outputs of an engine, and how many of conv1 and conv2 differ from its rule."""
    outputs = Outputs.of(engine.run, network, between)
    if engine.stated is None:
        return outputs, ""
    return outputs, _count(sum(outputs.differing(Outputs.of(engine.stated, network, between))[:2]))


def table_of_ties(found: list[Engine], size: int = SIZE) -> Table:
    network = tied_network(size)
    between = by_rule("float_bias")(network.conv1, network.x)
    ways = [Outputs.of(functools.partial(exact, ties=ties), network, between) for ties in ("even", "away", "up")]
    rows = {}
    for engine in found:
        outputs, from_rule = _compared(engine, network, between)
        rows[engine.name] = [from_rule, *(_count(sum(outputs.differing(way)[:2])) for way in ways)]
    return rows


def table_of_saturation(found: list[Engine], size: int = SIZE) -> Table:
    x, layer = depthwise_layer(size)
    rows = {}
    for engine in found:
        if engine.stated is not None and engine.name.startswith(("PyTorch", "ONNX")):
            distance = np.abs(engine.run(layer, x).astype(int) - engine.stated(layer, x))
            rows[engine.name] = [_count(np.count_nonzero(distance)), str(distance.max())]
    return rows


def table_of_forms(size: int = SIZE) -> Table:
    network = measured_network(size)
    between = by_rule("float_bias")(network.conv1, network.x)
    reference = Outputs.of(by_rule("float_bias"), network, between)
    rows = {}
    for name, options in FORMS.items():
        outputs = Outputs.of(lowered("float_bias", **options), network, between)
        rows[name] = [*_proofs(network, options), *map(_count, outputs.differing(reference))]
    return rows


def _proofs(network: Network, options: dict[str, Any]) -> list[str]:
    """For conv1 and conv2: the number of reachable accumulators whose output differs from that of the float rule."""
    cells = []
    for layer in (network.conv1, network.conv2):
        model = lower_integer(as_model(layer, "float_bias"), **options)
        (node,) = (each for each in model.nodes if each.operator == "qfmt.Requantize")
        channels = len(layer.weight)
        low, high = (np.broadcast_to(each, channels) for each in (node.proof.low, node.proof.high))
        cells.append(f"{sum(node.proof.differs):,} of {int((high - low + 1).sum()):,}")
    return cells


def tables(found: list[Engine]) -> dict[str, Table]:
    return {
        "engines": table_of_engines(found),
        "ties": table_of_ties(found),
        "saturation": table_of_saturation(found),
        "forms": table_of_forms(),
    }


def markdown(name: str, table: Table) -> str:
    lines = [COLUMNS[name], ["---"] * len(COLUMNS[name]), *([first, *cells] for first, cells in table.items())]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def print_sums(outputs: int) -> None:
    """A table of each library: operators by engines, or by types."""
    import onnx_products
    import torch_products

    products = chain(torch_products.products(), onnx_products.products())
    for title, rows in tables_of_sums(products, outputs).items():
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        lines = [[title, *columns], ["---"] * (len(columns) + 1)]
        lines += [[name, *(str(row.get(column, "")) for column in columns)] for name, row in rows.items()]
        print("".join(f"| {' | '.join(cells)} |\n" for cells in lines))


def versions(python: str | None) -> str:
    found = [
        f"{name} {importlib.metadata.version(package)}"
        for name, package in (("PyTorch", "torch"), ("ONNX Runtime", "onnxruntime"))
    ]
    if python:
        asked = "import importlib.metadata as m; print(m.version('ai-edge-litert'))"
        answer = subprocess.run([python, "-c", asked], check=True, capture_output=True, encoding="utf-8").stdout
        found.append(f"TFLite as in ai-edge-litert {answer.strip()}")
    return ", ".join(found) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tflite", metavar="PYTHON")
    parser.add_argument("--sums", metavar="OUTPUTS", type=int)
    given = parser.parse_args()
    python = given.tflite
    warnings.simplefilter("ignore")
    if given.sums:
        print_sums(given.sums)
        return
    parts = {name: markdown(name, table) for name, table in tables(engines(python)).items()}
    parts["versions"] = versions(python)
    if not python:
        print(*parts.values(), sep="\n")
        return
    text = PAGE.read_text(encoding="utf-8")
    for name, part in parts.items():
        block = re.compile(rf"(<!-- {name}: tools/engines.py -->\n).*?(<!-- end -->)", re.DOTALL)
        text = block.sub(lambda found, part=part: found[1] + part + found[2], text)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
