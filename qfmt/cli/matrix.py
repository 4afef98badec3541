"""The matrix of operators and edges, which tools/operators.py writes."""

from __future__ import annotations

import json
from pathlib import Path


def matrix() -> dict[str, dict[str, str]]:
    """{operator: {edge: why it does not support the operator, "" if it does}}"""
    path = Path(__file__).parent.parent / "ops" / "matrix.json"
    found: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    return found
