"""Every check of a rule is needed: a reader that leaves it out accepts a file of the suite that it must refuse."""

from __future__ import annotations

import os
import subprocess
import sys

from support.counts import tell
from support.paths import ROOT, TOOLS

IN_MEMORY = {
    "graph._edges: missing",
    "graph._inputs: (missing := [name for name in graph.inputs if name not in graph.tensors])",
    "nodes._is_attribute: len(kinds) > 1",
    "nodes._is_attribute: max(values) < 1 << 63",
    "nodes._is_attribute: min(values) >= -(1 << 63)",
    "nodes._is_attribute: not kinds <= {int, float, str}",
    "nodes._operator: node.version >= 1 << 32",
    "nodes._operator: not is_int(node.version)",
    "nodes._values: not _is_attribute(value)",
    "quantization._observed: is_int(high_limit)",
    "quantization._observed: is_int(low_limit)",
    "quantization._wrong_form: level == 2",
    "quantization._wrong_table: table.quantization is not None",
    "quantization._wrong_zero_points: point.quantization is not None",
    "quantization.is_float32_scale: rounded < inf",
    "quantization.wrong_blocks: index.quantization",
    "quantization.wrong_blocks: is_int(each)",
    "rule.is_int: isinstance(value, int)",
    "rule.is_int: not isinstance(value, bool)",
    "rule.is_text: isinstance(text, str)",
    "tensors._dtype: tensor.dtype in DTYPES",
    "tensors._shape: is_int(size)",
    "tensors._shape: size",
    "vectors._ends: (missing := [name for name in names if name not in values])",
    "vectors._ends: (unknown := (values.keys() - set(names)))",
    "vectors._ends: dtype not in DTYPES",
    "vectors._ends: value.dtype != dtype",
}
"""What only a model in memory can break: the fields of a file have the types of the schema, and decoding it names the
tensors that indices mean (F7), and knows the element types (V2)."""

TOO_LARGE = {"quantization._wrong_table: kind.bits > 8"}
"""A table for 16 bits has 65,536 elements."""


def test_every_check_of_a_rule_is_needed() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, TOOLS / "left_out.py"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == IN_MEMORY | TOO_LARGE
    tell(f"conformance suite: {done.stderr.strip()}, {len(IN_MEMORY)} others concern models in memory")
