"""External data of ONNX is read only from the folder of the model, for every tensor in the model."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qfmt
from networks.onnx_models import conv_net, node, proto, random_inputs
from qfmt.errors import SourceError
from qfmt.frontends.onnx import external
from qfmt.frontends.onnx.external import is_external, open_proto, take_large, tensors_within
from support import onnx_witness
from support.paths import HOSTILE

FLOAT = TensorProto.FLOAT
WEIGHTS = np.arange(4, dtype=np.float32)


def saved(folder: Path, **changes: str) -> Path:
    """A network with its weights in weights.bin, and with changed entries of external data."""
    path = folder / "m.onnx"
    model = conv_net(np.random.default_rng(0))
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    model = onnx.load(path, load_external_data=False)
    (weight,) = (each for each in model.graph.initializer if each.name == "w")
    for entry in weight.external_data:
        entry.value = changes.get(entry.key, entry.value)
    path.write_bytes(model.SerializeToString())
    return path


def elsewhere(location: str) -> TensorProto:
    """WEIGHTS as external data."""
    tensor = TensorProto(name="t", data_type=FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def test_external_data_is_read_from_the_folder_of_the_model(tmp_path: Path) -> None:
    assert qfmt.convert(saved(tmp_path)).content_id() == qfmt.convert(conv_net(np.random.default_rng(0))).content_id()


@pytest.mark.parametrize(("changes", "words"), [
    ({"location": "../weights.bin"}, "outside the model's folder"),
    ({"location": "/etc/passwd"}, "outside the model's folder"),
    ({"location": "link.bin"}, "outside the model's folder"),
    ({"location": "folder/../../weights.bin"}, "outside the model's folder"),
    ({"location": "../model/weights.bin"}, "outside the model's folder"),
    ({"location": "hard.bin"}, "has 2 hard links.*replace it with a copy"),
    ({"location": "pipe"}, "not a regular file"),
    ({"location": "."}, "not a regular file"),
    ({"location": ""}, "no location"),
    ({"location": "missing.bin"}, "missing"),
    ({"location": "circle.bin"}, "cannot be opened|missing"),
    ({"location": "a\0b"}, "cannot be opened"),
    ({"location": "w" * 5000}, "cannot be opened|missing"),
    ({"location": "d/" * 10**6 + "w"}, "cannot be opened"),
    ({"offset": "100000"}, "bytes 100000"),
    ({"offset": "-1"}, "not a non-negative integer"),
    ({"length": "7"}, "has 7 bytes"),
    ({"length": "many"}, "not a non-negative integer"),
])  # fmt: skip
def test_other_files_and_other_sizes_are_refused(changes: dict[str, str], words: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(b"\1" * 4096)
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    (folder / "hard.bin").hardlink_to(tmp_path / "weights.bin")
    (folder / "circle.bin").symlink_to(folder / "circle.bin")
    os.mkfifo(folder / "pipe")
    with pytest.raises(SourceError, match=words) as caught:
        qfmt.convert(saved(folder, **changes))
    assert "initializer w" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_shape_of_many_sizes(tmp_path: Path) -> None:
    tensor = elsewhere("w.bin")
    tensor.dims[:] = [1 << 62] * 1000  # their product has more digits than Python prints
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    with pytest.raises(SourceError, match="1,000 dimensions"):
        qfmt.convert(_written(tmp_path, _in_initializer(tensor)))


def test_more_files_than_the_system_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file for each tensor, as older exporters write them, may be more than 1024 files."""
    path = saved(tmp_path)

    def full(path: Path) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(external, "descriptor_of", full)
    with pytest.raises(SourceError, match="Too many open files; raise the limit of open files"):
        qfmt.convert(path)


def test_two_locations(tmp_path: Path) -> None:
    """Some programs take the first one, some the last one."""
    tensor = elsewhere("weights.bin")
    tensor.external_data.add(key="location", value="weights.bin")
    model = helper.make_model(helper.make_graph([], "g", [], [], [tensor]))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(SourceError, match="states its external data twice"):
        qfmt.convert(tmp_path / "model.onnx")


def test_a_location_that_is_not_text(tmp_path: Path) -> None:
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"weights.bin", b"weights\xff\xfein"))
    with pytest.raises(SourceError, match="location of its external data is not text"):
        qfmt.convert(path)


