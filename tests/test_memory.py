"""The memory of a run: a node that asks for gigabytes is named in an error, before any of them is taken."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qfmt
from cases.one_node import single
from qfmt import Graph, Model, Node, Quantization, Tensor, memory
from qfmt.errors import MemoryLimitError, QfmtError, RunError
from qfmt.ops import OPERATORS
from support.counts import tell
from support.paths import EXAMPLES

X = Tensor("x", "float32", (1, 1, 1, 8))
WINDOW: dict[str, Any] = {"kernel_shape": (1, 1), "strides": (1 << 20, 1 << 20), "dilations": (1, 1)}
PADDED = {**WINDOW, "pads": (1 << 17,) * 4}
DIGITS = EXAMPLES / "digits" / "digits_int8.pt"

CHILD = """
import json, resource, sys
import numpy as np
import qfmt
folder, *names = sys.argv[1:]
x = np.ones((1, 1, 1, 8), np.float32)
models = {name: qfmt.load(f"{folder}/{name}.qfb") for name in names}
models.pop("Relu").run({"x": x})  # what every run loads
before, said = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, {}
for name, model in models.items():
    try:
        said[name] = str(model.run({"x": x}, memory=200_000_000).keys())
    except qfmt.QfmtError as error:
        said[name] = f"{type(error).__name__}: {error}"
