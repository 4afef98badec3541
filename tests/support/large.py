"""Files of gigabytes that take little space on a disk: most of their bytes are holes."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import numpy as np

from conformance.altered import Base
from qfmt import Graph, Model, Tensor
from qfmt.file import header
from qfmt.file.encode import encode

BEYOND = (1 << 32) + (1 << 20)
"""Bytes of the first array, more than 32 bits can count."""

LAST = [3, 1, 4, 1, 5, 9, 2, 6]
"""The values of the second one."""


def beyond_32_bits(path: Path, *, sharded: bool = False) -> None:
    """A `.qfb` of more than 4 GiB, whose array "last" begins beyond them: of "first", the stated digest is wrong."""
    small = {"first": np.zeros(64, np.uint8), "last": np.array(LAST, np.int16)}
    model = Model(Graph((), (), (), {name: Tensor.constant(name, array) for name, array in small.items()}))
    model.save(path, shard_size=64 if sharded else None)
    record = Base(path.read_bytes()).record()
    record["graph"]["tensors"][0]["shape"] = [BEYOND]
    record["buffers"][0]["size"] = record["buffers"][1]["offset"] = BEYOND
    end = BEYOND + 2 * len(LAST)
    if sharded:
        record["shards"][0]["size"] = BEYOND
        os.truncate(path.parent / record["shards"][0]["name"], BEYOND)
    sealed = header.seal(*encode("Model", record), 0 if sharded else end)
    with path.open("wb") as file:
        file.write(sealed)
        begin = header.round_up(len(sealed), header.PAGE)
        file.truncate(begin)
        if not sharded:
            file.seek(begin + BEYOND)
            file.write(small["last"].tobytes())


def safetensors(path: Path, tensors: int, size: int) -> None:
    """So many int8 tensors of `size` bytes, all different, nearly all of them zeros."""
    names = [f"t{index:03}" for index in range(tensors)]
    places = {name: [index * size, (index + 1) * size] for index, name in enumerate(names)}
    described = {name: {"dtype": "I8", "shape": [size], "data_offsets": place} for name, place in places.items()}
    head = json.dumps(described).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        begin = file.tell()
        file.truncate(begin + tensors * size)
        for index, (start, _) in enumerate(places.values(), 1):
            file.seek(begin + start)
            file.write(struct.pack("<Q", index))
