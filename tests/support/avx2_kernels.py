"""Compares torch's quantized kernels, as on a processor without VNNI, with qfmt's recomputation: prints JSON.

A separate program, since the libraries read the environment variables only once. Kernels that do not saturate there
do not saturate without AVX2 or on other architectures, either.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

os.environ.update(FBGEMM_ENABLE_INSTRUCTIONS="AVX2", ONEDNN_MAX_CPU_ISA="AVX2", ATEN_CPU_CAPABILITY="avx2")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import numpy as np

from qfmt.compare.classes import classify
from qfmt.interpreter import execute
from torch_products import products


def main() -> None:
    """Counts: outputs, off, saturated, at ties or close, overflow possible, wrong."""
    warnings.simplefilter("ignore")
    rng, counts = np.random.default_rng(5), {}
    for product in products():
        node, operands, output, theirs = product.draw(rng)
        (mine,) = execute(node, operands, [output])
        found = classify(node, operands, output, mine, theirs, product.column)
        off = int((mine != theirs).sum())
        judged = found.saturated, found.tie + found.close, found.overflow, found.wrong
        counts[f"{product.column} {product.row}"] = (mine.size, off, *judged)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
