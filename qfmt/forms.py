"""The forms of requantization, and of ONNX models, by name: what a user may choose, known without NumPy."""

from __future__ import annotations

MULTIPLY_ADD_DIVIDE = "multiply_add_divide"

FORMS = (
    "multiply_shift", "fixed_point_single", "fixed_point_double", "power_of_two", "thresholds", MULTIPLY_ADD_DIVIDE
)  # fmt: skip
"""All forms of requantization; the first is the default."""

NARROWED = ("multiply_shift", "fixed_point_single", MULTIPLY_ADD_DIVIDE)
"""Those whose multipliers may have fewer bits; the multipliers of fixed_point_double have 31."""

NO_MULTIPLIERS = ("power_of_two", "thresholds")

WIDTHS = (32, 16, 8)
"""How many bits a multiplier may have; one of 32 is the sign."""

ONNX_FORMS = ("qdq", "qoperator")
"""Float operators between DequantizeLinear and QuantizeLinear; or operators on integers, where they exist.

By default, a network that came from ONNX keeps its form; any other network gets the first form."""
