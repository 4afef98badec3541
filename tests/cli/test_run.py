"""`qfmt run`: input and output arrays, and errors."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qfmt
from qfmt.model import Graph, Model, Node, Quantization, StoredArray, Tensor, numpy_dtype
from qfmt.ops import OPERATORS
from support.command_line import invoke, tiny_model, trouble
from support.paths import ROOT


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    path = tmp_path / "arrays.npz"
    np.savez(path, x=np.array([[1, 2, 3], [-4, 5, 1]], np.float32), labels=np.array(["a", None]))  # objects
    return path


def test_run_matches_arrays_by_name_and_prints_a_summary(tiny: Path, arrays: Path, tmp_path: Path) -> None:
    dest = tmp_path / "out.npz"
    result = invoke("run", tiny, "--input", arrays, "--output", dest)
    assert result.exit_code == 0, result.output
    assert result.stderr == f"note: {arrays}: ignored, because they are not inputs: labels\n"
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["output", "dtype", "shape", "min", "max", "argmax"]
    expected = tiny_model().run({"x": np.load(arrays)["x"]})
    with np.load(dest) as written:
        assert sorted(written.files) == ["y", "z"]
        for name, array in expected.items():
            np.testing.assert_array_equal(written[name], array)
    summary = json.loads(invoke("run", tiny, "--input", arrays, "--json").stdout)
    assert summary["y"]["argmax"] == expected["y"].argmax(axis=1).tolist()
    assert summary["y"]["max"] == expected["y"].max()


def test_run_records_inputs_of_a_file_whose_name_is_no_text(tiny: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 3), np.float32))
    named = (tmp_path / "x.npy").rename(tmp_path / "a\udcff.npy")
    result = invoke("run", tiny, "--input", named, "--record", tmp_path / "r.qfb")
    assert result.exit_code == 0, result.output
    assert [vector.name for vector in qfmt.load(tmp_path / "r.qfb").vectors] == ["a?"]


@pytest.mark.parametrize("name", ["y.npy", "y.npz"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "int4", "float16"])
def test_outputs_of_every_type_can_be_inputs(dtype: str, name: str, tmp_path: Path) -> None:
    """NumPy writes a type for float8_e5m2 that it cannot read."""
    x, y = (Tensor(each, dtype, (3,)) for each in "xy")
    graph = Graph(
        ("x",), ("y",), [Node("Identity", ("x",), ("y",), version=OPERATORS["Identity"].version)], {"x": x, "y": y}
    )
    Model(graph).save(tmp_path / "m.qfb")
    np.save(tmp_path / "x.npy", np.array([1, 2, -3], np.int8))
    for given, dest in ("x.npy", name), (name, "again.npy"):
        done = invoke("run", tmp_path / "m.qfb", "--input", tmp_path / given, "--output", tmp_path / dest)
        assert done.exit_code == 0, done.output
    again = np.load(tmp_path / "again.npy")
    np.testing.assert_array_equal(again.view(numpy_dtype(dtype)).astype(np.float32), [1, 2, -3])


def test_run_uses_the_only_array_for_the_only_input(tiny: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 3), np.float32))
    np.savez(tmp_path / "x.npz", other_name=np.zeros((1, 3), np.float32))
    answers = [invoke("run", tiny, "--input", tmp_path / name) for name in ("x.npy", "x.npz")]
    assert [answer.exit_code for answer in answers] == [0, 0]
    assert answers[0].stdout == answers[1].stdout


def test_run_never_unpickles(tiny: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}]), allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=np.array([{"a": 1}]), allow_pickle=True)
    (tmp_path / "text.npy").write_text("1 2 3")
    for name in ("x.npy", "x.npz", "text.npy"):
        said = trouble("run", tiny, "--input", tmp_path / name)
        assert f"{name}: is not a .npy or .npz file of plain arrays" in said
        assert "allow_pickle" not in said and "trust" not in said


def test_an_array_larger_than_its_file(tiny: Path, tmp_path: Path) -> None:
    """Memory is not taken for what a header states."""
    np.save(tmp_path / "x.npy", np.ones((1, 3), np.float32))
    saved = (tmp_path / "x.npy").read_bytes()
    for shape in (b"(1, 9), }", b"(1, 99999999999), }"):
        (tmp_path / "x.npy").write_bytes(saved.replace(b"(1, 3), }" + b" " * (len(shape) - 9), shape))
        assert "x.npy: " in trouble("run", tiny, "--input", tmp_path / "x.npy")
    np.savez(tmp_path / "x.npz", **{f"a{number}": np.ones(1) for number in range(100)})
    assert "no array 'x', only a0, a1, a2, …; the inputs are x" in trouble("run", tiny, "--input", tmp_path / "x.npz")


def test_arrays_of_python_2(tiny: Path, tmp_path: Path) -> None:
    """NumPy warns of their headers, which would be an error in this test."""
    np.save(tmp_path / "new.npy", np.ones((1, 3), np.float32))
    saved = (tmp_path / "new.npy").read_bytes()
    (tmp_path / "old.npy").write_bytes(saved.replace(b"(1, 3), }  ", b"(1L, 3L), }"))
    with zipfile.ZipFile(tmp_path / "old.npz", "w") as archive:
        archive.write(tmp_path / "old.npy", "x.npy")
    new, *old = (invoke("run", tiny, "--input", tmp_path / name) for name in ("new.npy", "old.npy", "old.npz"))
    assert [(done.exit_code, done.stdout, done.stderr) for done in old] == [(0, new.stdout, "")] * 2


def test_arrays_in_a_zip_of_another_compression(tiny: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", bytes(100))
    said = trouble("run", tiny, "--input", tmp_path / "x.npz")
    assert "x.npz: zip compression method 12 is not supported; write the archive without compression" in said


def test_two_arrays_of_one_name(tiny: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 3), np.float32))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for name in "x", "x.npy":
            archive.write(tmp_path / "x.npy", name)
    assert "x.npz: has two arrays with the name 'x'" in trouble("run", tiny, "--input", tmp_path / "x.npz")


def test_arrays_may_shrink_to_a_thousandth(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((1 << 20, 3), np.float32))
    assert invoke("run", tiny, "--input", tmp_path / "x.npz").exit_code == 0
    monkeypatch.setattr("qfmt.cli.arrays.available", lambda: 50_000_000)
    said = trouble("run", tiny, "--input", tmp_path / "x.npz")
    assert "x.npz: expands to 12.6 MB, more than a quarter of the memory that is available; write it with" in said
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((1, 3), np.float32), other=np.zeros(1 << 22, np.float32))
    assert invoke("run", tiny, "--input", tmp_path / "x.npz").exit_code == 0
    np.savez(tmp_path / "x.npz", x=np.zeros((1 << 20, 3), np.float32))
    assert invoke("run", tiny, "--input", tmp_path / "x.npz").exit_code == 0


@pytest.mark.parametrize("name", ["y.foo", "y", "y.NPY"])
def test_run_writes_no_other_formats(tiny: Path, arrays: Path, name: str, tmp_path: Path) -> None:
    said = trouble("run", tiny, "--input", arrays, "--output", tmp_path / name)
    assert f"{name}: qfmt does not write arrays as " in said and said.rstrip().endswith("end its name in .npy or .npz")
    assert not (tmp_path / name).exists()


def test_run_writes_npy_as_npy(tiny: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    dest = tmp_path / "y.npy"
    assert "holds one array, and there are 2 outputs; end its name in .npz" in trouble(
        "run", tiny, "--input", tmp_path / "x.npy", "--output", dest
    )
    assert not dest.exists()
    model = qfmt.load(tiny)
    model.replace(graph=dataclasses.replace(model.graph, outputs=("y",))).save(tmp_path / "one.qfb")
    assert invoke("run", tmp_path / "one.qfb", "--input", tmp_path / "x.npy", "--output", dest).exit_code == 0
    np.testing.assert_array_equal(np.load(dest), tiny_model().run({"x": np.ones((2, 3), np.float32)})["y"])


def test_run_notes_what_it_converts_and_refuses_the_rest(tmp_path: Path) -> None:
    kinds = {"real": "float32", "index": "int32", "grid": "uint8"}
    grid = Quantization.per_tensor(0.5, 3, "uint8")
    for name, kind in kinds.items():
        tensors = {each: Tensor(each, kind, ("N",), quantization=grid if name == "grid" else None) for each in "xy"}
        graph = Graph(
            inputs=("x",), outputs=("y",), nodes=[Node("Identity", ("x",), ("y",), {}, version=23)], tensors=tensors
        )
        Model(graph).save(tmp_path / f"{name}.qfb")
    path = tmp_path / "x.npy"

    def said(name: str, array: Any) -> str:
        np.save(path, array)
        result = invoke("run", tmp_path / f"{name}.qfb", "--input", path)
        assert result.stderr.count("\n") <= 1
        return result.stderr if result.exit_code == 0 else f"status {result.exit_code}: {result.stderr}"

    for name, kind in kinds.items():
        assert said(name, np.ones(2, kind)) == ""
    assert said("real", np.ones(2)) == f"note: {path}: input x expects float32; float64 was converted\n"
    assert said("index", np.ones(2, np.int64)) == f"note: {path}: input x expects int32; int64 was converted\n"
    refused = "status 2: qfmt: error: input x: expects int32, which cannot"
    assert said("index", np.array([1, 1 << 40])).startswith(refused)
    assert "input x: expects uint8, not int64" in said("grid", np.ones(2, np.int64))
    assert "input x: expects int32, not float64" in said("index", np.ones(2))


def test_json_has_no_infinities(tmp_path: Path) -> None:
    """They are strings; what does not exist is null."""
    tensors = {name: Tensor(name, "float32", ("N",)) for name in "xy"}
    model = Model(Graph(("x",), ("y",), [Node("Identity", ("x",), ("y",), {}, version=23)], tensors))
    right = model.with_vectors({"x": np.array([1, 2], np.float32)})
    (stated,) = right.vectors
    outputs = {"y": StoredArray.of(np.array([1, np.inf], np.float32), "float32")}
    right.replace(vectors=(dataclasses.replace(stated, outputs=outputs),)).save(tmp_path / "m.qfb")
    (replayed,) = json.loads(invoke("run", tmp_path / "m.qfb", "--vectors", "--json").stdout)
    assert (replayed["different"], replayed["largest"]) == (1, "inf")
    limits = {(-np.inf, np.inf): ["-inf", "inf"], (np.nan,): ["nan", "nan"], (1.5, 2): [1.5, 2.0], (): [None, None]}
    for values, expected in limits.items():
        np.save(tmp_path / "x.npy", np.array(values, np.float32))
        summary = json.loads(invoke("run", tmp_path / "m.qfb", "--input", tmp_path / "x.npy", "--json").stdout)
        assert [summary["y"]["min"], summary["y"]["max"]] == expected


def test_a_recorded_run_has_digests_of_nodes(tiny: Path, arrays: Path, tmp_path: Path) -> None:
    """As the vectors of `convert --vectors`: a replay names the first node that computes something else."""
    assert invoke("run", tiny, "--input", arrays, "--record", tmp_path / "recorded.qfb").exit_code == 0
    recorded = qfmt.load(tmp_path / "recorded.qfb")
    ((given, digests),) = [(vector.inputs["x"].array, vector.digests) for vector in recorded.vectors]
    assert digests and digests == tiny_model().with_vectors({"x": given}, digests=True).vectors[0].digests
    weight = recorded.tensors["fc1.weight"].array
    changed = recorded.replace_tensor("fc1.weight", weight[::-1]).replace(vectors=recorded.vectors)
    changed.save(tmp_path / "changed.qfb")
    result = invoke("run", tmp_path / "changed.qfb", "--vectors")
    assert result.exit_code == 1 and "the first node that differs is fc1 " in result.stdout, result.output


def test_run_takes_a_limit_of_memory(tiny: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((100, 3), np.float32))
    given = ("run", tiny, "--input", tmp_path / "x.npy", "--memory")
    for enough in ("2M", "2MB", "1g", "2000000"):
        assert invoke(*given, enough).exit_code == 0
    said = trouble(*given, "2K")
    assert "node quant (QuantizeLinear): needs " in said and "more than the limit of 2.0 kB" in said
    assert "'much' is not a number of bytes above 0, as in 500M or 4G" in trouble(*given, "much")
    for text in ("9" * 5000, "١"):
        assert "is not a number of bytes above 0" in trouble(*given, text)


def test_run_explains_what_does_not_fit(tiny: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros(3), b=np.zeros(3))
    assert "no array 'x', only a, b; the inputs are x" in trouble("run", tiny, "--input", tmp_path / "x.npz")
    np.save(tmp_path / "x.npy", np.zeros((1, 4), np.float32))
    assert "must be 3" in trouble("run", tiny, "--input", tmp_path / "x.npy")
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY")
    assert "x.npy: is not a .npy" in trouble("run", tiny, "--input", tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.zeros((1, 3), np.float32))
    missing = tmp_path / "missing" / "y.npz"
    assert str(missing) in trouble("run", tiny, "--input", tmp_path / "x.npy", "--output", missing)


def test_arrays_that_are_no_numbers(tiny: Path, tmp_path: Path) -> None:
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"-" * 9000 + b"1,)}"
    (tmp_path / "deep.npy").write_bytes(b"\x93NUMPY\x01\0" + len(head).to_bytes(2, "little") + head)
    np.save(tmp_path / "records.npy", np.zeros((1, 3), [("a", "<f4")]))
    np.savez(tmp_path / "empty.npz")
    for name, said in (
        ("deep.npy", "is not a .npy or .npz file of plain arrays"),
        ("records.npy", "the array has records, not numbers"),
        ("empty.npz", "has no arrays"),
    ):
        assert f"{name}: {said}" in trouble("run", tiny, "--input", tmp_path / name)


def test_run_replaces_neither_what_it_reads_nor_what_is_no_file(tiny: Path, tmp_path: Path) -> None:
    arrays = tmp_path / "x.npy"
    np.save(arrays, np.zeros((1, 3), np.float32))
    before = tiny.read_bytes(), arrays.read_bytes()
    for dest in (tiny, arrays):
        assert "is the source itself" in trouble("run", tiny, "--input", arrays, "--output", dest)
    assert (tiny.read_bytes(), arrays.read_bytes()) == before
    both = tmp_path / "both.npz"
    said = trouble("run", tiny, "--input", arrays, "--record", both.with_suffix(".pt"))
    assert "only a .qfb has test vectors; end its name in .qfb" in said
    said = trouble("run", tiny, "--input", arrays, "--output", both, "--record", both)
    assert "--output and --record name the same file" in said and not both.exists()
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.npz")
        said = trouble("run", tiny, "--input", arrays, "--output", tmp_path / "pipe.npz")
        assert "read-only or not a regular file" in said
        assert (tmp_path / "pipe.npz").is_fifo()


@pytest.mark.skipif(sys.platform == "win32", reason="streams are closed by the shell")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("arguments", ["check", "inspect --stats"])
def test_a_closed_stream_is_no_error(tiny: Path, arguments: str, closed: str) -> None:
    command = f'"$0" -m qfmt {arguments} "$1" {closed}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    finished = subprocess.run(
        ["sh", "-c", command, sys.executable, str(tiny)], env=environment, capture_output=True, timeout=60
    )
    assert (finished.returncode, finished.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("y" * 65_535, "has a longer name than a .npz can store"),
        ("../y", "would be a file in another folder"),
        ("a\\..\\y", "would be a file in another folder"),
        ("/y", "would be a file in another folder"),
        ("C:y", "would be a file in another folder"),
    ],
)
def test_an_output_whose_name_an_archive_cannot_have(tmp_path: Path, name: str, why: str) -> None:
    tensors = {each: Tensor(each, "float32", (3,)) for each in ("x", name)}
    Model(Graph(("x",), (name,), [Node("Neg", ("x",), (name,), {}, "", OPERATORS["Neg"].version)], tensors)).save(
        tmp_path / "m.qfb"
    )
    np.save(tmp_path / "x.npy", np.ones(3, np.float32))
    said = trouble("run", tmp_path / "m.qfb", "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npz")
    assert why in said
    assert not (tmp_path / "y.npz").exists()
    invoke("run", tmp_path / "m.qfb", "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy")
    assert np.load(tmp_path / "y.npy").tolist() == [-1, -1, -1]
