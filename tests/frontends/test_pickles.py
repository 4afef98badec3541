"""Pickles read as data: those of PyTorch are read correctly, all others are refused; nothing is executed."""

from __future__ import annotations

import os
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from qfmt.errors import SourceError, UnsafePickleError
from qfmt.frontends.harmless import Inert, InertClass
from qfmt.frontends.pickles import unpickle
from qfmt.frontends.stored import EXPANSION_LIMIT, PerChannel, PerTensor, Storage, StoredTensor
from support.examples import examples
from support.pickles import Runs, text


def no_storage(key: str, dtype: str) -> Storage:
    return Storage(key, dtype, lambda: memoryview(b""))


def read(data: bytes, **options: Any) -> Any:
    return unpickle(data, no_storage, **options)


def torch_saved(value: Any, path: Path) -> tuple[Any, bytes]:
    """A value that torch.save wrote, as qfmt reads it, and its pickle."""
    torch.save(value, path)
    archive = zipfile.ZipFile(path)
    root = archive.namelist()[0].partition("/")[0]
    data = archive.read(f"{root}/data.pkl")

    def storage(key: str, dtype: str) -> Storage:
        return Storage(key, dtype, lambda: memoryview(archive.read(f"{root}/data/{key}")))

    return unpickle(data, storage, where="data.pkl"), data


# -- values --------------------------------------------------------------------------------------------

