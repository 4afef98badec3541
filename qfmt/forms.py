"""The forms of requantization, and of ONNX models, by name: what a user may choose, known without NumPy."""

from __future__ import annotations

MULTIPLY_ADD_DIVIDE = "multiply_add_divide"

NARROWED = ("multiply_shift", "fixed_point_single", MULTIPLY_ADD_DIVIDE)
"""Forms of requantization whose multipliers may have fewer bits; those of fixed_point_double have 31."""

NO_MULTIPLIERS = ("power_of_two", "thresholds")

FORMS = (*NARROWED[:2], "fixed_point_double", *NO_MULTIPLIERS, MULTIPLY_ADD_DIVIDE)
"""All forms of requantization; the first is the default."""

WIDTHS = (32, 16, 8)
"""How many bits a multiplier may have; one of 32 is the sign."""

ONNX_FORMS = ("qdq", "qoperator")
"""Float operators between DequantizeLinear and QuantizeLinear; or operators on integers, where they exist.

By default, a network that came from ONNX keeps its form; any other network gets the first form."""
