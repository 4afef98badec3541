"""The table of operators and edges, which tools/operators.py writes."""

from __future__ import annotations

import json
from pathlib import Path


def matrix() -> dict[str, dict[str, str]]:
    """For each operator, why an edge does not support it; empty if it does. tools/operators.py queries the edges."""
    path = Path(__file__).parent.parent / "ops" / "matrix.json"
    found: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    return found
