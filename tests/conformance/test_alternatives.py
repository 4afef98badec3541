"""What the conformance suite pins down: for each other way to compute, and each check left out, a file shows it.

Two small programs that are written from the specification are changed in one place and meet that file: the second
evaluation (tools/conformance/evaluate*.py), which then gives other outputs than the file states, and the reader
(tests/support/spec_reader.py), which then no longer refuses it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from support import spec_reader
from support.conformance import READABLE, REFUSED, path_of, said_of, shards_of
from support.counts import tell
from support.paths import TOOLS

MODULES = (
    "reals", "evaluate", "evaluate_products", "evaluate_windows", "evaluate_rescaling", "evaluate_resize",
    "evaluate_moves", "evaluate_real", "operators",
)  # fmt: skip
"""The second evaluation, each module after those that it imports."""

SOURCES = {name: (TOOLS / "conformance" / f"{name}.py").read_text(encoding="utf-8") for name in MODULES}

ENTRIES = {f"{entry['level']}/{entry['name']}": entry for entry in (*READABLE, *REFUSED)}


class Otherwise(NamedTuple):
    """Another way to compute: `old` stands once in `module`, and `new` in its place; the file that shows it."""

    what: str
    module: str
    old: str
    new: str
    file: str


REAL, MOVES, RESIZE, RESCALE = "evaluate_real", "evaluate_moves", "evaluate_resize", "evaluate_rescaling"

OFFSET = "rint(f32(f32(_number(limit) * f32(1 / grid.scale[0])) + grid.zero_point[0]))"
AFFINE = "rint(f32(f32(f32(f32(f32(acc) * unit) + bias) * f32(1 / s)) + z))"
BIAS = "total = f32(total + f32(bias / unit)) if per_channel else f32(bias * f32(1 / unit) + total)"
BETWEEN = "return f32((second * t if fused else f32(second * t)) + rest)"
PRODUCT = "factor = f32(f32(units[0] * units[1]) * f32(1 / grid.scale[0]))"

DEQUANTIZED = "found = f32(q * s + f32(-z * s)) if rule == PREMULTIPLIED else f32(d * s)"
OFFSET_ADDED = "f32(found + f32(x.slice_of(place, x.grid.offset)))"
UNITS = "in_units(b.grid, x.grid, w.grid, scales)"
OF_TABLE = 'x.grid.table[q if x.dtype.startswith("u") else q + len(x.grid.table) // 2], 0'

WAYS = (
    # dequantizing
    Otherwise("q - z is not rounded", REAL, "d = f32(q - z) if isinstance(z, int)", "d = q - z if isinstance(z, int)",
              "float/dequantize-int32"),
    Otherwise("q - z of float32 numbers", REAL, "d = f32(q - z) if isinstance(z, int)", "d = f32(f32(q) - f32(z)) if "
              "isinstance(z, int)", "float/dequantize-int32"),
    Otherwise("a float zero point is not rounded", REAL, "f32(f32(q) - f32(z))", "f32(q - z)", "float/form-float64"),
    Otherwise("a zero point is multiplied by the scale", REAL, DEQUANTIZED, "found = f32(f32(q * s) - f32(z * s))",
              "float/dequantize-channels"),
    Otherwise("scales of float64", "evaluate", "scale = [f32(each) for each in exact]", "scale = list(exact)",
              "float/form-float64"),
    Otherwise("an offset is not rounded", REAL, OFFSET_ADDED, "f32(found + x.slice_of(place, x.grid.offset))",
              "float/form-float64"),
    Otherwise("an offset by fma", REAL, OFFSET_ADDED, "f32(d * s + f32(x.slice_of(place, x.grid.offset)))",
              "float/form-float64"),
    Otherwise("an offset is scaled", REAL, OFFSET_ADDED, "f32((d + f32(x.slice_of(place, x.grid.offset))) * s)",
              "float/form-offset"),
    Otherwise("a table of signed integers begins at 0", REAL, OF_TABLE, "x.grid.table[q % len(x.grid.table)], 0",
              "float/form-table-signed"),
    Otherwise("values of a table are not rounded", REAL, "d = f32(q - z) if isinstance(z, int)",
              "d = q - z if isinstance(z, int)", "float/form-table-signed"),
    Otherwise("groups in order", "evaluate", "if block > 1 and self.group_index is not None:", "if False:",
              "float/form-group-index"),
    Otherwise("blocks along the last dimensions", "evaluate", "zip(place, self.block,",
              "zip(place[len(place) - len(self.block) :], self.block,", "float/dequantize-channels"),
    Otherwise("a zero point beside a table counts", REAL, OF_TABLE, "x.grid.table[q - z], 0",
              "float/form-table-zero-point"),
    # dequantizing and quantizing
    Otherwise("`reciprocal` dequantizes as `premultiplied`", REAL, "if rule == PREMULTIPLIED else",
              'if rule in (PREMULTIPLIED, "reciprocal") else', "float/neg-reciprocal-telling"),
    Otherwise("`divide` dequantizes as `premultiplied`", REAL, "if rule == PREMULTIPLIED else",
              'if rule in (PREMULTIPLIED, "divide") else', "float/neg-divide-telling"),
    Otherwise("`premultiplied` dequantizes as `reciprocal`", REAL, "if rule == PREMULTIPLIED else",
              "if rule is None else", "float/neg-premultiplied-telling"),
    Otherwise("`reciprocal_offset`, + z exact", REAL, "rint(f32(f32(x * f32(1 / s)) + z))",
              "rint(f32(x * f32(1 / s)) + z)", "float/quantize-reciprocal-offset-telling"),
    Otherwise("`divide`, + z exact", REAL, "rint(f32(rint(f32(x / s)) + z))", "rint(f32(x / s)) + z",
              "float/quantize-divide-int32"),
    Otherwise("a clamp to the limits in float32", "evaluate", "return min(max(value, self.low), self.high)",
              "return int(min(max(value, self.low), f32(self.high)))", "float/quantize-divide-int32"),
    # requantizing
    Otherwise("`float_bias`, always as per channel", REAL, BIAS, "total = f32(total + f32(bias / unit))",
              "float/linear-float-bias-telling"),
    Otherwise("`float_bias`, always as per tensor", REAL, BIAS, "total = f32(bias * f32(1 / unit) + total)",
              "float/linear-float-bias-channels-telling"),
    Otherwise("`affine` divides by s", REAL, AFFINE, "rint(f32(f32(f32(f32(f32(acc) * unit) + bias) / s) + z))",
              "float/linear-affine-telling"),
    Otherwise("`affine`, + z exact", REAL, AFFINE, "rint(f32(f32(f32(f32(acc) * unit) + bias) * f32(1 / s)) + z)",
              "float/linear-affine-telling"),
    Otherwise("`integer_bias` rounds before it adds", REAL, "rint(f32(f32(acc + rint(f32(bias / unit)))",
              "rint(f32(f32(acc + f32(bias / unit))", "float/linear-integer-bias-telling"),
    Otherwise("`integer_bias_reciprocal` divides the bias", REAL, "f32(acc + rint(f32(bias * f32(1 / unit))))",
              "f32(acc + rint(f32(bias / unit)))", "float/linear-integer-bias-reciprocal-telling"),
    Otherwise("`integer_bias_reciprocal` divides the scales", REAL, "f32(unit * f32(1 / s))", "f32(unit / s)",
              "float/linear-integer-bias-reciprocal-telling"),
    Otherwise("`integer_bias` adds in float32", REAL, "rint(f32(f32(acc + rint(f32(bias / unit)))",
              "rint(f32(f32(f32(acc) + rint(f32(bias / unit)))", "float/linear-integer-bias-exact"),
    Otherwise("a bias in units of the sums is dequantized", REAL, UNITS, "False",
              "float/linear-integer-bias-int32-near"),
    Otherwise("units that differ by 10^-5", REAL, "abs(own - unit) * 10**6 <= unit", "abs(own - unit) * 10**5 <= unit",
              "float/linear-integer-bias-int32-unit"),
    Otherwise("units of one channel", REAL, "and all(abs(own - unit)", "and any(abs(own - unit)",
              "float/linear-integer-bias-int32-channel"),
    Otherwise("a bias per channel is dequantized", REAL, UNITS, f"len(b.grid.scale) == 1 and {UNITS}",
              "float/linear-integer-bias-int32-channels"),
    Otherwise("`float_bias` with exact sums", REAL, "        total = f32(acc)\n        if any_bias",
              "        total = Fraction(acc)\n        if any_bias", "float/linear-float-bias-exact"),
    Otherwise("`reciprocal`, + z exact", REAL, "rint(f32(rint(f32(x * f32(1 / s))) + z))",
              "rint(f32(x * f32(1 / s))) + z", "float/quantize-reciprocal-int32"),
    Otherwise("every quantized bias is added", REAL, UNITS, "True", "float/linear-integer-bias-int32-scale"),
    Otherwise("a bias with a zero point is added", REAL, "not any(b.zero_point) and ", "",
              "float/linear-integer-bias-int32-point"),
    Otherwise("a bias that is not quantized is added", REAL, f"b.grid is not None and {UNITS}",
              f"(b.grid is None or {UNITS})", "float/linear-integer-bias-int32-plain"),
    Otherwise("`mean_divide_offset`, + z exact", REAL, "rint(f32(f32(f32(total[place]) / n) + z))",
              "rint(f32(f32(total[place]) / n) + z)", "float/reducemean-offset"),
    # elements
    Otherwise("`sum` divides the scales", REAL, "f32(a.grid.scale[0] * f32(1 / grid.scale[0]))",
              "f32(a.grid.scale[0] / grid.scale[0])", "float/add-sum-telling"),
    Otherwise("`product` divides the scales", REAL, PRODUCT, "factor = f32(f32(units[0] * units[1]) / grid.scale[0])",
              "float/mul-product-telling"),
    Otherwise("`product` in another order", REAL, PRODUCT,
              "factor = f32(units[0] * f32(units[1] * f32(1 / grid.scale[0])))", "float/mul-product-telling"),
    Otherwise("exact products", REAL, "rint(f32(f32(products[place]) * factor))", "rint(f32(products[place] * factor))",
              "float/mul-product-wide"),
    Otherwise("`mean_reciprocal` of exact sums", REAL, "f32(f32(total[place]) * f32(Fraction(1, n)))) + z",
              "f32(total[place] * f32(Fraction(1, n)))) + z", "float/reducemean-mean-reciprocal-wide"),
    Otherwise("`mean_reciprocal_fma` of exact sums", REAL, "f32(f32(total[place]) * f32(Fraction(1, n)) + z)",
              "f32(total[place] * f32(Fraction(1, n)) + z)", "float/reducemean-mean-reciprocal-fma-wide"),
    Otherwise("`mean_divide_offset` of exact sums", REAL, "f32(f32(f32(total[place]) / n) + z)",
              "f32(f32(Fraction(total[place]) / n) + z)", "float/reducemean-mean-divide-offset-wide"),
    Otherwise("`mean_stored` of exact sums", REAL, "f32(f32(total[place] + n * z) * f32(Fraction(1, n)))",
              "f32((total[place] + n * z) * f32(Fraction(1, n)))", "float/reducemean-mean-stored-wide"),
    Otherwise("LeakyRelu with alpha in float64", REAL, 'f32(x * f32(at["alpha"]))', 'f32(x * at["alpha"])',
              "float/leakyrelu-alpha"),
    # bounds and padding
    Otherwise("Clip without bounds", MOVES, "if limit is None or grid is None:", "if True:\n            return None\n"
              "        if grid is None:", "float/clip-both"),
    Otherwise("Clip of plain integers without bounds", MOVES, "return None if limit is None else int(limit.items[0])",
              "return None", "integer/clip-plain-both"),
    Otherwise("bounds by `reciprocal`", MOVES, OFFSET,
              "rint(f32(_number(limit) * f32(1 / grid.scale[0]))) + grid.zero_point[0]", "float/clip-telling"),
    Otherwise("bounds by `divide`", MOVES, OFFSET, "rint(f32(_number(limit) / grid.scale[0])) + grid.zero_point[0]",
              "float/clip-telling"),
    Otherwise("bounds by `reciprocal_fma`", MOVES, OFFSET,
              "rint(f32(_number(limit) * f32(1 / grid.scale[0]) + grid.zero_point[0]))", "float/clip-telling"),
    Otherwise("bounds as stored, on another grid", MOVES, OFFSET, "int(limit.items[0])", "float/clip-quantized"),
    Otherwise("Clip without the clamp of its output", MOVES, "return q if grid is None else grid.clamp(q)", "return q",
              "integer/clip-range"),
    Otherwise("the lower bound decides where both cross", MOVES, "q = q if most is None else min(q, most)",
              "q = min(x[place], q if most is None else most) if least is None else max(least, min(x[place], most))",
              "float/clip-crossed"),
    Otherwise("Pad by `reciprocal`", MOVES, "rint(f32(value / x.grid.scale[0]))",
              "rint(f32(value * f32(1 / x.grid.scale[0])))", "float/pad-telling"),
    Otherwise("Pad with integers as stored, of another grid", MOVES, "value = _number(constant) if x.grid is not None",
              "value = _number(None if constant is None else Value((), constant.items, '')) if x.grid is not None",
              "float/pad-quantized"),
    Otherwise("Pad beyond the range", MOVES,
              "value = x.grid.clamp(rint(f32(value / x.grid.scale[0])) + x.grid.zero_point[0])",
              "value = rint(f32(value / x.grid.scale[0])) + x.grid.zero_point[0]", "integer/pad-narrow"),
    # parts
    Otherwise("Slice backwards from beyond the end", MOVES, "min(max(start, 0), size - 1)", "min(max(start, 0), size)",
              "integer/slice-backwards-beyond"),
    Otherwise("Slice backwards without the first element", MOVES, "min(max(end, -1), size - 1)",
              "min(max(end, 0), size - 1)", "integer/slice-backwards-beyond"),
    Otherwise("Slice backwards from before the first element", MOVES, "min(max(start, 0), size - 1)",
              "min(max(start, -1), size - 1)", "integer/slice-backwards-none"),
    Otherwise("Slice with negative bounds as they are", MOVES, "bound + size if bound < 0 else bound for", "bound for",
              "integer/slice-backwards-part"),
    Otherwise("Slice forwards whatever the step", MOVES, "    if step > 0:\n", "    step = abs(step)\n    if True:\n",
              "integer/slice-backwards-part"),
    Otherwise("Gather without negative indices", MOVES, "indices[place[axis : axis + rank]] % x.shape[axis]",
              "max(indices[place[axis : axis + rank]], 0)", "integer/gather"),
    Otherwise("Gather along a negative axis as it is", MOVES, 'axis, rank = at["axis"] % len(x.shape), len(',
              'axis, rank = max(at["axis"], 0), len(', "integer/gather-axis"),
    # resizing
    Otherwise("linear, the first axis first", RESIZE, "in reversed(range(len(x.shape))):", "in range(len(x.shape)):",
              "float/resize-interpolate-half-pixel-telling"),
    Otherwise("linear, `interpolate_fma`, the first axis first", RESIZE, "in reversed(range(len(x.shape))):",
              "in range(len(x.shape)):", "float/resize-interpolate-fma-half-pixel-telling"),
    Otherwise("low + t · (high - low)", RESIZE, BETWEEN, "return f32(first + f32(t * f32(second - first)))",
              "float/resize-interpolate-half-pixel-telling"),
    Otherwise("fma(t, high - low, low)", RESIZE, BETWEEN, "return f32(first + t * f32(second - first))",
              "float/resize-interpolate-fma-half-pixel-telling"),
    Otherwise("the other product is fused", RESIZE, BETWEEN, "return f32(f32(second * t) + first * f32(1 - t))",
              "float/resize-interpolate-fma-half-pixel-telling"),
    Otherwise("(i · (in - 1)) / (out - 1)", RESIZE, "f32(i * f32(Fraction(size - 1, out - 1)))",
              "f32(Fraction(i * (size - 1), out - 1))", "float/resize-interpolate-align-corners-telling"),
    Otherwise("positions of half_pixel in float64", RESIZE, "return f32((product if fused else f32(product)) - HALF)",
              "return product - HALF", "float/resize-interpolate-half-pixel-telling"),
    Otherwise("positions by fma under `interpolate`", RESIZE, "(product if fused else f32(product))",
              "(f32(product) if fused else product)", "float/resize-interpolate-half-pixel-telling"),
    Otherwise("exact steps", RESIZE, "f32(Fraction(size, sizes.items[place]))",
              "Fraction(size, sizes.items[place])", "float/resize-interpolate-half-pixel-telling"),
    Otherwise("steps of scales by the sizes", RESIZE, "f32(1 / scales.items[place])",
              "f32(Fraction(size, floor(f32(size * scales.items[place]))))", "float/resize-interpolate-scales"),
    Otherwise("nearest, steps of scales by the sizes", RESIZE, "f32(1 / scales.items[place])",
              "f32(Fraction(size, floor(f32(size * scales.items[place]))))", "integer/resize-nearest-steps"),
    Otherwise("pytorch_half_pixel as half_pixel", RESIZE, 'mode == "pytorch_half_pixel" and out == 1', "False",
              "float/resize-interpolate-one"),
    Otherwise("interpolation without - z + z", RESIZE, "rint(f32(f32(between[place] - z) + z))", "rint(between[place])",
              "float/resize-interpolate-half-pixel-telling"),
    Otherwise("nearest, positions of half_pixel in float64", RESIZE,
              "return f32((product if fused else f32(product)) - HALF)", "return product - HALF",
              "integer/resize-nearest-float32"),
    Otherwise("nearest, positions of asymmetric in float64", RESIZE, "return f32(i * step)", "return i * step",
              "integer/resize-nearest-float32-floor"),
    Otherwise("nearest, exact steps", RESIZE, "f32(Fraction(size, sizes.items[place]))",
              "Fraction(size, sizes.items[place])", "integer/resize-nearest-float32-floor"),
    Otherwise("sizes that are exact products", RESIZE, "floor(f32(size * scales.items[place]))",
              "floor(size * scales.items[place])", "integer/resize-nearest-scales"),
    Otherwise("an axis of unchanged size is resized", RESIZE, "            if out != size:", "            if True:",
              "integer/resize-nearest-kept"),
    Otherwise("an axis of unchanged size is not cropped", RESIZE, "        step = f32(f64(", "        if out == size:\n"
              "            start, end = Fraction(0), Fraction(1)\n        step = f32(f64(", "float/resize-crop"),
    Otherwise("nearest, p + ½ is rounded", RESIZE, "floor(place + HALF)", "floor(f32(place + HALF))",
              "integer/resize-nearest-half"),
    # inputs that are quantized at run time
    Otherwise("zero points of weights are left out", REAL, "(w[m, k] - zw)", "w[m, k]", "float/dynamic-fma-tensor"),
    Otherwise("f32(1 / s) of the float64 s", REAL, "grid = Grid([f32(s)], [z]", "grid = Grid([s], [z]",
              "float/dynamic-fma-telling"),
    Otherwise("z from f32(s)", REAL, "s = f64(f64(high - low) / top)", "s = f32(f64(high - low) / top)",
              "float/dynamic-fma-telling"),
    Otherwise("a range of 0 without s = 0.1", REAL, "if not f32(s) or 1 / f32(s) >= Fraction(2) ** 128:", "if False:",
              "float/dynamic-fma-telling"),
    Otherwise("1 / f32(s) infinite in float64", REAL, " or 1 / f32(s) >= Fraction(2) ** 128", "",
              "float/dynamic-fma-telling"),
    Otherwise("narrow ranges are not stretched", REAL, "if s < least:", "if False:", "float/dynamic-fma-telling"),
    Otherwise("low stays where the range is stretched", REAL, "low, s = f32(low * f32(least / f32(s))), least",
              "s = least", "float/dynamic-fma-telling"),
    Otherwise("reduce_range clamps to 0..127", REAL, "return s, rint(f64(-low / s)), 0, 255",
              "return s, rint(f64(-low / s)), 0, top", "float/dynamic-fma-reduced-telling"),
    Otherwise("no clamp to 0..255", REAL, "return s, rint(f64(-low / s)), 0, 255",
              "return s, rint(f64(-low / s)), 0, 300", "float/dynamic-fma-telling"),
    Otherwise("i(s) from f32(s)", REAL, "unit = f32(f32(1 / f32(1 / s)) *", "unit = f32(f32(1 / f32(1 / f32(s))) *",
              "float/dynamic-inverse-telling"),
    Otherwise("i(sw) from f32(sw)", REAL, "f32(1 / f32(1 / sw))", "f32(1 / f32(1 / f32(sw)))",
              "float/dynamic-inverse-float64"),
    Otherwise("`dynamic_inverse` as `dynamic_add`", REAL, "unit = f32(f32(1 / f32(1 / s)) * f32(1 / f32(1 / sw)))",
              "pass", "float/dynamic-inverse-telling"),
    Otherwise("`dynamic_divide` with a range of 0", REAL, "f32(f32(high - low) / top) or Fraction(1)",
              "f32(f32(high - low) / top)", "float/dynamic-divide-telling"),
    Otherwise("`dynamic_divide`, high - low in float64", REAL, "s = f32(f32(high - low) / top) or",
              "s = f32((high - low) / top) or", "float/dynamic-divide-telling"),
    Otherwise("`dynamic_divide`, z in float64", REAL, "return s, rint(f32(-low / s)), 0, 255",
              "return s, rint(-low / s), 0, 255", "float/dynamic-divide-telling"),
    Otherwise("`dynamic_reciprocal`, high - low in float64", REAL, "s = max(f32(f32(high - low) / top),",
              "s = max(f32((high - low) / top),", "float/dynamic-reciprocal-telling"),
    Otherwise("`dynamic_reciprocal`, z in float64", REAL, "-rint(f32(low / s))", "-rint(low / s)",
              "float/dynamic-reciprocal-telling"),
    Otherwise("`dynamic_reciprocal` without its least scale", REAL, "Fraction(1, 1 << 12)", "Fraction(1, 1 << 40)",
              "float/dynamic-reciprocal-telling"),
    Otherwise("`dynamic_symmetric` without its least scale", REAL, "Fraction(1, 1 << 23)", "Fraction(1, 1 << 60)",
              "float/dynamic-symmetric-telling"),
    Otherwise("`dynamic_symmetric` by 127", REAL, "Fraction(top, 2)", "Fraction(top // 2)",
              "float/dynamic-symmetric-telling"),
    # integers only
    Otherwise("a shift that rounds towards 0", RESCALE, "rounded = (q * m + a) >> s",
              "rounded = abs(q * m + a) >> s if q * m + a > 0 else -(abs(q * m + a) >> s)",
              "integer/multiply-shift-floor"),
    Otherwise("half for a shift of 0", RESCALE, "half = 1 << (s - 1) if s else 0", "half = 1 << (s - 1) if s else 1",
              "integer/fixed-point-single-0"),
    Otherwise("2^30 for shifts up to 31", RESCALE, "0 if s <= 31 else", "", "integer/fixed-point-double-31"),
    Otherwise("2^30 whatever the sign", RESCALE, "1 << 30 if q >= 0 else -(1 << 30)", "1 << 30",
              "integer/fixed-point-double-32"),
    Otherwise("x > t", RESCALE, "sum(q >= thresholds", "sum(q > thresholds", "integer/thresholds"),
    Otherwise("zero points of sums are subtracted", RESCALE, "chosen = x[place], of(",
              "chosen = x[place] - zero(x, place), of(", "integer/multiply-shift-zero-point"),
    Otherwise("RequantShift saturates", RESCALE, "(rounded - low) % (high - low + 1) + low",
              "min(max(rounded, low), high)", "float/requant-shift-plain"),
    Otherwise("halves down", RESCALE, "exact.__floor__()", "exact.__ceil__() - 1", "integer/requant-shift-narrow"),
)  # fmt: skip


@pytest.fixture(scope="module")
def packages() -> Iterator[list[str]]:
    """The names of the changed packages, which are forgotten at the end."""
    names: list[str] = []
    yield names
    for name in [each for each in sys.modules if each.partition(".")[0] in names]:
        del sys.modules[name]


compiled = cache(compile)


def evaluation(packages: list[str], change: Otherwise | None) -> Any:
    """`outputs` of the second evaluation, with one change."""
    name = f"evaluation_{len(packages)}"
    packages.append(name)
    package = sys.modules[name] = ModuleType(name)
    package.__path__ = []
    for each in MODULES:
        text = SOURCES[each]
        if change is not None and each == change.module:
            assert text.count(change.old) == 1, f"{change.what}: {text.count(change.old)} times in {each}.py"
            text = text.replace(change.old, change.new)
        module = sys.modules[f"{name}.{each}"] = ModuleType(f"{name}.{each}")
        module.__package__ = name
        exec(compiled(text, f"{each}.py", "exec"), module.__dict__)
    return sys.modules[f"{name}.evaluate"].outputs


def gives_what_is_stated(outputs: Any, said: dict[str, Any]) -> bool:
    try:
        return all(outputs(said, vector) == vector["outputs"] for vector in said["vectors"])
    except (AssertionError, ArithmeticError, IndexError):
        return False


def test_every_other_way_to_compute_is_seen_in_a_file(packages: list[str]) -> None:
    as_stated, unseen = evaluation(packages, None), []
    for way in WAYS:
        said = said_of(ENTRIES[way.file])
        assert gives_what_is_stated(as_stated, said), way.file
        if gives_what_is_stated(evaluation(packages, way), said):
            unseen.append(way.what)
    assert not unseen, "\n".join(unseen)
    tell(f"conformance suite: {len(WAYS)} other ways to compute are seen, each in a file")


# Checks of a reader


TEXT = Path(spec_reader.__file__).read_text(encoding="utf-8")


def checks() -> list[ast.Call]:
    """The calls of `check` in the reader of the specification."""
    calls = [node for node in ast.walk(ast.parse(TEXT)) if isinstance(node, ast.Call)]
    return sorted(
        (call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "check"),
        key=lambda call: (call.lineno, call.col_offset),
    )


def conditions(call: ast.Call) -> list[ast.expr]:
    """The condition of a check, or, of conditions that must all hold, each."""
    condition = call.args[0]
    return condition.values if isinstance(condition, ast.BoolOp) and isinstance(condition.op, ast.And) else [condition]


def without(condition: ast.expr) -> dict[str, Any]:
    """The reader without a condition."""
    lines = TEXT.split("\n")
    assert condition.lineno == condition.end_lineno
    line = lines[condition.lineno - 1].encode()
    kept = line[: condition.col_offset] + b"True" + line[condition.end_col_offset :]
    lines[condition.lineno - 1] = kept.decode()
    names: dict[str, Any] = {"__name__": "spec_reader"}
    exec(compile("\n".join(lines), "spec_reader.py", "exec"), names)
    return names


def rule_broken(reader: dict[str, Any], data: bytes, shards: dict[str, bytes]) -> str:
    """The rule by which a file is refused; "" if it is read, or is the end of the reader."""
    try:
        reader["Network"](data, shards)
    except reader["Broken"] as error:
        return str(error).partition(":")[0]
    except Exception:
        return ""
    return ""


def test_no_check_of_a_reader_is_without_a_file_that_needs_it() -> None:
    files = [(path_of(entry).read_bytes(), shards_of(entry)) for entry in REFUSED]
    found = [(*file, rule) for file in files if (rule := rule_broken(vars(spec_reader), *file))]
    idle, count = [], 0
    for call in checks():
        found.sort(key=lambda each: each[-1] not in ast.unparse(call.args[1]))  # those of its rule first
        for condition in conditions(call):
            reader = without(condition)
            count += 1
            if all(rule_broken(reader, *file) == rule for *file, rule in found):
                idle.append(ast.unparse(call))
    assert not idle, "\n".join(idle)
    tell(f"conformance suite: {count} conditions of a reader, for each a file that it does not refuse without")