print(json.dumps([said, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024]))
"""


def sizes(*values: int) -> Tensor:
    return Tensor.constant("sizes", np.array(values, np.int64))


def one(operator: str, *constants: Tensor | None, **attributes: Any) -> Model:
    return single(operator, "", [X, *constants], Tensor("y", "float32", None), attributes)


GREEDY = {
    "Expand": one("Expand", sizes(1 << 15, 1 << 15, 1, 8)),
    "Tile": one("Tile", sizes(1 << 12, 1 << 12, 1, 1)),
    "Resize": one("Resize", None, None, sizes(1, 1, 1 << 16, 1 << 16)),
    "Resize-linear": one("Resize", None, None, sizes(1 << 30, 1, 1, 1), mode="linear"),
    "Resize-cubic": one("Resize", None, None, sizes(1 << 26, 1, 1, 1), mode="cubic"),
    "Pad": one("Pad", sizes(0, 0, 1 << 15, 1 << 15, 0, 0, 1 << 15, 1 << 15)),
    "MaxPool": one(
        "MaxPool", **WINDOW | {"kernel_shape": (1, (1 << 29) + 1), "pads": (0, 1 << 29) * 2, "strides": (1, 1)}
    ),
    "Conv": one("Conv", Tensor.constant("w", np.ones((1, 1, 1, 1), np.float32)), **PADDED),
    "ConvTranspose": one(
        "ConvTranspose",
        Tensor.constant("w", np.ones((1, 1, 1, 1), np.float32)),
        **{**WINDOW, "strides": (1, 1 << 27), "pads": (0, 1 << 29, 0, 3 << 27)},
        output_padding=(0, 0),
    ),
}
"""Networks of one node. The input has 8 elements, and some outputs hardly more: what is in between is large."""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux")
def test_no_memory_is_taken_for_what_is_refused(tmp_path: Path) -> None:
    for name, model in {**GREEDY, "Relu": one("Relu")}.items():
        model.save(tmp_path / f"{name}.qfb")
        assert (tmp_path / f"{name}.qfb").stat().st_size < 6000
    command = [sys.executable, "-c", CHILD, str(tmp_path), *GREEDY, "Relu"]
    said, taken = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
    for name, text in said.items():
        operator = name.partition("-")[0]
        assert text.startswith(f"MemoryLimitError: node node ({operator}): needs "), text
        assert text.endswith(
            " of memory beside the 32 bytes that the run holds, more than the limit of 200.0 MB;"
            " allow more: --memory of `qfmt run` and `qfmt check`, or run(…, memory=…)"
        ), text
    tell(f"{len(said)} networks that ask for up to terabytes: refused, {taken / 1e6:.1f} MB were taken")
    assert taken < 50_000_000


NOTHING = np.zeros((0, 4), np.float32)
MANY = 1 << 24
WITHOUT_ELEMENTS: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "OneHot": ("OneHot", [np.zeros(0, np.int64), np.array([MANY]), np.zeros(2, np.float32)], {}),
    "Resize": ("Resize", [NOTHING, None, None, np.array([0, MANY])], {}),
    "Tile": ("Tile", [NOTHING, np.array([1, MANY])], {}),
    "Hardmax": ("Hardmax", [np.zeros((0, MANY), np.float32)], {}),
    "Conv": (
        "Conv",
        [np.zeros((1, 0, MANY), np.float32)] * 2,
        {"kernel_shape": (MANY,), "strides": (1,), "pads": (0, 0), "dilations": (1,), "group": 1},
    ),
    "NonZero": ("NonZero", [np.ones((1,) * 31 + (1 << 18,), np.int8)], {}),
}
"""Operands without elements, in a dimension that comes last, and positions in many dimensions."""


@pytest.mark.parametrize("name", WITHOUT_ELEMENTS)
def test_what_is_between_nothing_and_nothing_counts(name: str) -> None:
    operator, arrays, attributes = WITHOUT_ELEMENTS[name]
    with pytest.raises(RunError, match=r"needs .* more than the limit of 64\.0 MB"):
        _run(operator, arrays, attributes)


def _run(operator: str, arrays: list[Any], attributes: dict[str, Any]) -> dict[str, Any]:
    given = {f"x{index}": array for index, array in enumerate(arrays) if array is not None}
    tensors = [None if a is None else Tensor(f"x{i}", str(a.dtype), None) for i, a in enumerate(arrays)]
    kind = {"NonZero": "int64", "MatMulInteger": "int32"}.get(operator, "float32")
    return single(operator, "", tensors, Tensor("y", kind, None), attributes).run(given, memory=64_000_000)


LONG, ONE = 1 << 14, np.ones((1, 1), np.int8)
COLUMN, ROW = np.ones((LONG, 1), np.float32), np.ones((1, LONG), np.float32)
LSTM_STEPS = [np.ones((1, 1, 1), np.float32), *[np.ones((1, 1, 1), np.float32)] * 2, None]
DO_NOT_FIT: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "ScatterND": ([np.ones((2, LONG), np.float32), np.zeros((LONG, 1), np.int64), COLUMN], {}),
    "ScatterElements": ([np.ones(LONG, np.float32), np.zeros(LONG, np.int64), np.ones(1, np.float32)], {}),
    "OneHot": ([np.zeros(LONG, np.int64), np.array([1]), np.ones((2, LONG), np.float32)], {}),
    "GridSample": ([np.ones((1, LONG, 1, 1), np.float32), np.ones((LONG, 1, 1, 2), np.float32)], {}),
    "BatchNormalization": ([np.ones((1, LONG), np.float32), COLUMN, ROW[0], ROW[0], ROW[0]], {}),
    "Attention": ([np.ones((1, 1, LONG, 1), np.float32), *[np.ones((LONG, 1, 1, 1), np.float32)] * 2], {}),
    "MatMulInteger": ([COLUMN.astype(np.int8), ONE, ROW.astype(np.int8)], {}),
    "RNN": ([*LSTM_STEPS, None, np.ones(LONG, np.int32)], {"hidden_size": 1}),
    "qfmt.RNNCell": ([COLUMN, np.ones((1, 1), np.float32), np.ones((1, 1), np.float32), ROW[0]], {}),
}
"""Operands that would broadcast each other, to hundreds of megabytes."""


@pytest.mark.parametrize("name", DO_NOT_FIT)
def test_operands_that_do_not_fit_take_no_memory(name: str) -> None:
    arrays, attributes = DO_NOT_FIT[name]
    tracemalloc.start()
    with pytest.raises(RunError, match=f"{name}.*( fit | for | but | is not | does not broadcast )"):
        _run(name, arrays, attributes)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8_000_000, peak


def test_scales_that_do_not_fit_take_no_memory() -> None:
    grid = Quantization.of(np.full(LONG, 0.5), 0, -128, 127, 1)
    with pytest.raises(QfmtError, match=r"scales of shape \[1, 16384\] do not fit a tensor of \[16384, 1\]"):
        grid.dequantize(COLUMN.astype(np.int8))


def test_values_that_are_held_count() -> None:
    """Each takes 1 MB, and all are outputs of the network."""
    names = [f"y{index}" for index in range(8)]
    tensors = {each.name: each for each in (X, sizes(32, 1, 1024, 8), *(Tensor(y, "float32", None) for y in names))}
    version = OPERATORS["Expand"].version
    model = Model(
        Graph(("x",), tuple(names), [Node("Expand", ("x", "sizes"), (y,), {}, y, version) for y in names], tensors)
    )
    given = {"x": np.ones((1, 1, 1, 8), np.float32)}
    assert model.run(given, memory=16 << 20).keys() == set(names)
    with pytest.raises(
        RunError, match=r"node y5 \(Expand\): needs 1.6 MB of memory beside the 5.2 MB that the run holds"
    ):
        model.run(given, memory=6 << 20)


@pytest.mark.parametrize("where", ["output", "node"])
def test_packed_constants_count_while_they_are_unpacked(where: str, tmp_path: Path) -> None:
    """Tensors that share the bytes of a file do not share what these are unpacked to."""
    count, elements = 8, 1 << 20
    packed = Tensor.constant("c", np.ones(elements, np.uint8), dtype="uint2")
    constants = {f"c{number}": replace(packed, name=f"c{number}") for number in range(count)}
    node = Node("Concat", tuple(constants), ("z",), {"axis": 0}, "z", OPERATORS["Concat"].version)
    tensors = {"x": X, "z": Tensor("z", "uint2", (count * elements,)), **constants}
    graph = {
        "output": Graph(("x",), tuple(constants), (), {"x": X, **constants}),
        "node": Graph(("x",), ("z",), (node,), tensors),
    }[where]
    Model(graph).save(tmp_path / "m.qfb")
    model, x = qfmt.load(tmp_path / "m.qfb"), {"x": np.ones((1, 1, 1, 8), np.float32)}
    assert all((array == 1).all() for array in model.run(x).values())
    with pytest.raises(MemoryLimitError, match=rf"^{where} \S+.*: needs .* beside the .* that the run holds"):
        model.run(x, memory=count * elements)


def test_outputs_that_are_constants_share_what_the_file_has() -> None:
    stored = Tensor.constant("c0", np.ones(1 << 20, np.float32))
    constants = {f"c{number}": replace(stored, name=f"c{number}") for number in range(4)}
    model = Model(Graph(("x",), tuple(constants), (), {"x": X, **constants}))
    results = [*model.run({"x": np.ones((1, 1, 1, 8), np.float32)}, memory=1 << 20).values()]
    assert len(results) == 4 and all(
        np.shares_memory(each, results[0]) and not each.flags.writeable for each in results
    )


def test_the_estimate_covers_what_a_real_network_takes() -> None:
    model = qfmt.convert(DIGITS)
    given = {"x": np.load(EXAMPLES / "digits" / "heldback.npz")["x"]}
    model.run(given)
    tracemalloc.start()
    model.run(given)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    least, most = 0, 1 << 34
    while most - least > 1000:
        middle = (least + most) // 2
        try:
            model.run(given, memory=middle)
            most = middle
        except RunError:
            least = middle
    tell(f"digits: {peak / 1e6:.1f} MB are taken, the smallest limit that is enough is {most / 1e6:.1f} MB")
    assert peak / 2 < most < 4 * peak


def test_the_limit_follows_the_machine_and_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: 64 << 30)
    assert memory.limit_for(0) == 4 << 30
    assert memory.limit_for(4 << 20) == 5 << 30
    assert memory.limit_for(1 << 30) == 32 << 30
    with pytest.raises(RunError, match=r"^needs 38.7 GB .* limit of 34.4 GB; that is half of the available memory$"):
        memory.require(36 << 30)


def test_the_limit_of_a_container_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "CONTAINER", (tmp_path / "max", tmp_path / "current"))
    whole = memory.available()
    (tmp_path / "max").write_text("5000000\n")
    (tmp_path / "current").write_text("1000000\n")
    monkeypatch.setattr(memory, "STATISTICS", tmp_path / "stat")
    assert memory.available() == 4_000_000 < whole
    (tmp_path / "stat").write_text("anon 300000\nfile 700000\ninactive_file 400000\nactive_file 200000\n")
    assert memory.available() == 4_600_000, "cached files are given back"
    (tmp_path / "max").write_text("max\n")
    assert memory.available() > 4_000_000
