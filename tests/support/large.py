"""Files of gigabytes that take little space on a disk: most of their bytes are holes."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np

from conformance.altered import Base
from qfmt import Graph, Model, Node, Quantization, Tensor
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


def network(path: Path, layers: int, size: int) -> None:
    """A `.qfb` of a graph: `layers` products with int8 weights of about `size` bytes each, all different, nearly all
    zeros; every other one quantizes its input at run time, and ONNX has the transpose of its weight."""
    width = round(size**0.5 / 1024) * 1024
    holes = path.with_suffix(".holes")
    with holes.open("wb") as file:
        file.truncate(layers * width * width)
    zeros = np.memmap(holes, np.int8, "r+", shape=(layers, width, width))
    zeros[:, 0, 0] = zeros[:, -1, 1] = range(1, layers + 1)
    zeros.flush()
    zeros = np.memmap(holes, np.int8, "r", shape=zeros.shape)
    grid = Quantization.per_tensor(0.5, 0, "int8")
    names = [f"w{at}.T" if at % 2 else f"w{at}" for at in range(layers)]
    weights = [Tensor.constant(name, zeros[at], grid) for at, name in enumerate(names)]
    weights = [replace(each, aliases=(each.name[:-2],)) if at % 2 else each for at, each in enumerate(weights)]
    between = [Tensor(f"x{at}", "float32", (1, width)) for at in range(layers + 1)]
    nodes = [
        Node(
            "qfmt.DynamicLinear",
            (f"x{at}", names[at]),
            (f"x{at + 1}",),
            {"reduce_range": 0, "per_token": 0},
            rule="dynamic_divide",
        )
        if at % 2
        else Node("qfmt.Linear", (f"x{at}", names[at]), (f"x{at + 1}",))
        for at in range(layers)
    ]
    tensors = {each.name: each for each in (*between, *weights)}
    Model(Graph(("x0",), (f"x{layers}",), tuple(nodes), tensors)).save(path)
    holes.unlink()
