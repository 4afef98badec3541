"""Broken and malicious `.pt2` archives cause one clear error, and nothing is executed."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
import qfmt  # noqa: E402
from networks.decomposed import FORMS, Function, Layer, X, activation  # noqa: E402
from networks.pytorch import quiet  # noqa: E402
from qfmt.errors import (  # noqa: E402
    BudgetError,
    QfmtError,
    SourceError,
    UnsafePickleError,
    UnsupportedOperatorsError,
)
from qfmt.frontends.torch.exported import memory as exported_memory  # noqa: E402
from qfmt.frontends.torch.exported.document import Call, Program, Ref  # noqa: E402
from qfmt.frontends.torch.exported.document import Graph as ExportedGraph  # noqa: E402
from support.examples import examples  # noqa: E402

Entries = dict[str, bytes]
MODEL = "archive/models/model.json"
WEIGHTS = "archive/data/weights/model_weights_config.json"


@pytest.fixture(scope="module")
def entries() -> Entries:
    buffer = io.BytesIO()
    with quiet():
        torch.export.save(torch.export.export(Layer().eval(), (X,)), buffer)
    with zipfile.ZipFile(buffer) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def written(entries: Entries, path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return path


def with_json(entries: Entries, name: str, change: Callable[[Any], Any]) -> Entries:
    document = json.loads(entries[name])
    changed = change(document)
    return entries | {name: json.dumps(document if changed is None else changed).encode()}


def node(document: Any, target: str) -> Any:
    return next(node for node in document["graph_module"]["graph"]["nodes"] if target in node["target"])


def set_schema(document: Any) -> None:
    document["schema_version"]["major"] = 9


def set_target(document: Any) -> None:
    node(document, "linear")["target"] = "torch.ops.aten.fft_fft.default"


def set_scale(document: Any) -> None:
    node(document, "quantize_per_tensor")["inputs"][1]["arg"] = {"as_float": "NaN"}


def set_limits(document: Any) -> None:
    node(document, "quantize_per_tensor")["inputs"][4]["arg"] = {"as_int": 4096}


def set_forward_reference(document: Any) -> None:
    document["graph_module"]["graph"]["nodes"].reverse()


def set_argument(document: Any) -> None:
    node(document, "linear")["inputs"][0]["arg"] = {"as_weird": 3}


def set_recursion(document: Any) -> None:
    deep: Any = {"as_none": True}
    for _ in range(400):
        deep = {"as_optional_tensors": [deep]}
    node(document, "linear")["inputs"][0]["arg"] = deep


def set_size(sizes: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        document["config"]["w"]["tensor_meta"]["sizes"] = sizes

    return change


def set_meta(key: str, value: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        document["config"]["w"]["tensor_meta"][key] = value

    return change


def set_payload(key: str, value: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        document["config"]["w"][key] = value

    return change


def set_input_order(document: Any) -> None:
    document["graph_module"]["signature"]["input_specs"][:2] = reversed(
        document["graph_module"]["signature"]["input_specs"][:2]
    )


def set_output(document: Any) -> None:
    document["graph_module"]["graph"]["outputs"] = [{"as_tensor": {"name": "x"}}]


def set_name_twice(document: Any) -> None:
    node(document, "linear")["inputs"] += [{"name": "bias", "arg": {"as_none": True}, "kind": 2}]


def share_bytes(document: Any) -> None:
    document["config"]["bias"]["path_name"] = document["config"]["w"]["path_name"]


def set_call_of(count: int, body: Any) -> Callable[[Any], None]:
    """The linear layer calls a graph with so many arguments."""

    def change(document: Any) -> None:
        call = node(document, "linear")
        call["target"] = "torch.ops.higher_order.wrap_with_set_grad_enabled"
        x = [call["inputs"][0]["arg"]] * count
        given = [{"as_bool": True}, body, *x]
        call["inputs"] = [{"name": "", "arg": arg, "kind": 1} for arg in given]

    return change


def graph_of(*outputs: Any) -> Any:
    """The identity, or a graph with these outputs."""
    x = {"as_tensor": {"name": "x"}}
    graph = {"inputs": [x], "outputs": [x] if not outputs else list(*outputs), "nodes": [], "tensor_values": {}}
    return {"as_graph": {"name": "body", "graph": graph}}


BROKEN = {
    "inputs in another order": (MODEL, set_input_order, "not those of its signature"),
    "another output": (MODEL, set_output, "not those of its signature"),
    "a body with too few arguments": (MODEL, set_call_of(0, graph_of()), "arguments that PyTorch does not write"),
    "a body with too many arguments": (MODEL, set_call_of(2, graph_of()), "arguments that PyTorch does not write"),
    "a body that is a number": (MODEL, set_call_of(1, {"as_int": 1}), "arguments that PyTorch does not write"),
    "a body without outputs": (MODEL, set_call_of(1, graph_of([])), "arguments that PyTorch does not write"),
    "an argument twice": (MODEL, set_name_twice, "linear is called with arguments that are not supported"),
    "an integer with a fraction": (
        MODEL, lambda d: node(d, "quantize_per_tensor")["inputs"][2].update(arg={"as_int": 3.5}), "3.5 is not a int",
    ),
    "bytes of two types": (WEIGHTS, share_bytes, "another element type"),
    "an input of an unknown type": (
        MODEL, lambda d: d["graph_module"]["graph"]["tensor_values"]["x"].update(dtype=12345) , "an element type that",
    ),
    "schema": (MODEL, set_schema, "schema 9"),
    "no schema": (MODEL, lambda d: d.pop("schema_version"), "does not state its schema"),
    "not a program": (MODEL, lambda d: [1, 2], "does not state its schema"),
    "no graph": (MODEL, lambda d: d.pop("graph_module") and None, "program is invalid"),
    "operator": (MODEL, set_target, "aten::fft_fft"),
    "scale": (MODEL, set_scale, "scale nan"),
    "limits": (MODEL, set_limits, "not a range of uint8"),
    "order": (MODEL, set_forward_reference, "no node computes"),
    "argument": (MODEL, set_argument, "as_weird"),
    "nesting": (MODEL, set_recursion, ""),
    "no weights": (WEIGHTS, lambda d: d["config"].clear(), "lacks this tensor"),
    "no config": (WEIGHTS, lambda d: d.pop("config") and None, "is not what torch.export writes here"),
    "negative size": (WEIGHTS, set_size([{"as_int": -3}, {"as_int": 16}]), "invalid sizes"),
    "size of another type": (WEIGHTS, set_size([{"as_int": True}, {"as_int": 16}]), "invalid sizes"),
    "huge size": (WEIGHTS, set_size([{"as_int": 1 << 40}, {"as_int": 16}]), "damaged"),
    "other rank": (WEIGHTS, set_size([{"as_int": 48}]), "damaged"),
    "element type": (WEIGHTS, set_meta("dtype", 99), "element type 99"),
    "offset": (WEIGHTS, set_meta("storage_offset", {"as_int": 40}), "needs 88 bytes"),
    "path": (WEIGHTS, set_payload("path_name", "../../../etc/passwd"), "lacks the bytes"),
    "no meta": (WEIGHTS, set_payload("tensor_meta", [3]), "is not what torch.export writes here"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_broken_archive(what: str, entries: Entries, tmp_path: Path) -> None:
    name, change, words = BROKEN[what]
    path = written(with_json(entries, name, lambda document: _none_or_list(change(document))), tmp_path / "m.pt2")
    with pytest.raises(SourceError) as caught:
        qfmt.convert(path)
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_arguments_are_read_by_name(entries: Entries, tmp_path: Path) -> None:
    """PyTorch ignores the order in which a call lists its arguments."""

    def turn(document: Any) -> None:
        node(document, "linear")["inputs"].reverse()
        node(document, "quantize_per_tensor")["inputs"].reverse()

    turned = written(with_json(entries, MODEL, turn), tmp_path / "turned.pt2")
    model = qfmt.convert(turned)
    assert model.content_id() == qfmt.convert(written(entries, tmp_path / "m.pt2")).content_id()
    with quiet():
        theirs = torch.export.load(turned).module()(X)
    (mine,) = model.run({"x": X.numpy()}).values()
    assert torch.allclose(torch.from_numpy(mine.copy()), theirs, rtol=0, atol=1e-5)


def resized(x: Any) -> Any:
    y = torch.ops.aten.upsample_bilinear2d.default(activation(x).unsqueeze(0), [9, 40], False, 1.5, 2.5)
    z = torch.ops.aten.upsample_nearest2d.vec(y.swapaxes(2, 3), None, [2.0, 3.0]).view([4, -1])
    parts = z.split_with_sizes([100, z.shape[1] - 100], 1)
    return parts[1].to(torch.float64) + torch.arange(1, 9, 2)[:, None, None] + torch.full_like(parts[1], 0.5), z > 0.1


def test_arguments_of_all_kinds_are_read_by_name(tmp_path: Path) -> None:
    with quiet():
        torch.export.save(torch.export.export(Function(resized).eval(), (X,)), tmp_path / "m.pt2")

    def turn(document: Any) -> None:
        for each in document["graph_module"]["graph"]["nodes"]:
            each["inputs"].reverse()

    with zipfile.ZipFile(tmp_path / "m.pt2") as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in entries if name.endswith("models/model.json"))
    model = qfmt.convert(tmp_path / "m.pt2")
    turned = written(with_json(entries, name, turn), tmp_path / "turned.pt2")
    try:
        assert qfmt.convert(turned).content_id() == model.content_id()
    except UnsupportedOperatorsError as error:
        assert list(error.operators) == ["aten::gt"]  # reversed, it is refused


LONG = 40_000


def excessive(target: str, *inputs: tuple[str, Any]) -> Any:
    """A call as torch.export writes it."""
    given = [{"name": name, "arg": {kind: value}, "kind": 1} for name, (kind, value) in inputs]
    outputs = [{"as_tensor": {"name": "made"}}]
    return {"target": f"torch.ops.{target}", "inputs": given, "outputs": outputs, "metadata": {}}


OUT, WEIGHT = ("as_tensor", {"name": "linear"}), ("as_tensor", {"name": "b_w"})
EXCESSIVE = {
    "dimensions": (excessive("aten.repeat.default", ("self", OUT), ("repeats", ("as_ints", [1] * LONG))), "33 dim"),
    "sizes": (excessive("aten.full.default", ("size", ("as_ints", [1 << 62] * LONG)), ("fill_value", ("as_int", 1))),
              "creates a tensor of the sizes"),
    "strides": (excessive("aten.as_strided.default", ("self", OUT), ("size", ("as_ints", [1] * LONG)),
                          ("stride", ("as_ints", [1] * LONG))), "no equivalent"),
    "an axis": (excessive(
        "aten.fake_quantize_per_channel_affine.default", ("self", OUT), ("scale", ("as_tensor", {"name": "p_bias"})),
        ("zero_point", WEIGHT), ("axis", ("as_int", 10**10)),
        ("quant_min", ("as_int", 0)), ("quant_max", ("as_int", 255))), "along the axis 10000000000"),
    "fractions of zero points": (excessive(
        "quantized_decomposed.dequantize_per_channel.default", ("input", WEIGHT),
        ("scales", ("as_tensor", {"name": "p_bias"})), ("zero_points", ("as_tensor", {"name": "p_bias"})),
        ("axis", ("as_int", 0)), ("quant_min", ("as_int", 0)), ("quant_max", ("as_int", 255)),
        ("dtype", ("as_scalar_type", 1))), "called with 1.5 where an integer is needed"),
    "terms": (excessive("aten.einsum.default", ("equation", ("as_string", "abc," * LONG + "abc->")),
                        ("tensors", ("as_tensors", [OUT[1]] * (LONG + 1)))), "more than 32"),
}  # fmt: skip


@pytest.mark.parametrize("what", EXCESSIVE)
def test_excessive_arguments_are_refused(what: str, entries: Entries, tmp_path: Path) -> None:
    call, words = EXCESSIVE[what]

    def add(document: Any) -> None:
        module = document["graph_module"]
        module["graph"]["nodes"].append(call)
        module["graph"]["outputs"] = call["outputs"]
        module["signature"]["output_specs"] = [{"user_output": {"arg": call["outputs"][0]}}]

    halves = next({name: b"\0\0\xc0\x3f" * 3} for name in entries if name.endswith("weight_0"))
    with pytest.raises(SourceError, match=words):
        qfmt.convert(written(with_json(entries | halves, MODEL, add), tmp_path / "m.pt2"))


ROWS = 1 << 12
SHARED = {
    "a weight, which is read and written in each quantization": ("per_tensor", "b_w", ("as_float", 1.0)),
    "scales, which each pair of limits copies": ("per_channel", "p_bias", ("as_tensor", {"name": "p_bias"})),
}


@pytest.mark.parametrize("what", SHARED)
def test_what_many_tensors_share_is_counted(what: str, entries: Entries, tmp_path: Path) -> None:
    """A weight of 1 MB, a scale for each of its rows, and calls that dequantize it with different limits."""
    kind, points, scale = SHARED[what]
    sizes = {"w": [ROWS, 256], "bias": [ROWS]}

    def enlarge(document: Any) -> None:
        for name, shape in sizes.items():
            meta = document["config"][name]["tensor_meta"]
            meta["sizes"] = [{"as_int": size} for size in shape]
            meta["strides"] = [{"as_int": size} for size in (*shape[1:], 1)]

    def repeat(times: int) -> Callable[[Any], None]:
        def change(document: Any) -> None:
            module, calls = document["graph_module"], []
            for low in range(times):
                axis = [("axis", ("as_int", 0))] if kind == "per_channel" else []
                point = ("as_tensor", {"name": points}) if axis else ("as_int", low)
                parts = [
                    ("scales" if axis else "scale", scale),
                    ("zero_points" if axis else "zero_point", point),
                    *axis,
                ]
                limits = [("quant_min", ("as_int", -128)), ("quant_max", ("as_int", 127 - low % 128))]
                rest = [*parts, *limits, ("dtype", ("as_scalar_type", 2))]
                calls.append(excessive(f"quantized_decomposed.dequantize_{kind}.default", ("input", WEIGHT), *rest))
                calls[-1]["outputs"] = [{"as_tensor": {"name": f"made{low}"}}]
            module["graph"]["nodes"] = calls
            module["graph"]["outputs"] = [call["outputs"][0] for call in calls]
            module["signature"]["output_specs"] = [
                {"user_output": {"arg": each}} for each in module["graph"]["outputs"]
            ]

        return change

    contents = [bytes(ROWS * 256), b"\0\0\x80\x3f" * ROWS]
    names = json.loads(entries[WEIGHTS])["config"]
    large = {f"archive/data/weights/{names[key]['path_name']}": data for key, data in zip(sizes, contents, strict=True)}
    grown = with_json(entries | large, WEIGHTS, enlarge)
    few = qfmt.convert(written(with_json(grown, MODEL, repeat(2)), tmp_path / "few.pt2"))
    assert [node.operator for node in few.nodes] == ["DequantizeLinear"] * 2
    with pytest.raises(BudgetError):
        qfmt.convert(written(with_json(grown, MODEL, repeat(900)), tmp_path / "many.pt2"))


def test_the_arguments_of_a_call_with_many_results_are_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    followed = Counter[str]()
    original = exported_memory.references

    def counted(value: Any) -> Any:
        for name in original(value):
            followed[name] += 1
            yield name

    monkeypatch.setattr(exported_memory, "references", counted)
    results = [Ref(f"r{i}") for i in range(1000)]
    graph = ExportedGraph(
        ("x",), tuple(results), (Call("aten::split", (Ref("x"), [Ref("x")] * 9), {}, results, ""),), {}
    )
    program = Program(graph, ("x",), {}, {}, tuple(results), ())
    live = exported_memory.live(program, exported_memory.Aliases(graph)).values
    assert live == {"x", *(result.name for result in results)}
    assert followed["x"] < 50


@pytest.mark.parametrize(
    "name", ["serialized_exported_program.json", "archive/data/weights/model.pt", "archive/data/constants/model.pt"]
)
def test_archives_of_two_forms_are_refused(name: str, entries: Entries, tmp_path: Path) -> None:
    """PyTorch would prefer the older tensors."""
    with pytest.raises(SourceError, match=r"in the form of PyTorch before 2\.9, too"):
        qfmt.convert(written(entries | {name: b""}, tmp_path / "m.pt2"))


def _none_or_list(value: Any) -> Any:
    return value if isinstance(value, list) else None


def test_unsupported_operators_are_listed_with_their_modules(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Function(lambda x: x.erfinv()), Function(lambda x: x.lgamma().erfinv())

        def forward(self, x: Any) -> Any:
            return self.second(self.first(FORMS["moved"][0](x)))

    with quiet():
        program = torch.export.export(Net().eval(), (X,))
    with pytest.raises(UnsupportedOperatorsError) as caught:
        qfmt.convert(program)
    assert caught.value.operators == {
        "aten::erfinv": ("first", "second"),
        "aten::lgamma": ("second",),
    }


def test_an_operator_of_the_root_has_no_place() -> None:
    with quiet():
        program = torch.export.export(Function(lambda x: FORMS["moved"][0](x).erfinv()).eval(), (X,))
    with pytest.raises(UnsupportedOperatorsError, match=r"aten::erfinv \(1×\);"):
        qfmt.convert(program)


def test_a_float_program_is_refused() -> None:
    with quiet():
        program = torch.export.export(Function(lambda x: x + 1).eval(), (X,))
    with pytest.raises(SourceError, match=r"nothing in the program is quantized.*convert_pt2e"):
        qfmt.convert(program)


@pytest.mark.parametrize("form", ["training", "core"])
def test_a_program_with_a_state_is_refused(form: str) -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.count[0] += 1
            return FORMS["moved"][0](x) + self.count

    with quiet():
        program = torch.export.export(Counter().eval(), (X,))
        program = program if form == "training" else program.run_decompositions()
    with pytest.raises(SourceError, match="count: the program modifies it at run time"):
        qfmt.convert(program)


def test_a_state_that_shares_its_bytes_is_refused() -> None:
    """A buffer that the outputs depend on is a part of one that changes."""

    class Shared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("whole", torch.zeros(2, 1))
            self.register_buffer("part", self.whole[0])

        def forward(self, x: Any) -> Any:
            self.whole.add_(1)
            return FORMS["moved"][0](x) + self.part

    with quiet():
        program = torch.export.export(Shared().eval(), (X,), strict=False)
    with pytest.raises(SourceError, match="whole: the program modifies it at run time"):
        qfmt.convert(program)


class Attack:
    def __reduce__(self) -> Any:
        return os.mkdir, ("attacked",)


def test_pickled_tensors_go_through_the_safe_unpickler(
    entries: Entries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pickled = with_json(entries, WEIGHTS, set_payload("use_pickle", True))
    weight = next(name for name in entries if name.endswith("weight_1"))
    buffer = io.BytesIO()
    torch.save(torch.arange(-24, 24, dtype=torch.int8).reshape(3, 16), buffer)
    plain = qfmt.convert(written(pickled | {weight: buffer.getvalue()}, tmp_path / "tensor.pt2"))
    assert plain.tensors["w"].array.tolist() == [list(range(start, start + 16)) for start in (-24, -8, 8)]
    hostile = io.BytesIO()
    with zipfile.ZipFile(hostile, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Attack(), 2))
    path = written(pickled | {weight: hostile.getvalue()}, tmp_path / "attack.pt2")
    with pytest.raises(UnsafePickleError):
        qfmt.convert(path)
    assert not (tmp_path / "attacked").exists()
    samples = written(entries | {"archive/data/sample_inputs/model.pt": pickle.dumps(Attack())}, tmp_path / "s.pt2")
    assert qfmt.convert(samples).content_id() == plain.content_id()  # example inputs are not read


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_json_is_a_model_or_an_error(data: st.DataObject, entries: Entries, tmp_path: Path) -> None:
    """Replacing parts of the program results in a Model or a QfmtError."""
    document = json.loads(entries[MODEL])
    places = list(_places(document))
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(places))
        other, name = data.draw(st.sampled_from(places))
        if not isinstance(holder, list) or key < len(holder):
            holder[key] = data.draw(
                st.sampled_from([None, 0, -1, 1 << 70, "x", [], {}, json.loads(_text(other, name))])
            )
    path = written(entries | {MODEL: json.dumps(document).encode()}, tmp_path / "m.pt2")
    with suppress(QfmtError):
        qfmt.convert(path)


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if key != "metadata":
            yield value, key
            yield from _places(inner)


def _text(holder: Any, key: Any) -> str:
    try:
        return json.dumps(holder[key])
    except (LookupError, ValueError):
        return "null"


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), cut=st.booleans())
def test_changed_bytes_are_a_model_or_an_error(
    at: float, byte: int, cut: bool, entries: Entries, tmp_path: Path
) -> None:
    content = bytearray(written(entries, tmp_path / "whole.pt2").read_bytes())
    position = int(at * len(content))
    content[position] = byte
    path = tmp_path / "m.pt2"
    path.write_bytes(content[:position] if cut else content)
    with suppress(QfmtError):
        qfmt.convert(path)
