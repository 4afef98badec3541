"""Arrays that were found in columns are those that tensors give that were decoded one by one, also of damaged files."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qfmt
from qfmt import Graph, Model, Quantization, Tensor
from qfmt.errors import QfmtError
from qfmt.file import tensors as tensors_of_files
from support.crafted import crafted
from support.mutants import mutants, overwrite


def model() -> Model:
    """Constants of many types and ranks, and some that are not found in columns."""
    rng = np.random.default_rng(0)
    tensors = [Tensor.constant(f"w{rank}", rng.integers(0, 9, (2, 1, 3, 2)[:rank], np.int8)) for rank in range(5)]
    tensors += [Tensor.constant(kind, np.ones((2, 3), kind)) for kind in ("bool", "uint16", "float32", "int64")]
    tensors += [
        Tensor.constant("packed", np.ones((3, 3), np.int8), dtype="int4"),
        Tensor.constant("empty", np.ones((3, 0), np.int8)),
        Tensor.constant("alias", np.ones(3, np.int8), aliases=("a", "b")),
        Tensor.constant("grid", np.ones((2, 2), np.int8), Quantization.per_tensor(0.5, 0, "int8")),
        Tensor("computed", "float32", ("N", None, 3)),
    ]
    return Model(Graph(("computed",), (), (), {tensor.name: tensor for tensor in tensors}))


def outcomes(path: Path, together: bool, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What there is to know of each tensor, the array first, or the error."""
    monkeypatch.setattr(tensors_of_files, "MANY", 0 if together else 1 << 30)

    def told(ask: Callable[[], object]) -> object:
        try:
            return ask()
        except QfmtError as error:
            return str(error)

    def field(name: str, key: str) -> object:
        found = getattr(tensors[name], key)
        return (found.dtype, found.shape, found.tobytes()) if key == "array" else repr(found)

    fields = ("array", "name", "dtype", "shape", "aliases", "quantization")
    tensors: Any = told(lambda: qfmt.load(path).graph.tensors)
    names = tensors if isinstance(tensors, str) else told(lambda: list(tensors))
    if not isinstance(names, list):
        return [names]
    return [told(partial(field, name, key)) for name in names for key in fields]


def test_every_constant_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.qfb"
    model().save(path)
    alone, together = (outcomes(path, each, monkeypatch) for each in (False, True))
    assert alone == together
    monkeypatch.setattr(tensors_of_files, "MANY", 0)
    loaded = qfmt.load(path)
    assert loaded == model()
    plain = [tensor.name for tensor in loaded.tensors.values() if getattr(tensor, "_constant", None)]
    assert len(plain) == 11, plain


@pytest.mark.parametrize("count", [300, pytest.param(3000, marks=pytest.mark.slow)])
def test_mutants_are_refused_alike(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.qfb"
    model().save(path)
    original, changed = outcomes(path, True, monkeypatch), 0
    for data in mutants(path.read_bytes(), count=count, seed=7):
        overwrite(path, data)
        alone, together = (outcomes(path, each, monkeypatch) for each in (False, True))
        assert alone == together
        changed += alone != original
    print(f"{count} mutants, {changed} other outcomes, the same ones")
    assert count // 5 < changed < count


def test_small_tensors_are_within_the_budget(tmp_path: Path) -> None:
    """The smallest that a file can have: everything is decoded, and nothing refused."""
    one = np.int8(1)
    tensors = {name: Tensor.constant(name, one) for name in map(str, range(20_000))}
    Model(Graph((), (), (), tensors)).save(tmp_path / "m.qfb")
    loaded = qfmt.load(tmp_path / "m.qfb")
    assert sum(int(tensor.array) for tensor in loaded.tensors.values()) == len(tensors)
    assert all(tensor.quantization is None and tensor.shape == () for tensor in loaded.tensors.values())


def test_everything_is_verified_at_once(tmp_path: Path) -> None:
    path = tmp_path / "m.qfb"
    model().save(path)
    calls: list[tuple[int, int]] = []
    loaded = qfmt.load(path, verify="all", progress=lambda *done: calls.append(done))
    assert loaded == model()
    assert calls and calls[-1][0] == calls[-1][1] > 0
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    qfmt.load(path)
    with pytest.raises(qfmt.errors.DigestError, match=r"buffer .*: the data is damaged"):
        qfmt.load(path, verify="all")


def test_metadata_that_was_let_go_is_verified_when_it_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for arrays only needs no copy of it: then a change of the file is noticed, not used."""
    monkeypatch.setattr(tensors_of_files, "MANY", 0)
    path, other = tmp_path / "m.qfb", tmp_path / "other.qfb"
    scale = np.float32(0.123)
    grid = Quantization.per_tensor(float(scale), 0, "int8")
    tensor = Tensor.constant("w", np.arange(9, dtype=np.int8), grid)
    Model(Graph((), (), (), {"w": tensor})).save(path)
    good = path.read_bytes()
    bad = good.replace(scale.tobytes(), np.float32(9).tobytes())
    assert bad != good

    def opened(**options: Any) -> Tensor:
        overwrite(path, good)
        found = qfmt.load(path, **options).tensors["w"]
        assert found.array.sum() == 36
        return found

    changed, kept = opened(), opened(verify=False)
    overwrite(path, bad)
    with pytest.raises(qfmt.errors.DigestError, match="the metadata is damaged"):
        _ = changed.quantization
    assert kept.quantization == grid
    overwrite(path, good)
    assert changed.quantization == grid
    overwrite(path, bad)
    assert changed == tensor  # it was read again, once

    cut = opened()
    overwrite(path, good[:-1])
    with pytest.raises(qfmt.errors.FormatError, match="was changed while it was read"):
        _ = cut.quantization
    replaced = opened()
    other.write_bytes(bad)
    other.replace(path)
    assert replaced.quantization == grid


def test_a_broken_quantization_is_refused_when_it_is_used(tmp_path: Path) -> None:
    """The array is there all the same: its rules are others."""
    scale = {"dtype": 12, "bytes": np.float32(-1).tobytes()}
    path = crafted(tmp_path, tensor={"quantization": {"scale": scale, "quant_min": -128, "quant_max": 127}})
    tensor = qfmt.load(path).tensors["t"]
    assert tensor.array.shape == (64,)
    for _ in range(2):
        with pytest.raises(qfmt.errors.ValidityError, match=r"crafted.qfb: breaks rule V22"):
            _ = tensor.quantization
    assert [broken.rule for broken in qfmt.check(path)] == ["V22"]


def test_to_others_a_tensor_of_a_file_is_a_tensor(tmp_path: Path) -> None:
    """It equals one that was never in a file, and what is made of it does not depend on the file."""
    path = tmp_path / "m.qfb"
    model().save(path)
    with qfmt.load(path) as loaded:
        pairs = [(loaded.tensors[name], tensor) for name, tensor in model().tensors.items()]
        assert all(ours == other and other == ours and hash(ours) == hash(other) for ours, other in pairs)
        made = [(pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)) for ours, _ in pairs]
        renamed = replace(loaded.tensors["grid"], name="other")
        assert renamed.quantization == loaded.tensors["grid"].quantization
    assert all(
        type(each) is Tensor and each == other
        for (_, other), copies in zip(pairs, made, strict=True)
        for each in copies
    )
    assert type(renamed) is Tensor and renamed != loaded.tensors["grid"]
    with pytest.raises(AttributeError, match="no 'scale'"):
        _ = loaded.tensors["grid"].scale  # type: ignore[attr-defined]
