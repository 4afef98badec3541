"""C programs of random graphs: operators that move elements, and requantization by any thresholds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from qfmt import Graph, Model, Node, Quantization, Tensor
from qfmt.backends.c.numbers import Reach, mended
from qfmt.ops import OPERATORS
from support.c_program import Together, flat, random_inputs
from support.counts import tell

GRID = Quantization.of((0.5,), (3,), -128, 127)

# Operators that move elements


def mover(rng: np.random.Generator, shape: tuple[int, ...], constants: dict[str, np.ndarray]) -> tuple[str, Any, Any]:
    """A random operator that moves elements of a tensor with this shape: operator, inputs after the first,
    attributes."""
    rank = len(shape)
    axis = int(rng.integers(rank))

    def held(values: Any) -> str:
        constants[name := f"c{len(constants)}"] = np.array(values, np.int64)
        return name

    def held_real(values: Any) -> str:
        constants[name := f"c{len(constants)}"] = np.array(values, np.float32)
        return name

    def slices() -> Any:
        begin = [int(rng.integers(size)) for size in shape]
        end = [int(rng.integers(b + 1, size + 1)) for b, size in zip(begin, shape, strict=True)]
        steps = [int(rng.integers(1, 3)) for _ in shape]
        return "Slice", [held(begin), held(end), held(range(rank)), held(steps)], {}

    kinds: list[Any] = [
        lambda: ("Transpose", [], {"perm": tuple(rng.permutation(rank).tolist())}),
        slices,
        lambda: ("Flatten", [], {"axis": axis}),
        lambda: ("Pad", [held(rng.integers(0, 3, 2 * rank))], {"mode": "constant"}),
        lambda: ("Pad", [held(np.repeat([1 if size > 1 else 0 for size in shape], 2).reshape(rank, 2).T.reshape(-1))],
                 {"mode": "reflect"}),
        lambda: ("Gather", [held(rng.integers(0, shape[axis], 3))], {"axis": axis}),
        lambda: ("Tile", [held(rng.integers(1, 3, rank))], {}),
        lambda: ("Unsqueeze", [held([axis])], {}),
        lambda: ("Reshape", [held([shape[0], -1])], {"allowzero": 0}),
        lambda: ("Identity", [], {}),
    ]  # fmt: skip
    if rank == 4:
        kinds += [
            lambda: ("MaxPool", [], {"kernel_shape": (2, 2), "strides": (1, 1), "pads": (1, 1, 1, 1),
                                     "dilations": (1, 1), "ceil_mode": 0}),
            lambda: ("GlobalMaxPool", [], {}),
            lambda: ("Resize", ["", held_real(rng.choice([1, 1.5, 2], 4))], OPERATORS["Resize"].complete({})),
        ]  # fmt: skip
    return kinds[int(rng.integers(len(kinds)))]()  # type: ignore[no-any-return]


def chain(seed: int) -> Model:
    """A chain of operators that move elements, with a Concat of earlier tensors where shapes allow it."""
    rng = np.random.default_rng(seed)
    shape: tuple[int, ...] = tuple(rng.integers(1, 6, 4).tolist())
    tensors = {"x": Tensor("x", "int8", shape, quantization=GRID)}
    nodes: list[Node] = []
    constants: dict[str, np.ndarray] = {}
    name = "x"
    while len(nodes) < 6 and np.prod(shape) < 3000:
        operator, others, attributes = mover(rng, shape, constants)
        if rng.random() < 0.2:
            operator, others, attributes = "Concat", [name], {"axis": int(rng.integers(len(shape)))}
        entry = OPERATORS[operator]
        given: list[Any] = [np.zeros(shape, np.int8)]
        given += [constants.get(each, np.zeros(shape, np.int8)) if each else None for each in others]
        count = sum(not parameter.variadic for parameter in entry.inputs)
        result = entry.reference(*given, *[None] * (count - len(given)), **entry.complete(attributes))
        shape = np.asarray(result).shape
        out = f"t{len(nodes)}"
        tensors[out] = Tensor(out, "int8", shape, quantization=GRID)
        nodes.append(Node(operator, (name, *others), (out,), attributes, version=entry.version))
        name = out
    held = {key: Tensor.constant(key, value) for key, value in constants.items()}
    used = {each for node in nodes for each in node.inputs}
    return Model(Graph(("x",), (name,), tuple(nodes), tensors | {k: v for k, v in held.items() if k in used}))


def equal_together(models: list[Model], folder: Path, what: str) -> None:
    together = Together(models, folder)
    rng = np.random.default_rng(8)
    total = 0
    for index, model in enumerate(models):
        inputs = random_inputs(model, rng)
        want = flat(model.run(inputs), model)
        got = together(index, inputs)
        assert got.tolist() == want.tolist(), [(node.operator, node.attributes) for node in model.nodes]
        total += want.size
    tell(f"C: {what}: {len(models)} networks, {total} of {total} integers equal")


def test_random_chains_of_moves(tmp_path: Path) -> None:
    equal_together([chain(seed) for seed in range(20)], tmp_path / "chains", "random moves")


# Thresholds


def counted(seed: int) -> Model:
    """Thresholds of any kind: linear, all equal, at both ends of int32, never reached."""
    rng = np.random.default_rng(seed)
    extreme = np.array([-(1 << 31), (1 << 31) - 1])
    low, high = (0, 255) if seed % 2 else (-7, 5)
    count = high - low
    wide = int(rng.choice([3, 1000, 1 << 20, 1 << 31]))
    rows = np.sort(rng.integers(-wide, wide, (4, count)), axis=1)
    if seed % 3 == 0:
        rows[1], rows[2] = rows[1, 0], extreme[1]
        rows[3, : count // 2] = extreme[0]
    per_channel = seed % 4 < 2
    chosen = rows if per_channel else rows[:1]
    tensors = {
        "x": Tensor("x", "int32", (2, 4, 50)),
        "rows": Tensor.constant("rows", chosen.astype(np.int32)),
        "y": Tensor(
            "y", "uint8" if low == 0 else "int8", (2, 4, 50), quantization=Quantization.of((1.0,), (0,), low, high)
        ),
    }
    node = Node("qfmt.Requantize", ("x", "", "", "", "rows"), ("y",), {"axis": 1}, rule="thresholds")
    return Model(Graph(("x",), ("y",), (node,), tensors))


def test_thresholds_of_any_kind(tmp_path: Path) -> None:
    models = [counted(seed) for seed in range(12)]
    together = Together(models, tmp_path / "thresholds")
    rng = np.random.default_rng(3)
    total = 0
    for index, model in enumerate(models):
        rows = model.tensors["rows"].array.reshape(-1).astype(np.int64)
        near = np.concatenate([rows, rows - 1, [-(1 << 31), (1 << 31) - 1, 0]])
        x = rng.choice(near, (2, 4, 50)).clip(-(1 << 31), (1 << 31) - 1).astype(np.int32)
        want = flat(model.run({"x": x}), model)
        assert together(index, {"x": x}).tolist() == want.tolist()
        total += want.size
    tell(f"C: thresholds, {total} of {total} integers equal")


def test_lines_with_exceptions_equal_thresholds() -> None:
    """Tests thresholds near a line, with a few exceptions, and others, with too many exceptions."""
    rng = np.random.default_rng(11)
    levels = np.arange(-127, 128)
    slopes = rng.uniform(0.001, 0.5, 60)
    offsets = rng.uniform(-40, 40, 60)
    rows = np.ceil((levels - 0.5 - offsets[:, None]) / slopes[:, None])
    rows += rng.random(rows.shape) < np.where(np.arange(60) < 50, 0.02, 0.5)[:, None]
    rows = np.sort(rows.astype(np.int64), axis=1)
    reach = Reach(rows[:, 0] + rng.integers(-50, 50, 60), rows[:, -1] + rng.integers(-50, 50, 60))
    found = mended(rows, reach, levels, slopes, 3)
    total = 0
    for channel in np.flatnonzero(found.right):
        m, s, add = (int(each[channel]) for each in found.lines)
        x = np.arange(reach.low[channel], reach.high[channel] + 1)
        got = np.clip(3 + ((x * m + add) >> s), -128, 127)
        for value, change in found.exceptions[channel].items():
            got[x == value] += change
        want = -128 + np.searchsorted(rows[channel], x, side="right")
        assert (got == want).all()
        total += x.size
    assert 40 <= found.right.sum() < 60 and any(found.exceptions)
    tell(f"C: lines with exceptions, {total} of {total} sums as by thresholds, {found.right.sum()} of 60 channels")
