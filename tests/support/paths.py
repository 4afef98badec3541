"""Paths of files that tests read or start."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS, TOOLS, EXAMPLES = ROOT / "tests", ROOT / "tools", ROOT / "examples"

GOLDEN, HOSTILE, SAMPLES = TESTS / "golden", TESTS / "hostile", TESTS / "samples"

SUITE = GOLDEN / "1.0"
"""The conformance suite."""
INTEGER_SUITE = sorted((SUITE / "integer").glob("*.qfb"))
FLOAT_SUITE = sorted((SUITE / "float").glob("*.qfb"))

DIGITS = EXAMPLES / "digits" / "digits_int8.pt"
HELD_BACK = DIGITS.with_name("heldback.npz")

PROGRAMS = TESTS / "support"
"""Programs that run in separate processes."""
