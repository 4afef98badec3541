"""TorchScript's operators on known values: numbers, strings, lists, dicts. No tensors are read.

`on_values` has those that need only plain values; `on_containers` those that only move the
elements of lists and dicts, which may be symbolic.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....budget import AT_ONCE, reading
from ....errors import SourceError
from ...harmless import flat_key, pairs
from .branches import Text

SIZE_LIMIT = 1 << 20
"""The most elements of a list or string that one operator creates; they are counted afterwards."""

INT_LIMIT = 1 << 63
"""One more than the largest integer of 64 bits."""


class Whole(int):
    """A number that traced code has as a tensor of int64 without dimensions."""

    __slots__ = ()


class Single(float):
    """The same of float32, what PyTorch computes from a `Whole` that is not whole: each result is rounded."""

    __slots__ = ()


def of_tensor(value: Any) -> Any:
    """A number as that of a tensor without dimensions."""
    if type(value) is float:
        return Single(struct.unpack("<f", struct.pack("<f", value))[0])
    return Whole(value) if type(value) is int else value


def fold(table: Mapping[str, Callable[..., Any]], target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of an operator by one of the tables; NotImplemented if it is not in a table or cannot be applied.

    Raises SourceError if the code fails as it would in PyTorch, or would create an excessively large value.
    """
    function = table.get(target)
    if function is None:
        return NotImplemented
    try:
        if target in _OF_BYTES and args and isinstance(args[0], str) and not args[0].isascii():
            raise ValueError("PyTorch counts its bytes")
        result = function(*args, **kwargs)
        if target not in _TO_NUMBERS and any(isinstance(arg, Whole | Single) for arg in args):
            result = of_tensor(result)
    except (ArithmeticError, LookupError, ValueError) as error:
        raise SourceError(f"{target} fails on {_shown(args)}: {error}") from None
    except (TypeError, AttributeError):
        return NotImplemented
    if isinstance(result, int) and not -INT_LIMIT <= result < INT_LIMIT:
        raise SourceError(f"the result of {target} exceeds 64 bits")
    return result


def _shown(args: Sequence[Any]) -> str:
    return ", ".join(str(arg)[:40] if isinstance(arg, int | float | str) else type(arg).__name__ for arg in args)


def cost(target: str, args: Sequence[Any]) -> int:
    """About how many elements an operator on lists or dicts reads."""
    if target in _QUICK:
        return sum(map(reading, args[1:]))
    moved = len(args[0]) // AT_ONCE if target in mutations and args and isinstance(args[0], list) else 0
    looked_at = args[1:] if target in mutations else args
    return moved + sum(
        len(arg) + (0 if isinstance(arg, str) else sum(map(_looking_up, arg)))
        for arg in looked_at
        if isinstance(arg, list | tuple | dict | str)
    )


def _looking_up(value: Any) -> int:
    """Operations to compare an element, or the key of a pair."""
    return reading(value[0] if isinstance(value, tuple) and value else value)


def is_plain(value: Any) -> bool:
    return value is None or isinstance(value, int | float | str)


# -- numbers and strings -------------------------------------------------------------------------------


def _are_whole(a: Any, b: Any) -> bool:
    return isinstance(a, int) and isinstance(b, int)


