"""What differs between two tensors, in words: read "in a → in b"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..content import attribute_words
from ..errors import shortened
from ..model import Attribute, Parameter, Quantization, Tensor
from ..quantization import PARAMETERS

NOWHERE = "nothing"
ARROW = "→"
LONGEST = 500
"""Characters of a name: a file may have a megabyte, and thousands of nodes that read it."""


def changed(what: str, mine: Any, theirs: Any) -> Iterator[str]:
    if mine != theirs:
        yield _change(what, mine, theirs)


def attribute_changed(name: str, mine: Attribute | None, theirs: Attribute | None) -> Iterator[str]:
    """Compared as in the content id: NaN equals itself, and an integer no float."""
    a, b = (None if each is None else [*attribute_words(each)] for each in (mine, theirs))
    if a != b:
        yield _change(name, mine, theirs)


def names_changed(what: str, mine: Sequence[str], theirs: Sequence[str]) -> Iterator[str]:
    """Lists of names, any of which may contain a comma: quoted if they look the same."""
    if mine != theirs:
        told = names_told(mine), names_told(theirs)
        yield _change(what, *(told if told[0] != told[1] else ([*map(short, each)] for each in (mine, theirs))))


def names_told(names: Sequence[str]) -> str:
    return ", ".join(map(short, names))


def short(name: str) -> str:
    return shortened(name, LONGEST)


def _change(what: str, mine: Any, theirs: Any) -> str:
    show = repr if _shown(mine) == _shown(theirs) else _shown  # 1 and 1.0
    return f"{what} {show(mine)} {ARROW} {show(theirs)}"


def present(what: str, mine: object, theirs: object) -> Iterator[str]:
    """The difference if only one of two values is present."""
    if (mine is None) != (theirs is None):
        had, has = ("without" if each is None else "with" for each in (mine, theirs))
        yield f"{had} {what} {ARROW} {has} {what}"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    return (NOWHERE if value is None else str(value)) or "''"


def tensor_words(a: Tensor, b: Tensor, provenance: bool) -> Iterator[str]:
    yield from changed("dtype", a.dtype, b.dtype)
    if a.shape != b.shape:
        told = sizes(a.shape), sizes(b.shape)
        yield _change("shape", *(told if told[0] != told[1] else (a.shape, b.shape)))  # a size may be named "3"
    yield from quantization_words(a.quantization, b.quantization)
    if provenance:
        yield from changed("name", a.name, b.name)
        yield from names_changed("aliases", a.aliases, b.aliases)
        if a.quantization is not None and b.quantization is not None:
            yield from changed("scale dtype", a.quantization.scale_dtype, b.quantization.scale_dtype)
            seen = (None if each is None else repr(each) for each in (a.quantization.observed, b.quantization.observed))
            yield from changed("observed", *seen)  # as text: -0.0 is not 0.0
            yield from names_changed("names of scale and zero point", a.quantization.names, b.quantization.names)
            yield from _form_words(a.quantization, b.quantization)


def sizes(shape: Any) -> str:
    return "?" if shape is None else f"[{','.join('?' if size is None else str(size) for size in shape)}]"


def quantization_words(a: Quantization | None, b: Quantization | None) -> Iterator[str]:
    """What differs between two quantizations: each field, and the first differing scale and zero point."""
    if a is None or b is None:
        yield from present("quantization", a, b)
        return
    for name in ("axis", "quant_min", "quant_max"):
        yield from changed(name, getattr(a, name), getattr(b, name))
    if a.is_blocked or b.is_blocked:
        yield from changed("blocks", sizes(a.block), sizes(b.block))
    for name in PARAMETERS:
        yield from _numbers_words(name, a, b)


def without_single_channel(grid: Quantization) -> Quantization:
    """Per tensor instead of per channel if there is one channel: ONNX does not tell these apart."""
    return replace(grid, block=()) if grid.is_per_channel and len(grid.scale) == 1 else grid


def _numbers_words(name: str, a: Quantization, b: Quantization) -> Iterator[str]:
    """What differs between two arrays of numbers. Tensors may share large ones, which are read once."""
    what, mine, theirs = name.replace("_", " "), getattr(a, name), getattr(b, name)
    is_affine = a.is_affine and b.is_affine and mine is not None
    counts = (len(a.scale), len(b.scale)) if is_affine and name == "zero_point" and len(mine) != len(theirs) else ()
    if mine == theirs:
        return

    def find() -> list[str]:
        if counts:  # one for all, or one for each scale
            return [*_first_difference(what, a.each_zero_point, b.each_zero_point)]
        return [*(_first_difference if is_affine else _parameter_words)(what, mine, theirs)]

    both = [each for each in (mine, theirs) if each is not None]
    largest = max(both, key=len)
    yield from largest.data.once(("words", what, mine, theirs, is_affine, counts), find)


def _form_words(a: Quantization, b: Quantization) -> Iterator[str]:
    """Equal numbers that are stored in different ways, such as one zero point for all channels or one for each."""
    for name in PARAMETERS:
        what, mine, theirs = name.replace("_", " "), getattr(a, name), getattr(b, name)
        if None in (mine, theirs) or mine == theirs or any(_numbers_words(name, a, b)):
            continue
        if mine.dtype == theirs.dtype:
            yield f"{what} stored in another form"
        elif name != "scale":  # tensor_words tells its type
            yield from changed(f"{what} dtype", mine.dtype, theirs.dtype)


def _parameter_words(what: str, a: Parameter | None, b: Parameter | None) -> Iterator[str]:
    if a is None or b is None:
        yield from present(what, a, b)
    elif sum(size > 1 for size in a.shape) < 2 and len(a.shape) == len(b.shape):
        yield from _first_difference(what, a, b)
    elif (a.dtype, a.shape) != (b.dtype, b.shape):
        yield from changed(f"{what}s", f"{a.dtype}{sizes(a.shape)}", f"{b.dtype}{sizes(b.shape)}")
    elif a != b:
        different, largest = values_differ(a.real, b.real)
        yield f"{different:,} of {len(a):,} {what}s of blocks differ by at most {largest:g}"


def _first_difference(what: str, a: Sequence[float], b: Sequence[float]) -> Iterator[str]:
    if len(a) != len(b):
        yield f"{len(a)} {ARROW} {len(b)} {what}s"
        return
    off = [index for index, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
    if off:
        index = off[0]
        place = f"[{index}]" if len(a) > 1 else ""
        more = f" and {len(off) - 1} more" if len(off) > 1 else ""
        yield f"{what}{place} {_shown(a[index])} {ARROW} {_shown(b[index])}{more}"


def values_differ(a: Any, b: Any) -> tuple[int, float]:
    """How many elements of two arrays of one dtype and size differ, bit by bit, and the largest difference."""
    import numpy as np

    bits = np.dtype(f"u{a.dtype.itemsize}")
    x, y = (np.ascontiguousarray(each).reshape(-1) for each in (a, b))
    off = x.view(bits) != y.view(bits)
    count = int(off.sum())
    if not count:
        return 0, 0.0
    with np.errstate(invalid="ignore"):
        distance = np.abs(x[off].astype(np.float64) - y[off].astype(np.float64))
    return count, float(np.where(np.isnan(distance), np.inf, distance).max())
