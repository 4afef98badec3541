"""Test vectors: recorded by a model, stored in its file, replayed by `qfmt run --vectors`."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import qfmt
from networks.four_bits import INPUT, network
from qfmt import Model, QfmtError
from qfmt.cli import main
from qfmt.compare import replay
from qfmt.errors import DigestError, FormatError, RunError
from qfmt.file import checker
from qfmt.model import Graph, Node, StoredArray, Tensor
from support.paths import DIGITS

REAL = [[-5.5, -1.5, 2.0], [0.0, 0.5, 1.0]]


def run(*arguments: object, command: str = "run") -> Result:
    return CliRunner().invoke(main, [command, *map(str, arguments)])


def test_a_model_makes_them_and_a_file_keeps_them(tmp_path: Path) -> None:
    model = network().with_vectors(INPUT, {"q": np.zeros((0, 3), np.int8)}, names=("corners", ""))
    model.save(tmp_path / "m.qfb")
    read = qfmt.load(tmp_path / "m.qfb")
    assert read == model != network()
    assert read.content_id() == network().content_id()
    first, second = read.vectors
    assert first.name == "corners"
    assert first.inputs["q"].dtype == "int4" and first.inputs["q"].data.nbytes == 3
    assert first.inputs["q"].array.tolist() == INPUT["q"].tolist()
    assert first.outputs["real"].array.tolist() == REAL
    assert second.outputs["real"].shape == (0, 3)
    assert qfmt.check(tmp_path / "m.qfb") == []
    assert [(each.vector, each.output, each.elements, each.different) for each in replay(read)] == [
        ("corners", "real", 6, 0),
        ("corners", "q", 6, 0),
        ("1", "real", 0, 0),
        ("1", "q", 0, 0),
    ]


def test_vectors_are_added_to_those_that_are_there() -> None:
    model = network().with_vectors(INPUT).with_vectors(INPUT, INPUT)
    assert len(model.vectors) == 3
    with pytest.raises(QfmtError, match="1 names for 2 test vectors"):
        model.with_vectors(INPUT, INPUT, names=("a",))
    with pytest.raises(RunError, match="missing"):
        model.with_vectors({})


def test_a_vector_is_read_when_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "m.qfb"
    network().with_vectors(INPUT).save(path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # the output
    path.write_bytes(data)
    vector = qfmt.load(path).vectors[0]
    assert vector.inputs["q"].array.tolist() == INPUT["q"].tolist()
    with pytest.raises(DigestError, match="the value of 'real' in a test vector: the data is damaged"):
        _ = vector.outputs["real"].array
    assert [broken.rule for broken in qfmt.check(path)] == ["F9"]


def test_two_values_of_one_output_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qfmt.file import writer

    def swapped(number: int, model: Model, indices: object) -> object:
        record = ours(number, model, indices)  # type: ignore[arg-type]
        record["outputs"][2] = {**record["outputs"][0], "buffer": record["inputs"][0]["buffer"]}
        return record

    ours = writer._vector_record
    monkeypatch.setattr(writer, "_vector_record", swapped)
    network().with_vectors(INPUT).save(tmp_path / "m.qfb")
    with pytest.raises(FormatError, match="test vector 0: 'real' has two values"):
        _ = qfmt.load(tmp_path / "m.qfb").vectors[0]
    assert {broken.rule for broken in qfmt.check(tmp_path / "m.qfb")} == {"V50"}


def wrong_model() -> Model:
    """Its test vector states another number than the network computes: 1.5, not 1."""
    model = network().with_vectors(INPUT, names=("corners",))
    (vector,) = model.vectors
    wrong = np.array(REAL, np.float32)
    wrong[1, 2] = 1.5
    return replace(model, vectors=(replace(vector, outputs={**vector.outputs, "real": StoredArray.of(wrong)}),))


def test_outputs_without_elements_are_counted(tmp_path: Path) -> None:
    x, y = (Tensor(name, "float32", ("N",)) for name in "xy")
    model = Model(Graph(("x",), ("y",), (Node("Relu", ("x",), ("y",), version=14),), {"x": x, "y": y}))
    model.with_vectors({"x": np.zeros(0, np.float32)}, {"x": np.ones(1, np.float32)}).save(tmp_path / "m.qfb")
    said = run(tmp_path / "m.qfb", "--replay", command="check").output
    assert said.endswith("; all outputs of the test vectors are equal: 2, 1 without elements\n")


def test_check_replays_them(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.qfb" for name in ("right", "wrong", "without")}
    network().with_vectors(INPUT, names=("corners",)).save(files["right"])
    wrong_model().save(files["wrong"])
    network().save(files["without"])
    done = {name: run(path, "--replay", command="check") for name, path in files.items()}
    assert done["right"].output == f"{files['right']}: valid; all outputs of the test vectors are equal: 2\n"
    assert done["without"].output == f"{files['without']}: valid; there are no test vectors\n"
    assert done["wrong"].stdout == ("R1 test vector corners, output 'real': 1 of 6 elements differ, by up to 0.5\n")
    assert [each.exit_code for each in done.values()] == [0, 1, 0]
    assert run(files["wrong"], command="check").exit_code == 0
    told = json.loads(run(files["wrong"], "--replay", "--json", command="check").stdout)
    assert not told["valid"] and told["replay"] == {"outputs": 2, "equal": 1}


def digits_with_digests() -> Model:
    model = qfmt.convert(DIGITS).to_integers(input_shapes={"x": (1, 1, 8, 8)})
    rng = np.random.default_rng(3)
    given = [{model.graph.inputs[0]: rng.integers(0, 256, (1, 1, 8, 8)).astype(np.uint8)} for _ in range(2)]
    return model.with_vectors(*given, names=("one", "two"), digests=True)


def test_digests_are_stored_and_begin_those_of_buffers(tmp_path: Path) -> None:
    model = digits_with_digests()
    model.save(tmp_path / "m.qfb")
    read = qfmt.load(tmp_path / "m.qfb")
    assert read == model and qfmt.check(tmp_path / "m.qfb") == []
    assert read.content_id() == model.replace(vectors=()).content_id()
    (output,) = read.graph.outputs
    for vector in read.vectors:
        stated = [(node, name, digest) for node, name, digest in vector.stated_digests(read.graph)]
        assert [name for _, name, _ in stated] == [name for node in read.nodes for name in node.outputs]
        assert all(name in node.outputs for node, name, _ in stated)
        value = vector.outputs[output].array
        assert {name: digest for _, name, digest in stated}[output] == sha256(value.tobytes()).digest()[:16]
    assert all(each.is_equal for each in replay(read))


def test_floats_have_no_digests() -> None:
    assert network().with_vectors(INPUT, digests=True).vectors[0].digests == b""


def test_replay_names_the_first_node_that_differs(tmp_path: Path) -> None:
    right = digits_with_digests()
    node = [node for node in right.nodes if node.operator == "Conv"][2]
    weight = right.tensors[node.inputs[1]].array.copy()
    weight[0, 0, 0, 0] += 1
    right.replace_tensor(node.inputs[1], weight).replace(vectors=right.vectors).save(tmp_path / "m.qfb")
    done = run(tmp_path / "m.qfb", "--replay", command="check")
    told = (
        f"the first node that differs is {node.title}, output {node.outputs[0]!r}; equal before it: {node.inputs[0]!r}"
    )
    assert done.exit_code == 1 and done.stdout.count(told) == 2
    assert told in run(tmp_path / "m.qfb", "--vectors").stdout
    found = list(replay(qfmt.load(tmp_path / "m.qfb")))
    assert all(each.first_difference == told and not each.is_equal for each in found)


def test_a_digest_that_differs_is_told_where_the_outputs_are_equal(tmp_path: Path) -> None:
    right = digits_with_digests()
    first, second = right.vectors
    wrong = bytes([first.digests[0] ^ 1]) + first.digests[1:]
    right.replace(vectors=(replace(first, digests=wrong), second)).save(tmp_path / "m.qfb")
    done = run(tmp_path / "m.qfb", "--replay", command="check")
    assert done.exit_code == 1
    assert "0 of 10 elements differ; the first node that differs is " in done.stdout


def test_digests_are_compared_where_there_are_no_outputs(tmp_path: Path) -> None:
    right = digits_with_digests()
    bare = right.replace(graph=replace(right.graph, outputs=()))
    for name, digests in (("right", right.vectors[0].digests), ("wrong", bytes(len(right.vectors[0].digests)))):
        vector = replace(right.vectors[0], outputs={}, digests=digests)
        bare.replace(vectors=(vector,)).save(tmp_path / f"{name}.qfb")
    assert run(tmp_path / "right.qfb", "--replay", command="check").exit_code == 0
    done = run(tmp_path / "wrong.qfb", "--replay", command="check")
    node = right.nodes[0]
    told = f"0 of 0 elements differ; the first node that differs is {node.title}, output {node.outputs[0]!r}"
    assert done.exit_code == 1 and done.stdout.startswith(f"R1 test vector one, output '': {told}")
    assert run(tmp_path / "wrong.qfb", "--vectors").exit_code == 1


def test_what_is_checked_is_what_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server, or a folder, may have another file a moment later."""
    path, other = tmp_path / "m.qfb", tmp_path / "other.qfb"
    network().with_vectors(INPUT).save(path)
    wrong_model().save(other)
    check = checker._check

    def then_replaced(*arguments: Any) -> None:
        check(*arguments)
        other.replace(path)

    monkeypatch.setattr(checker, "_check", then_replaced)
    done = run(path, "--replay", command="check")
    assert done.output == f"{path}: valid; all outputs of the test vectors are equal: 2\n"
    assert run(path, "--vectors").exit_code == 1