def test_a_link_within_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    path = saved(tmp_path, location="link.bin")
    (tmp_path / "weights.bin").rename(tmp_path / "below" / "weights.bin")
    for name in ("link.bin", "weights.bin"):
        (tmp_path / name).symlink_to(tmp_path / "below" / "weights.bin")
    assert qfmt.convert(path).content_id() == qfmt.convert(conv_net(np.random.default_rng(0))).content_id()


def test_a_cache_that_links_to_one_folder_of_blobs(tmp_path: Path) -> None:
    """Hugging Face keeps snapshots/REVISION/onnx/NAME as links to blobs/HASH."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1f2e" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    made = saved(tmp_path)
    for name, own in (("m.onnx", "a0b1"), ("weights.bin", "c2d3")):
        (tmp_path / name).rename(blobs / own)
        (snapshot / name).symlink_to(Path("../../../blobs") / own)
    model = qfmt.convert(snapshot / made.name)
    assert model.content_id() == qfmt.convert(conv_net(np.random.default_rng(0))).content_id()
    (snapshot / "weights.bin").unlink()
    (tmp_path / "other.bin").write_bytes((blobs / "c2d3").read_bytes())
    (snapshot / "weights.bin").symlink_to(tmp_path / "other.bin")
    with pytest.raises(SourceError, match="outside the model's folder"):
        qfmt.convert(snapshot / made.name)


# -- every place for a tensor --------------------------------------------------------------------------------------


def _model(nodes: list[onnx.NodeProto], functions: list[onnx.FunctionProto] | None = None) -> onnx.ModelProto:
    return proto(nodes, {"x": (FLOAT, [4]), "c": (TensorProto.BOOL, [])}, ["y"], functions=functions or [])


def _function(inner: onnx.NodeProto) -> onnx.FunctionProto:
    return helper.make_function("d", "F", [], ["o"], [inner], [helper.make_opsetid("", 21)])


def _in_initializer(tensor: TensorProto) -> onnx.ModelProto:
    model = _model([node("Add", ["x", "t"], ["y"])])
    model.graph.initializer.append(tensor)
    return model


def _in_constant(tensor: TensorProto) -> onnx.ModelProto:
    return _model([node("Constant", [], ["w"], value=tensor), node("Add", ["x", "w"], ["y"])])


def _in_function(tensor: TensorProto) -> onnx.ModelProto:
    nodes = [node("F", [], ["w"], domain="d"), node("Add", ["x", "w"], ["y"])]
    return _model(nodes, [_function(node("Constant", [], ["o"], value=tensor))])


def _in_default_of_function(tensor: TensorProto) -> onnx.ModelProto:
    inner = node("Constant", [], ["o"])
    inner.attribute.append(onnx.AttributeProto(name="value", ref_attr_name="v", type=onnx.AttributeProto.TENSOR))
    function = _function(inner)
    function.attribute_proto.append(helper.make_attribute("v", tensor))
    return _model([node("F", [], ["w"], domain="d"), node("Add", ["x", "w"], ["y"])], [function])


def _in_subgraph(tensor: TensorProto) -> onnx.ModelProto:
    output = helper.make_tensor_value_info("b", FLOAT, [4])
    branch = helper.make_graph([node("Identity", ["t"], ["b"])], "branch", [], [output], [tensor])
    return _model([node("If", ["c"], ["w"], then_branch=branch, else_branch=branch), node("Add", ["x", "w"], ["y"])])


def _in_list_of_tensors(tensor: TensorProto) -> onnx.ModelProto:
    return _model([node("Own", ["x"], ["y"], domain="own", tables=[tensor, tensor])])


PLACES: list[Callable[[TensorProto], onnx.ModelProto]] = [
    _in_initializer,
    _in_constant,
    _in_function,
    _in_default_of_function,
    _in_subgraph,
    _in_list_of_tensors,
]


@pytest.mark.parametrize("place", PLACES)
def test_every_tensor_is_found(place: Callable[[TensorProto], onnx.ModelProto], tmp_path: Path,
                               monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """The files in the folder of the model are read, not those in the working directory."""
    folder, other = tmp_path / "model", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    WEIGHTS.tofile(folder / "w.bin")
    (WEIGHTS + 1).tofile(other / "w.bin")
    monkeypatch.chdir(other)
    (folder / "m.onnx").write_bytes(place(elsewhere("w.bin")).SerializeToString())
    (folder / "away.onnx").write_bytes(place(elsewhere("../other/w.bin")).SerializeToString())
    opened = open_proto(folder / "m.onnx")
    found = [tensor for tensor, _ in tensors_within(opened) if list(tensor.dims) == [4]]
    assert found
    for tensor in found:
        assert not is_external(tensor)
        assert np.array_equal(numpy_helper.to_array(tensor), WEIGHTS)
    inside = qfmt.convert(folder / "m.onnx")
    assert inside.content_id() == qfmt.convert(place(numpy_helper.from_array(WEIGHTS, "t"))).content_id()
    with pytest.raises(SourceError, match="outside the model's folder"):
        qfmt.convert(folder / "away.onnx")
    with pytest.raises(SourceError, match="in another file"):
        qfmt.convert(place(elsewhere("w.bin")))


def test_sparse_tensors_and_training_are_looked_through(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(16))
    model = _in_constant(numpy_helper.from_array(WEIGHTS, "t"))
    sparse = onnx.SparseTensorProto(values=elsewhere("../w.bin"), dims=[8])
    model.graph.node.append(node("Constant", [], ["s"], sparse_value=sparse))
    with pytest.raises(SourceError, match="outside"):
        qfmt.convert(_written(tmp_path, model))
    sparse.values.CopyFrom(numpy_helper.from_array(WEIGHTS, "t"))
    model.graph.node[-1].attribute[0].sparse_tensor.CopyFrom(sparse)
    with pytest.raises(SourceError, match="node 'Constant': has a sparse tensor; make it dense"):
        qfmt.convert(_written(tmp_path, model))
    del model.graph.node[-1]
    model.training_info.add().initialization.initializer.append(elsewhere("../w.bin"))
    with pytest.raises(SourceError, match="outside"):
        qfmt.convert(_written(tmp_path, model))


def _written(folder: Path, model: onnx.ModelProto) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_the_working_directory_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Constant in a function body, run from a folder with its own w.bin, which was read once."""
    source = HOSTILE / "onnx-function-external" / "m.onnx"
    monkeypatch.chdir(tmp_path)
    Path("w.bin").write_bytes(bytes(range(100, 164)))
    weights = np.fromfile(source.parent / "w.bin", np.int8)
    constants = [each.array.reshape(-1) for each in qfmt.convert(source).graph.constants()]
    assert any(np.array_equal(each, weights) for each in constants)