def _divide(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return float(a) / float(b)
    if rounding_mode == "floor":
        return a // b
    if not _are_whole(a, b):
        return float(math.trunc(a / b))
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _divide_before_version_4(a: Any, b: Any) -> Any:
    """`div` before PyTorch 1.6: of tensors of integers rounded towards zero; numbers are divided as today."""
    rounds = _are_whole(a, b) and any(isinstance(each, Whole) for each in (a, b))
    return _divide(a, b, rounding_mode="trunc" if rounds else None)


def _floor_division(a: Any, b: Any) -> Any:
    """`//` of TorchScript: of floats the floor of the rounded quotient, 10 for 1.0 // 0.1, where Python computes 9."""
    return a // b if _are_whole(a, b) else math.copysign(math.floor(a / b), a / b)


def _remainder(a: Any, b: Any) -> Any:
    """The remainder, if it is the same for numbers, which PyTorch computes by this formula, and for tensors."""
    remainder = a % b
    if _are_whole(a, b):
        if (a < 0) == (b < 0) and abs(b) + abs(a) % abs(b) >= INT_LIMIT:
            raise OverflowError("beyond 64 bits")
        return remainder
    if str(math.fmod(b + math.fmod(a, b), b)) != str(remainder):
        raise ArithmeticError("PyTorch rounds it in another way for numbers than for tensors")
    return remainder


def _power(base: Any, exponent: Any) -> Any:
    """Of two integers it is a float, unless they are tensors."""
    of_tensors = isinstance(base, Whole) or isinstance(exponent, Whole)
    return power(base, exponent) if of_tensors else math.pow(base, exponent)


def power(base: Any, exponent: Any) -> Any:
    """The power as in Python: that of integers is one."""
    if not _are_whole(base, exponent) or exponent < 0:
        return math.pow(base, exponent)
    if abs(base) > 1 and base.bit_length() * exponent > 128:
        raise OverflowError("beyond 64 bits")
    return base**exponent


def _multiply(a: Any, b: Any) -> Any:
    items, count = (a, b) if isinstance(a, list | str) else (b, a)
    if isinstance(items, list | str) and not 0 <= len(items) * _checked(count, int) <= SIZE_LIMIT:
        raise OverflowError("too long, or a negative length")
    return _checked(items, int | float | list | str) * _checked(count, int | float)


def _of(kinds: Any, function: Callable[..., Any], others: Any = object) -> Callable[..., Any]:
    """The function, for a first argument of these types, and others of those: Python's operators take more types than
    PyTorch's, which have no texts, lists or tuples among their numbers."""

    def typed(value: Any, *rest: Any, **options: Any) -> Any:
        return function(_checked(value, kinds), *(_checked(each, others) for each in rest), **options)

    return typed


def _shift(a: int, b: int) -> int:
    return a * int(power(2, b))


def _alike(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """The function, for two values: as in PyTorch, an integer becomes a float if the other one is a float."""

    def applied(a: Any, b: Any) -> Any:
        if isinstance(a, float) or isinstance(b, float):
            a, b = (float(each) if isinstance(each, int) else each for each in (a, b))
        return function(a, b)

    return applied


def _ordered(choose: Callable[..., Any], precedes: Callable[[Any, Any], bool] = operator.lt) -> Callable[..., Any]:
    """The function, for numbers that have an order: what it makes of NaN depends on the implementation.

    Of two values it is the first that `precedes` the other.
    """
    of_two = _alike(lambda a, b: a if precedes(a, b) else b)

    def chosen(*values: Any) -> Any:
        if any(each != each for each in (*values, *(values[0] if isinstance(values[0], list) else ()))):
            raise ValueError("not a number")
        return of_two(*values) if len(values) == 2 else choose(*values)

    return chosen


def _text(value: Any) -> Any:
    if not is_plain(value):
        raise TypeError
    return str(value) if isinstance(value, _EXACT) else Text(str(value))


_EXACT = (int, str)
"""Types, beside bool, whose values PyTorch and Python write alike."""


def _strip(text: str, letters: str | None = None) -> str:
    """Python looks through the letters for each one of the text, so each is given once."""
    several = None if letters is None else "".join(dict.fromkeys(_checked(letters, str)))
    stripped: str = _checked(text, str).strip(several)
    return stripped


def _join(joint: str, parts: Sequence[str]) -> str:
    if len(joint) * len(parts) + sum(map(len, parts)) > SIZE_LIMIT:
        raise OverflowError("too long")
    return joint.join(parts)


def _format(template: str, *values: Any) -> Any:
    """TorchScript's format knows `{}` only; unknown values are shown as `?`."""
    pieces = template.split("{}")
    shown = [str(value) if is_plain(value) else "?" for value in values[: len(pieces) - 1]]
    shown += [""] * (len(pieces) - len(shown))
    text = _join("", [part for pair in zip(pieces, shown, strict=True) for part in pair])
    return text if all(isinstance(value, _EXACT) for value in values) else Text(text)


def _round(value: float, digits: int | None = None) -> float:
    return math.copysign(round(value), value) if digits is None else round(float(value), digits)


def _parsed(kind: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The conversion to a number, of those texts that PyTorch and Python read alike."""

    def converted(value: Any) -> Any:
        if isinstance(value, str) and not (value.isascii() and value == value.strip() and "_" not in value):
            raise ValueError("PyTorch reads it in another way")
        return kind(value)

    return converted


def _identity(value: Any) -> Any:
    return value


_on_numbers: dict[str, Callable[..., Any]] = {
    "aten::sub": operator.sub,
    "aten::rsub": lambda a, b: b - a,
    "aten::div": _divide,
    "qfmt::div_0_3": _divide_before_version_4,
    "aten::floordiv": _floor_division,
    "aten::floor_divide": operator.floordiv,
    "aten::remainder": _remainder,
    "aten::fmod": math.fmod,
    "aten::pow": _power,
    "aten::pow.int_to_int": power,
    "aten::neg": operator.neg,
    "prim::abs": abs,
    "aten::abs": abs,
    "aten::__and__": operator.and_,
    "aten::__or__": operator.or_,
    "aten::__xor__": operator.xor,
    "aten::__lshift__": _shift,
    "aten::__rshift__": operator.rshift,
    "aten::floor": lambda value: math.floor(float(value)),
    "aten::ceil": math.ceil,
    "aten::round": _round,
    "aten::sqrt": math.sqrt,
    "aten::exp": math.exp,
    "aten::log": math.log,
    "aten::log2": math.log2,
    "aten::log10": math.log10,
    "aten::sin": math.sin,
    "aten::cos": math.cos,
    "aten::tan": math.tan,
    "aten::isinf": math.isinf,
    "aten::isnan": math.isnan,
    "aten::isfinite": math.isfinite,
    "aten::__range_length": lambda start, stop, step: len(range(start, stop, step)),
    "aten::__derive_index": lambda index, start, step: start + index * step,
}

on_values: dict[str, Callable[..., Any]] = {
    **{name: _of(int | float, function, int | float) for name, function in _on_numbers.items()},
    "aten::add": operator.add,
    "aten::mul": _multiply,
    "prim::min": _ordered(min),
    "prim::max": _ordered(max, operator.gt),
    "aten::eq": _alike(operator.eq),
    "aten::ne": _alike(operator.ne),
    "aten::lt": _alike(operator.lt),
    "aten::le": _alike(operator.le),
    "aten::gt": _alike(operator.gt),
    "aten::ge": _alike(operator.ge),
    "aten::__not__": operator.not_,
    "aten::Int": _parsed(int),
    "aten::Float": _parsed(float),
    "aten::Bool": bool,
    "aten::IntImplicit": int,
    "aten::FloatImplicit": float,
    "aten::ScalarImplicit": _identity,
    "prim::NumToTensor": of_tensor,
    "aten::detach": _identity,
    "aten::is_grad_enabled": lambda: False,
    "aten::set_grad_enabled": lambda _mode: None,
    "aten::is_autocast_enabled": lambda: False,
    "aten::is_autocast_cpu_enabled": lambda: False,
    "aten::get_autocast_dtype": lambda device: 15 if device == "cpu" else 5,  # c10::ScalarType: bfloat16, float16
    "aten::_get_tracing_state": lambda: False,
    "aten::is_scripting": lambda: True,
    "aten::device": lambda name, index=None: name if index is None else f"{name}:{index}",
    "prim::type": _of(str, lambda device: device.partition(":")[0]),
    "aten::str": _text,
    "aten::upper": str.upper,
    "aten::lower": str.lower,
    "aten::startswith": str.startswith,
    "aten::endswith": str.endswith,
    "aten::strip": _strip,
    "aten::split": lambda text, *rest: str.split(text, *rest),
    "aten::join": _join,
    "aten::sorted": _ordered(sorted),
    "aten::divmod": lambda a, b: (_floor_division(a, b), _remainder(a, b)),
    "aten::gcd": math.gcd,
    "aten::replace": lambda text, old, new: text.replace(old, new) if len(new) <= len(old) else NotImplemented,
}


# -- lists and dicts -----------------------------------------------------------------------------------


def _checked(value: Any, kinds: Any) -> Any:
    if not isinstance(value, kinds):
        raise TypeError
    return value


def item(container: Any, index: Any) -> Any:
    """`container[index]` of a known list, tuple, string or dict; TypeError for others."""
    if isinstance(container, list | tuple | str) and isinstance(index, int):
        return container[index]
    if isinstance(container, dict) and is_plain(index):
        return container[index]
    raise TypeError


def _contains(container: Any, value: Any) -> bool:
    if not is_plain(value) or (type(container) is list and not all(map(is_plain, container))):
        raise TypeError
    if type(container) is list:
        return any(each == value for each in container)  # `in` finds the same NaN
    return value in container


def _places(items: list[Any], value: Any) -> list[int]:
    """Where a list has a value."""
    if not is_plain(value) or not all(map(is_plain, items)):
        raise TypeError
    return [place for place, each in enumerate(items) if each == value]


def _remove(items: list[Any], value: Any) -> None:
    del items[_places(items, value)[0]]


def _different(a: Any, b: Any) -> bool:
    """True for lists that differ in their length, or in elements that are known; TypeError if that is not known."""
    pairs = zip(a, _checked(b, list), strict=False)
    if len(a) != len(b) or any(is_plain(x) and is_plain(y) and x != y for x, y in pairs):
        return True
    raise TypeError


def _append(items: list[Any], value: Any) -> list[Any]:
    items.append(value)
    return items


def _set_item(container: Any, index: Any, value: Any) -> Any:
    container[index] = value
    return container


def _dict(value: Any = ()) -> dict[Any, Any]:
    return pairs(list(value.items()) if isinstance(value, dict) else value)


def _at(kinds: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of such a container and an index, which must be fast to hash: a tuple may take exponential time."""

    def indexed(container: Any, *rest: Any, **options: Any) -> Any:
        if not all(map(is_plain, rest[:1])):
            raise TypeError
        if isinstance(container, dict):
            flat_key(rest[0] if rest else None, len(container))
        return function(_checked(container, kinds), *rest, **options)

    return indexed


def _delete(container: Any, index: Any) -> None:
    del container[index]


_LISTED = (list, tuple, str)

on_containers: dict[str, Callable[..., Any]] = {
    "aten::len": _of((*_LISTED, dict), len),
    "aten::__getitem__": item,
    "aten::slice": _of(_LISTED, lambda value, start=None, stop=None, step=1: value[slice(start, stop, step)]),
    "aten::add": _of(list, lambda a, b: a + _checked(b, list)),
    "aten::list": _of(_LISTED, list),
    "aten::copy": _of(list, list.copy),
    "aten::dict": _dict,
    "aten::keys": _of(dict, list),
    "aten::values": _of(dict, lambda value: list(value.values())),
    "aten::items": _of(dict, lambda value: list(value.items())),
    "aten::get": _at(dict, dict.get),
    "aten::__contains__": _of(list | dict | str, _contains),
    "aten::eq": _of(list, lambda a, b: not _different(a, b)),
    "aten::ne": _of(list, _different),
    "aten::all": _of(list, lambda value: all(_checked(each, bool | int | float) for each in value)),
    "aten::any": _of(list, lambda value: any(_checked(each, bool | int | float) for each in value)),
    "aten::sum": _of(list, lambda value: sum(_checked(each, bool | int | float) for each in value)),
    "aten::index": _of(list, lambda items, value: _places(items, value)[0]),
    "aten::count": _of(list, lambda items, value: len(_places(items, value))),
    "aten::format": _format,
    "aten::percentFormat": lambda template, *_values: Text(template),
    "prim::rangelist": lambda count: list(range(count)) if count <= SIZE_LIMIT else NotImplemented,
}
"""Read a list or dict with any elements."""

mutations: dict[str, Callable[..., Any]] = {
    "aten::append": _of(list, _append),
    "aten::_set_item": _at(list | dict, _set_item),
    "aten::extend": _of(list, lambda items, more: items.extend(_checked(more, _LISTED))),
    "aten::insert": _of(list, list.insert),
    "aten::pop": _at(list | dict, lambda container, *index: container.pop(*index)),
    "aten::clear": _of(list | dict, lambda container: container.clear()),
    "aten::reverse": _of(list, list.reverse),
    "aten::remove": _of(list, _remove),
    "aten::Delete": _at(list | dict, _delete),
    "aten::setdefault": _at(dict, dict.setdefault),
    "aten::update": _of(dict, lambda container, more: container.update(_checked(more, dict))),
    "aten::add_": _of(list, lambda items, more: items.__iadd__(_checked(more, _LISTED))),
}
"""Change a list or dict, the first argument."""

_QUICK = ("aten::len", "aten::__getitem__", "aten::get")

_TO_NUMBERS = {f"aten::{name}" for name in ("Int", "Float", "IntImplicit", "FloatImplicit")}
"""Make numbers of tensors without dimensions."""

_OF_BYTES = {f"aten::{name}" for name in ("len", "__getitem__", "slice", "list", "upper", "lower", "strip", "split")}
"""Take the characters of a text one by one, which in PyTorch are bytes."""
