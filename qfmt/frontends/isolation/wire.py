"""Messages between qfmt and a worker: JSON, and the bytes of arrays. Reading one creates plain data and executes
nothing.

A message is the length of its header (u32), the header as JSON, then the bytes of its arrays in the order of the
header. The header contains lists, numbers, strings, and objects for other values: {"array": [dtype, shape]},
{"tuple": [item, …]}, {"dict": [[key, value], …]}, {"record": [name, field, …]} for named tuples that are registered
with `record`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import IO, Any, TypeVar

import numpy as np

from ...arrays import DTYPES, numpy_dtype
from ...errors import RunError

RECORDS: dict[str, type[Any]] = {}

HEADER = 1 << 28
"""The largest header in bytes; those of networks have some thousands."""

T = TypeVar("T", bound=type[Any])


def record(cls: T) -> T:
    """Register a NamedTuple, so that messages can contain it."""
    RECORDS[cls.__name__] = cls
    return cls


class Closed(Exception):
    """The other side has closed the connection."""


def write(stream: IO[bytes], message: Any) -> None:
    """Send a message. Raises RunError for values that cannot be sent, Closed if the other side has closed."""
    arrays: list[np.ndarray[Any, Any]] = []
    try:
        header = json.dumps(_packed(message, arrays)).encode()
    except RecursionError:
        raise RunError("arguments of a call are nested too deeply") from None
    try:
        _send(stream, memoryview(len(header).to_bytes(4, "little") + header))
        for array in arrays:
            _send(stream, array.reshape(-1).view(np.uint8).data)
        stream.flush()
    except OSError:
        raise Closed from None


def read(stream: IO[bytes]) -> Any:
    """The next message. Raises Closed at the end, and for bytes that are not a message."""
    length = int.from_bytes(_exactly(stream, 4), "little")
    if length > HEADER:
        raise Closed
    try:
        return _unpacked(json.loads(_exactly(stream, length)), stream)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise Closed from None


def _packed(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.name not in DTYPES:
            raise RunError(f"an array of {value.dtype} cannot be sent to the worker")
        dtype = numpy_dtype(value.dtype.name)
        arrays.append(np.ascontiguousarray(value.astype(dtype, copy=False)))
        return {"array": [value.dtype.name, list(value.shape)]}
    if RECORDS.get(type(value).__name__) is type(value):
        return {"record": [type(value).__name__, *(_packed(field, arrays) for field in value)]}
    if isinstance(value, list | tuple):
        items = [_packed(item, arrays) for item in value]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, Mapping):
        return {"dict": [[_packed(key, arrays), _packed(item, arrays)] for key, item in value.items()]}
    raise RunError(f"a {type(value).__name__} cannot be sent to the worker")


def _unpacked(value: Any, stream: IO[bytes]) -> Any:
    if isinstance(value, list):
        return [_unpacked(item, stream) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "array":
        return _array(stream, *content)
    if kind == "tuple":
        return tuple(_unpacked(item, stream) for item in content)
    if kind == "dict":
        return {key: _unpacked(item, stream) for key, item in content}
    name, *fields = content
    return RECORDS[name](*(_unpacked(field, stream) for field in fields))


def _array(stream: IO[bytes], name: str, shape: list[int]) -> np.ndarray[Any, Any]:
    if name not in DTYPES or any(not isinstance(size, int) or size < 0 for size in shape):
        raise ValueError
    dtype = numpy_dtype(name)
    array = np.empty(prod(shape) * dtype.itemsize, np.uint8)
    _fill(stream, array.data)
    return array.view(dtype).reshape(shape)


def _send(stream: IO[bytes], data: memoryview) -> None:
    while data:  # a stream without a buffer may take a part
        data = data[stream.write(data) :]


def _exactly(stream: IO[bytes], count: int) -> bytearray:
    data = bytearray(count)
    _fill(stream, memoryview(data))
    return data


def _fill(stream: IO[bytes], target: memoryview) -> None:
    done = 0
    while done < len(target):
        count = stream.readinto(target[done:])  # type: ignore[attr-defined]
        if not count:
            raise Closed
        done += count