def test_digests_of_another_number_are_refused(tmp_path: Path) -> None:
    right = digits_with_digests()
    short = replace(right.vectors[0], digests=right.vectors[0].digests[:-16])
    with pytest.raises(QfmtError, match=r"V70 test vector 0: .* bytes of digests, but"):
        right.replace(vectors=(short,)).save(tmp_path / "m.qfb")


def test_convert_writes_digests_and_inspect_counts_them(tmp_path: Path) -> None:
    arguments = (DIGITS, tmp_path / "m.qfb", "--vectors", 2, "--integer-only", "--input-shape", "x=1,1,8,8", "--quiet")
    assert run(*arguments, command="convert").exit_code == 0
    with qfmt.load(tmp_path / "m.qfb") as model:
        integers = [name for node in model.nodes for name in node.outputs if model.tensors[name].dtype != "float32"]
    shown = run(tmp_path / "m.qfb", command="inspect").stdout
    assert f"with {2 * len(integers)} digests of outputs of nodes" in shown
    facts = json.loads(run(tmp_path / "m.qfb", "--json", command="inspect").stdout)
    assert [list(each["digests"]) for each in facts["vectors"]] == [integers, integers]
    assert run(tmp_path / "m.qfb", "--replay", command="check").exit_code == 0


def test_check_does_not_run_what_is_not_valid(tmp_path: Path) -> None:
    path = tmp_path / "m.qfb"
    network().with_vectors(INPUT).save(path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    done = run(path, "--replay", command="check")
    assert done.exit_code == 1 and done.stdout.startswith("F9 ") and done.stdout.count("\n") == 1


def test_run_replays_them(tmp_path: Path) -> None:
    network().with_vectors(INPUT, names=("corners",)).save(tmp_path / "m.qfb")
    done = run(tmp_path / "m.qfb", "--vectors")
    assert done.exit_code == 0
    assert done.output.splitlines()[1].split() == ["corners", "real", "6", "6", "0"]
    assert done.output.endswith("\nequal\n")
    wrong_model().save(tmp_path / "wrong.qfb")
    done = run(tmp_path / "wrong.qfb", "--vectors")
    assert done.exit_code == 1
    assert done.output.splitlines()[1].split() == ["corners", "real", "6", "5", "0.5"]
    assert done.output.endswith("\ndifferent\n")
    done = run(tmp_path / "wrong.qfb", "--vectors", "--json")
    assert done.exit_code == 1
    assert json.loads(done.output)[0] == {
        "vector": "corners",
        "output": "real",
        "elements": 6,
        "different": 1,
        "largest": 0.5,
        "first_difference": "",
    }


def test_run_records_one(tmp_path: Path) -> None:
    network().save(tmp_path / "m.qfb")
    np.save(tmp_path / "image.npy", INPUT["q"])
    done = run(tmp_path / "m.qfb", "--input", tmp_path / "image.npy", "--record", tmp_path / "tested.qfb")
    assert done.exit_code == 0, done.output
    assert qfmt.load(tmp_path / "tested.qfb") == network().with_vectors(INPUT, names=("image",))
    assert run(tmp_path / "tested.qfb", "--vectors").exit_code == 0
    done = run(tmp_path / "m.qfb", "--input", tmp_path / "image.npy", "--record", tmp_path / "m.qfb")
    assert done.exit_code == 2
    assert "is the source itself" in done.output


def test_run_of_a_file_without_any(tmp_path: Path) -> None:
    network().save(tmp_path / "m.qfb")
    done = run(tmp_path / "m.qfb", "--vectors")
    assert done.exit_code == 2
    assert "has no test vectors; `qfmt run FILE --input X --record DEST` adds one to a copy" in done.output
    for options in ([], ["--vectors", "--input", tmp_path / "m.qfb"], ["--vectors", "--output", "y.npz"]):
        done = run(tmp_path / "m.qfb", *options)
        assert done.exit_code == 2
        assert "either --input" in done.output


def test_inspect_and_diff_name_them(tmp_path: Path) -> None:
    model = network().with_vectors(INPUT, INPUT, names=("corners", "more"))
    model.save(tmp_path / "a.qfb")
    shown = CliRunner().invoke(main, ["inspect", str(tmp_path / "a.qfb")]).output
    assert "vectors     2: corners, more; `qfmt run FILE --vectors` replays them" in shown
    facts = json.loads(CliRunner().invoke(main, ["inspect", str(tmp_path / "a.qfb"), "--json"]).output)
    sizes = {"inputs": {"q": [2, 3]}, "outputs": {"real": [2, 3], "q": [2, 3]}}
    assert facts["vectors"][0] == {"name": "corners", **sizes, "digests": {}}
    other = network().with_vectors(INPUT, {"q": INPUT["q"][:1]}, names=("corners", "more"))
    assert qfmt.diff(model, other).words == ("test vectors 2 → 2, different: more",)
    assert qfmt.diff(model, network()).words == ("test vectors 2 → 0",)
    assert qfmt.diff(tmp_path / "a.qfb", model).is_equal