keys = st.one_of(st.text(max_size=8), st.integers(-(2**16) + 1, 2**16 - 1), st.booleans(), st.none())
integers = st.integers(-(2**63), 2**63 - 1)
plain = st.recursive(
    st.one_of(keys, integers, st.floats(allow_nan=False), st.binary(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.tuples(inner, inner, inner, inner),
        st.dictionaries(keys, inner, max_size=4),
    ),
    max_leaves=20,
)


@example([-(2**63)], 4)
@given(plain, st.sampled_from([3, 4, 5]))
def test_plain_values_come_back(value: Any, protocol: int) -> None:
    assert read(pickle.dumps(value, protocol)) == value


@given(st.lists(st.text(max_size=300), max_size=5))
def test_shared_values_stay_shared(texts: list[str]) -> None:
    again = read(pickle.dumps([texts, texts, {"t": texts}], 2))
    assert again[0] == texts and again[0] is again[1] is again[2]["t"]


DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool", "complex64")


@pytest.mark.parametrize("name", DTYPES)
def test_tensors_of_every_dtype(tmp_path: Path, name: str) -> None:
    theirs = torch.arange(-12, 12).reshape(2, 3, 4).to(getattr(torch, name))
    ours, _ = torch_saved(theirs, tmp_path / "t.pt")
    assert (ours.dtype, ours.shape) == (name, (2, 3, 4))
    kept = theirs.to(torch.complex128 if name == "complex64" else torch.float64)
    assert ours.array().astype(kept.numpy().dtype).tolist() == kept.tolist()


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A view of a storage: reshaped, permuted, sliced with steps, expanded."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    view = torch.arange(int(np.prod(shape)), dtype=torch.int32).reshape(shape)
    view = view.permute(draw(st.permutations(range(len(shape)))))
    for axis, size in enumerate(view.shape):
        start = draw(st.integers(0, size - 1))
        view = view[(slice(None),) * axis + (slice(start, None, draw(st.integers(1, 3))),)]
    return view.expand(draw(st.integers(1, 3)), *view.shape) if draw(st.booleans()) else view


@given(views())
@examples(25)
def test_views_come_out_in_logical_order(tmp_path_factory: pytest.TempPathFactory, theirs: torch.Tensor) -> None:
    ours, _ = torch_saved(theirs, tmp_path_factory.mktemp("views") / "t.pt")
    array = ours.array()
    assert array.flags.c_contiguous and not array.flags.writeable
    assert array.tolist() == theirs.tolist()
    assert (ours.shape, ours.strides, ours.offset) == (tuple(theirs.shape), theirs.stride(), theirs.storage_offset())


def test_quantized_tensors(tmp_path: Path) -> None:
    x = torch.randn(3, 5)
    scales, points = torch.tensor([0.1, 0.025, 1 / 3], dtype=torch.float64), torch.tensor([3, 0, -7])
    whole = torch.quantize_per_tensor(x, 0.1, 7, torch.quint8)
    rows = torch.quantize_per_channel(x, scales, points, 0, torch.qint8)
    ours, _ = torch_saved({"whole": whole, "rows": rows}, tmp_path / "q.pt")
    assert ours["whole"].quantizer == PerTensor(0.1, 7)
    assert ours["whole"].array().tolist() == whole.int_repr().tolist()
    quantizer = ours["rows"].quantizer
    assert isinstance(quantizer, PerChannel) and quantizer.axis == 0
    assert quantizer.scales() == tuple(scales.tolist()) and quantizer.zero_points() == (3, 0, -7)
    assert (ours["rows"].dtype, ours["rows"].array().tolist()) == ("int8", rows.int_repr().tolist())


@pytest.mark.parametrize(("dtype", "bits"), [(torch.quint4x2, 4), (torch.quint2x4, 2)])
def test_sub_byte_tensors_are_unpacked_to_bytes(tmp_path: Path, dtype: torch.dtype, bits: int) -> None:
    levels = torch.arange(32).reshape(4, 8) % (1 << bits)
    ones = torch.ones(4)
    theirs = torch.quantize_per_channel(levels.float(), ones, torch.zeros(4), 0, dtype)
    ours, _ = torch_saved(theirs, tmp_path / "q.pt")
    assert (ours.dtype, ours.shape, ours.array().tolist()) == (f"uint{bits}", (4, 8), levels.tolist())


def test_parameters_state_dicts_and_sizes(tmp_path: Path) -> None:
    ours, _ = torch_saved(
        {"state": torch.nn.Linear(2, 3).state_dict(), "p": torch.nn.Parameter(torch.ones(2)), "s": torch.Size([1, 2])},
        tmp_path / "s.pt",
    )
    assert list(ours["state"]) == ["weight", "bias"] and ours["s"] == (1, 2)
    assert ours["p"].array().tolist() == [1, 1]


# -- unsupported modules -----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_call_of_os_system_is_reported_and_not_executed(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "marker"
    data = pickle.dumps({"weight": Runs(f"touch {marker}")}, protocol)
    with pytest.raises(UnsafePickleError, match=rf"'{os.system.__module__}\.system'.*not on the list") as caught:
        read(data)
    assert not marker.exists()
    assert "nothing was executed" in str(caught.value) and "\n" not in str(caught.value)
    classes = read(data, find_global=lambda module, name: InertClass(f"{module}.{name}"))
    assert isinstance(classes["weight"], Inert)
    assert not marker.exists()


FORBIDDEN = (
    "builtins eval", "builtins getattr", "__builtin__ exec", "os system", "subprocess Popen", "torch load",
    "torch.hub load", "torch.storage _load_from_bytes", "numpy load", "collections namedtuple",
    "torch._utils _rebuild_sparse_tensor", "torch.jit._pickle build_tensor_from_id", "qfmt.frontends.pickles unpickle",
    " ", "a b.c.d", "torch FloatStorage.from_file", "collections OrderedDict.fromkeys", "__torch__x A",
    "\u00e9\u2028 x",
)  # fmt: skip


@pytest.mark.parametrize("name", FORBIDDEN)
def test_globals_that_are_not_listed(name: str) -> None:
    module, _, attribute = name.partition(" ")
    for data in (
        b"\x80\x02c" + module.encode() + b"\n" + attribute.encode() + b"\n)R.",
        b"\x80\x04" + text(module) + text(attribute) + b"\x93)R.",
    ):
        with pytest.raises(UnsafePickleError) as caught:
            read(data, where="data.pkl")
        assert str(caught.value).isprintable() and "data.pkl" in str(caught.value)


TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"
BUILD = b"\x89NtR."
SUBCLASS = b"ctorch._tensor\n_rebuild_from_type_v2\n"
NESTED = (b"(" + SUBCLASS + b"N") * 5000 + b")" + b"t" * 5000
FLOATS = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x10tQ"

BEGIN = b"\x80\x02" + TENSOR + b"("

ABUSES = {
    "empty": b"",
    "nothing on the stack": b"\x80\x02.",
    "unknown opcode": b"\x80\x02\xff.",
    "text integers": b"\x80\x02I5\n.",
    "a memo that is not there": b"\x80\x02h\x05.",
    "a memo of four billion": b"\x80\x02Nr\xff\xff\xff\xff" + b"j\xfe\xff\xff\xff.",
    "a string of four gigabytes": b"\x80\x02X\xff\xff\xff\xffabc.",
    "a string of 2**63 bytes": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7fabc.",
    "an integer of 255 bytes": b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".",
    "an integer of two gigabytes": b"\x80\x02\x8b\xff\xff\xff\x7f" + b"\x01" * 255 + b".",
    "calls a dict": b"\x80\x02})R.",
    "calls a string": b"\x80\x02" + text("eval") + b")R.",
    "calls a dtype": b"\x80\x02ctorch\nqint8\n)R.",
    "calls with a list": b"\x80\x02ccollections\nOrderedDict\n]R.",
    "calls with too many arguments": b"\x80\x02" + TENSOR + b"(" + b"N" * 20 + b"tR.",
    "calls with too few arguments": b"\x80\x02" + TENSOR + b")R.",
    "a new object of a function": b"\x80\x02" + TENSOR + b")\x81.",
    "state for a list": b"\x80\x02]}b.",
    "state for a function": b"\x80\x02" + TENSOR + b"}b.",
    "state for a string": b"\x80\x02" + text("x") + b"}b.",
    "appends to a dict": b"\x80\x02}Na.",
    "appends to a tuple": b"\x80\x02)Na.",
    "sets items of a list": b"\x80\x02]NNs.",
    "an odd number of items": b"\x80\x02}(NNNu.",
    "a list as a key": b"\x80\x02}]Ns.",
    "a key nested a million deep": b"\x80\x02})" + b"\x85" * 1_000_000 + b"Ns.",
    "adds to a list": b"\x80\x04](N\x90.",
    "adds to a set without a list": b"\x80\x04cbuiltins\nset\n)R(N\x90.",
    "a dict as a key": b"\x80\x02}}Ns.",
    "a device of no name": b"\x80\x02ctorch\ndevice\nK\x01\x85R.",
    "no mark": b"\x80\x02Nt.",
    "a persistent id of an object": b"\x80\x02" + text("storage") + b"Q.",
    "a persistent id without a type": b"\x80\x02(" + text("storage") + text("float") + text("0") + b"tQ.",
    "a tensor without a storage": b"\x80\x02" + TENSOR + b"(NK\x00)))" + BUILD,
    "a tensor of strings": BEGIN + FLOATS + text("0") + b"))" + BUILD,
    "a tensor of floats for sizes": BEGIN + FLOATS + b"K\x00G\x40\x00\x00\x00\x00\x00\x00\x00\x85K\x01\x85" + BUILD,
    "a tensor of more strides than sizes": BEGIN + FLOATS + b"K\x00)K\x01\x85" + BUILD,
    "a tensor of 2**200 elements": BEGIN + FLOATS + b"K\x00\x8a\x1a" + b"\x01" * 26 + b"\x85K\x01\x85" + BUILD,
    "a tensor made by what makes tensors, and so on": b"\x80\x02" + SUBCLASS + NESTED + b"R.",
    "a dict of no pairs": b"\x80\x02ccollections\nOrderedDict\n(](Nee\x85R.",
}  # fmt: skip


@pytest.mark.parametrize("name", ABUSES)
def test_abuse_is_a_source_error(name: str) -> None:
    with pytest.raises(SourceError) as caught:
        read(ABUSES[name], where="data.pkl")
    assert "data.pkl" in str(caught.value) and str(caught.value).isprintable()


@pytest.mark.parametrize("items", [b"\x8e" + (2).to_bytes(8, "little") + b"ab", text("ab")], ids=["bytes", "a text"])
def test_a_size_is_made_of_a_list(items: bytes) -> None:
    """Bytes become eight times as many, and characters of a text may be new objects of 80 bytes."""
    with pytest.raises(SourceError, match="a size is not a list"):
        read(b"\x80\x04ctorch\nSize\n" + items + b"\x85R.")


@pytest.mark.parametrize(
    "name", [b"cm\n" + b"A" * 1000 + b"\n", b"\x80\x04" + text("m" * 500) + text("m" * 501) + b"\x93"]
)
def test_long_names_of_classes_are_refused(name: bytes) -> None:
    """Each object of a class, and what is made of it, may copy the name."""
    with pytest.raises(SourceError, match="the name of a class has 1,001 characters"):
        read(b"\x80\x02" + name + b".", find_global=lambda module, name: InertClass(f"{module}.{name}"))


def test_nesting_does_not_recurse() -> None:
    depth = 50 * sys.getrecursionlimit()
    value = read(b"\x80\x02]" + b"]" * depth + b"a" * depth + b".")
    for _ in range(depth):
        (value,) = value
    assert value == []


def test_cycles_are_read_as_cycles() -> None:
    value = read(b"\x80\x02]q\x00h\x00a.")
    assert value[0] is value


@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    try:
        read(b"\x80\x02" + data)
    except SourceError as error:
        assert str(error).isprintable()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A pickle with tensors of all kinds."""
    rows = torch.quantize_per_channel(torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8)
    value = {"a": torch.ones(3, 4).t(), "b": [rows, torch.nn.Parameter(torch.ones(1))], "c": (1, 2.5, None, "x")}
    return torch_saved(value, tmp_path_factory.mktemp("real") / "t.pt")[1]


def test_every_truncation_is_a_source_error(real: bytes) -> None:
    for length in range(len(real)):
        with pytest.raises(SourceError):
            read(real[:length])


def test_every_changed_byte_is_a_source_error_or_a_value(real: bytes) -> None:
    values = 0
    for position in range(len(real)):
        for change in (0x01, 0x80, 0xFF):
            data = bytearray(real)
            data[position] ^= change
            try:
                read(bytes(data))
                values += 1
            except SourceError as error:
                assert str(error).isprintable(), error
    print(f"{values} of {3 * len(real)} changes still give a value")


# -- windows on storages -------------------------------------------------------------------------------


def window(shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0, nbytes: int = 48) -> StoredTensor:
    storage = Storage("data/0", "float32", lambda: memoryview(bytes(nbytes)))
    return StoredTensor(storage, "float32", shape, strides, offset)


BAD_WINDOWS = {
    "one too many": window((13,), (1,)),
    "an offset at the end": window((1,), (1,), 12),
    "a stride beyond the end": window((2, 2), (11, 1)),
    "a huge stride": window((2,), (2**62,)),
    "a huge size": window((2**62,), (1,)),
    "sizes whose product overflows 64 bits": window((2**31, 2**31, 2**31), (0, 0, 0)),
    "nothing, in sizes whose product overflows 64 bits": window((2**40, 2**40, 0), (0, 0, 0)),
    "a negative size": window((-1,), (1,)),
    "two negative sizes": window((-2, -3), (1, 1)),
    "a negative stride": window((3,), (-1,), 5),
    "a negative offset": window((3,), (1,), -1),
    "a negative offset of nothing": window((0,), (1,), -5),
    "an empty storage": window((1,), (1,), nbytes=0),
    "half an element": window((1,), (1,), nbytes=3),
    "an expansion to gigabytes": window((EXPANSION_LIMIT, 4), (0, 1)),
    "more dimensions than arrays have": window((1,) * 40, (1,) * 40),
}


@pytest.mark.parametrize("name", BAD_WINDOWS)
def test_windows_beyond_their_storage(name: str) -> None:
    with pytest.raises(SourceError, match="data/0: a tensor"):
        BAD_WINDOWS[name].array()


shapes = st.lists(st.tuples(st.integers(-1, 6), st.integers(-1, 12)), max_size=4)


@given(shapes, st.integers(-1, 12), st.integers(0, 48))
def test_any_window_is_an_array_or_a_source_error(layout: list[tuple[int, int]], offset: int, nbytes: int) -> None:
    shape, strides = tuple(size for size, _ in layout), tuple(stride for _, stride in layout)
    values = np.arange(12, dtype=np.float32)
    storage = Storage("s", "float32", lambda: memoryview(values.tobytes()[:nbytes]))
    tensor = StoredTensor(storage, "float32", shape, strides, offset)
    reachable = [
        offset + sum(i * s for i, s in zip(index, strides, strict=True))
        for index in np.ndindex(*(max(size, 0) for size in shape))
    ]
    fits = min((offset, *shape, *strides)) >= 0 and all(position < nbytes // 4 for position in reachable)
    if fits:
        assert tensor.array().reshape(-1).tolist() == values[reachable].tolist() and tensor.array().shape == shape
    else:
        with pytest.raises(SourceError):
            tensor.array()


def test_item() -> None:
    assert StoredTensor.of([0.1], "float64").item() == 0.1
    with pytest.raises(SourceError, match=r"shape \[2\]"):
        StoredTensor.of([1, 2], "int64").item()