def test_the_checked_file_is_the_one_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file replaces the weights between their check and their first use."""
    path = saved(tmp_path)
    weights = (tmp_path / "weights.bin").read_bytes()
    expected = qfmt.convert(path).tensors["w"].array.copy()
    assert expected.any()
    checked = external._Folder.places

    def swapped(folder: Any, tensors: Any) -> Any:
        places = checked(folder, tensors)
        (tmp_path / "other").write_bytes(bytes(len(weights)))
        (tmp_path / "other").replace(tmp_path / "weights.bin")
        return places

    def large(path: Path) -> Any:
        return take_large(open_proto(path, files := {}), files)["w"]

    monkeypatch.setattr(external._Folder, "places", swapped)
    monkeypatch.setattr(external, "LARGE", 0)
    for read in (lambda path: qfmt.convert(path).tensors["w"].array, large):
        (tmp_path / "weights.bin").write_bytes(weights)
        assert np.array_equal(read(path), expected)
        assert not any((tmp_path / "weights.bin").read_bytes())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    path = saved(tmp_path)
    (tmp_path / "weights.bin").unlink()
    os.mkfifo(tmp_path / "weights.bin")
    with pytest.raises(SourceError, match="is not a regular file"):
        qfmt.convert(path)


def test_tensors_that_share_their_bytes_a_thousand_times(tmp_path: Path) -> None:
    """A small file that would need a thousand times the memory of the data that it refers to."""
    (tmp_path / "w.bin").write_bytes(bytes(16 << 10))
    model = _model([node("Sum", ["x", *(f"w{index}" for index in range(1000))], ["y"])])
    for index in range(1000):
        tensor = elsewhere("w.bin")
        tensor.name, tensor.dims[:] = f"w{index}", [4096]
        model.graph.initializer.append(tensor)
    with pytest.raises(SourceError, match="16384000 bytes of external data in files of 16384 bytes"):
        qfmt.convert(_written(tmp_path, model))


def test_a_runtime_gets_a_model_that_names_no_file(tmp_path: Path) -> None:
    source = conv_net(np.random.default_rng(0))
    opened = open_proto(saved(tmp_path))
    (tmp_path / "weights.bin").unlink()
    given = random_inputs(source)
    for mine, theirs in zip(onnx_witness.runtime(opened, given), onnx_witness.runtime(source, given), strict=True):
        assert np.array_equal(mine, theirs)
