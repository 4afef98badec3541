"""Compares every operator with ONNX: signatures with its schemas, results with its reference, shape rules with
results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator
from torch.nn import functional

from cases.operators import CASES, Case, compute
from qfmt import QfmtError
from qfmt.ops import OPERATORS
from support.examples import times

OPSET = 23
OWN = [name for name in OPERATORS if name.startswith("qfmt.")]
ONNX = [name for name in OPERATORS if name not in OWN]

NEWER = {"Attention": 25, "Swish": 24}
"""Operators that the pinned opset does not have yet."""

WITHOUT_SCALES = ("QuantizeLinear", "DequantizeLinear")
"""Operators whose scale and zero point are the quantization of the tensor, not inputs."""

FIXED = {
    "BatchNormalization": {"training_mode": 0, "momentum": 0.9},
    "LayerNormalization": {"stash_type": 1},
    "GroupNormalization": {"stash_type": 1},
    "MaxPool": {"auto_pad": b"NOTSET", "storage_order": 0},
    "AveragePool": {"auto_pad": b"NOTSET"},
    "Conv": {"auto_pad": b"NOTSET"},
    "ConvTranspose": {"auto_pad": b"NOTSET", "output_shape": None},
    "ConvInteger": {"auto_pad": b"NOTSET"},
    "LpPool": {"auto_pad": b"NOTSET"},
    "RMSNormalization": {"stash_type": 1},
    "ai.onnx.QuantizeLinear": {"precision": 0},
}
"""ONNX's attributes that qfmt omits: their only value is ONNX's default (None: absent)."""

ABSENT = {
    ("EyeLike", "dtype"),
    *(("Shape", "end"), ("Split", "num_outputs"), ("Resize", "axes"), ("RotaryEmbedding", "num_heads")),
    *(("Attention", key) for key in ("kv_num_heads", "q_num_heads", "scale", "softmax_precision")),
    *(
        (name, key)
        for name in ("RNN", "GRU", "LSTM")
        for key in ("activation_alpha", "activation_beta", "activations", "clip", "hidden_size")
    ),
}
"""Attributes without a default in ONNX: qfmt's default means absence."""

DTYPE_ATTRIBUTES = {"to", "dtype", "output_dtype", "softmax_precision"}

KINDS = {"INT": "i", "FLOAT": "f", "STRING": "s", "INTS": "ii", "FLOATS": "ff", "STRINGS": "ss"}


# Signatures


def schema_of(name: str) -> onnx.defs.OpSchema:
    return onnx.defs.get_schema(name.removeprefix("ai.onnx."), NEWER.get(name, OPSET))


@pytest.mark.parametrize("name", ONNX)
def test_version_is_the_opset_that_defined_the_operator(name: str) -> None:
    assert OPERATORS[name].version == schema_of(name).since_version


@pytest.mark.parametrize("name", [name for name in ONNX if name not in WITHOUT_SCALES])
def test_inputs_and_outputs_are_those_of_onnx(name: str) -> None:
    schema, operator = schema_of(name), OPERATORS[name]
    options = onnx.defs.OpSchema.FormalParameterOption
    ours = [(p.name, p.optional, p.variadic) for p in operator.inputs]
    assert ours == [(p.name, p.option == options.Optional, p.option == options.Variadic) for p in schema.inputs]
    names = [p.name for p in schema.outputs]
    assert [p.name for p in operator.outputs] == names[: len(operator.outputs)]  # the others are for training


@pytest.mark.parametrize("name", [name for name in ONNX if name not in WITHOUT_SCALES])
def test_attributes_are_those_of_onnx(name: str) -> None:
    schema, operator = schema_of(name), OPERATORS[name]
    for attribute, spec in operator.attributes.items():
        theirs = schema.attributes[attribute]
        if attribute in DTYPE_ATTRIBUTES:
            assert spec.kind == "s"  # a dtype by name; ONNX uses a number
            continue
        assert spec.kind == KINDS[theirs.type.name]
        if spec.default is not None and (name, attribute) not in ABSENT:
            default = helper.get_attribute_value(theirs.default_value)
            assert spec.default == pytest.approx(default.decode() if isinstance(default, bytes) else default)


@pytest.mark.parametrize("name", [name for name in ONNX if name not in WITHOUT_SCALES])
def test_omitted_attributes_have_onnxs_default(name: str) -> None:
    schema, operator = schema_of(name), OPERATORS[name]
    left_out = {key: value for key, value in schema.attributes.items() if key not in operator.attributes}
    assert left_out.keys() == FIXED.get(name, {}).keys()
    for key, attribute in left_out.items():
        default = attribute.default_value
        theirs = helper.get_attribute_value(default) if default.name else None
        assert theirs == (pytest.approx(FIXED[name][key]) if FIXED[name][key] is not None else None)


# Results and shapes


def test_there_is_a_case_for_every_operator() -> None:
    assert CASES.keys() == OPERATORS.keys()


def single_node(name: str, case: Case, outputs: int) -> onnx.ModelProto:
    attributes = dict(case.attributes)
    for key in DTYPE_ATTRIBUTES & attributes.keys():
        attributes[key] = helper.np_dtype_to_tensor_dtype(np.dtype(attributes[key]))
    for operator, key in ABSENT & {(name, key) for key in attributes}:
        if attributes[key] == OPERATORS[operator].attributes[key].default:
            del attributes[key]
    names = ["" if each is None else f"x{i}" for i, each in enumerate(case.inputs)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(
        name.removeprefix("ai.onnx."), names, results, **{key: _plain(value) for key, value in attributes.items()}
    )
    given_ = [
        helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for i, each in enumerate(case.inputs)
        if each is not None
    ]
    graph = helper.make_graph([node], "g", given_, [onnx.ValueInfoProto(name=each) for each in results])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", NEWER.get(name, OPSET))], ir_version=10)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def is_refused(name: str, case: Case) -> bool:
    """Whether ONNX Runtime does not support a case, or deviates from the specification."""
    a = case.attributes
    if name in ("RNN", "GRU", "LSTM"):  # no layout; it does not clip the inputs of the activation
        return bool(a["layout"] or (name == "LSTM" and a["clip"]))
    if name == "Resize":
        x, _, scales, wanted = case.inputs
        shape = np.array(x.shape[-len(scales if wanted is None else wanted) :])
        out = wanted if wanted is not None else np.floor(shape * scales)
        if a["coordinate_transformation_mode"] == "align_corners":
            return bool((out == 1).any())  # 0 / 0
        if a["coordinate_transformation_mode"] == "tf_crop_and_resize":
            return bool((out == shape)[-2:].any())  # not cropped
    return False


RUNTIME = (
    *("Conv", "ConvTranspose", "ConvInteger", "MaxPool", "AveragePool", "Pad", "Resize", "Shape"),
    *(
        "GridSample",
        "RNN",
        "GRU",
        "LSTM",
        "LpNormalization",
        "LpPool",
        "LRN",
        "GlobalMaxPool",
        "Mean",
        "Softsign",
        "OneHot",
        "GatherElements",
        "ScatterElements",
    ),
)
"""Operators for which onnx's reference lacks cases (three dimensions, groups, negative pads, scalars) or errs
(borders)."""


def witness(name: str, case: Case, outputs: int) -> list[np.ndarray]:
    """The outputs of ONNX Runtime or onnx's own reference."""
    model = single_node(name, case, outputs)
    feed = {f"x{i}": each for i, each in enumerate(case.inputs) if each is not None}
    if name in RUNTIME:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return list(session.run(None, feed))
    return [np.asarray(each) for each in ReferenceEvaluator(model).run(None, feed)]


@pytest.mark.parametrize("name", ["Shrink", "ThresholdedRelu"])
def test_nan_exceeds_no_threshold(name: str) -> None:
    case = Case([np.array([np.nan, np.inf, -np.inf, 0.25, -2.0], np.float32)], OPERATORS[name].complete({}))
    (ours,) = compute(name, case)
    np.testing.assert_array_equal(ours, witness(name, case, 1)[0])
    assert ours[0] == 0


@pytest.mark.parametrize("name", [name for name in ONNX if name not in (*WITHOUT_SCALES, "GlobalLpPool")])
def test_references_agree_with_other_programs(name: str) -> None:
    rng = np.random.default_rng(len(name) + 3)
    done = 0
    for _ in times(20):
        case = CASES[name](rng)
        if is_refused(name, case):
            continue
        ours = compute(name, case)
        for a, b in zip(ours, witness(name, case, len(ours)), strict=True):
            assert a.dtype == b.dtype, case
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=str(case))
        done += 1
    assert done


TYPES = ("float16", "float64", "int32", "int8", "uint8", "bool")

OTHERWISE = {
    ("RMSNormalization", "float16"): "onnx's reference gives the type of X, not that of scale",
    ("Resize", "int8"): "truncated here",
    ("Resize", "uint8"): "truncated here",
    ("Resize", "int32"): "truncated here",
    ("LRN", "float64"): "onnx's reference leaves out channels",
    ("GlobalMaxPool", "float64"): "onnx's reference adds a dimension",
    ("ReduceSumSquare", "int32"): "onnx's reference gives int64",
    **{(name, "float64"): "onnx's reference knows default activations only" for name in ("RNN", "GRU", "LSTM")},
}
"""Cases of other types in which the witness has another result."""


@pytest.mark.filterwarnings("ignore")
def test_references_agree_in_other_types() -> None:
    """Tests every type that ONNX allows for inputs that are float32 in the cases."""
    rng, equal, differ, unseen = np.random.default_rng(5), 0, [], list[str]()
    witnessed: set[str] = set()
    for name in sorted({*ONNX} - {*WITHOUT_SCALES, "GlobalLpPool"}):
        schema = schema_of(name)
        allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
        symbols = [each.type_str for each in schema.inputs]
        for kind in TYPES:
            case = CASES[name](rng)
            own = [symbols[min(i, len(symbols) - 1)] for i in range(len(case.inputs))]
            real = [each is not None and each.dtype == np.float32 for each in case.inputs]
            symbol = next((each for each, is_real in zip(own, real, strict=True) if is_real), "")
            tensor = kind.replace("float64", "double")
            if f"tensor({tensor})" not in allowed.get(symbol, ()) or is_refused(name, case):
                continue
            inputs = [
                each.astype(kind) if is_real and each is not None and mine == symbol else each
                for each, is_real, mine in zip(case.inputs, real, own, strict=True)
            ]
            if name in ("Div", "Mod") and np.dtype(kind).kind in "iu":
                inputs[1] = np.maximum(inputs[1], inputs[1].dtype.type(1))
            case = Case(inputs, case.attributes)
            ours = compute(name, case)
            try:
                theirs = witness(name, case, len(ours))
            except Exception:  # neither needs to support every type
                unseen.append(name)
                continue
            tolerance = 2e-2 if kind == "float16" else 1e-5
            good = all(
                a.dtype == b.dtype and a.shape == b.shape and np.allclose(a, b, tolerance, tolerance, equal_nan=True)
                for a, b in zip(ours, theirs, strict=True)
            )
            witnessed.add(name)
            equal += good
            if not good and (name, kind) not in OTHERWISE:
                differ.append((name, kind, case))
    print(f"{equal} cases of other types agree; of {len(unseen)} there is no witness")
    assert not differ
    assert {*unseen} - witnessed == {"MeanVarianceNormalization"}


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax", "Hardmax"])
def test_an_axis_of_no_elements(name: str) -> None:
    (made,) = compute(name, Case([np.zeros((0, 3), np.float32)], {"axis": 0}))
    assert made.shape == (0, 3)


def test_powers_of_special_values_do_not_depend_on_the_shape_of_the_exponent() -> None:
    x = np.array([-np.inf, -0.0, 0.0, 4.0], np.float32)
    for shape in ((), (1,), (4,)):
        (made,) = compute("Pow", Case([x, np.full(shape, 0.5, np.float32)], {}))
        assert made.tolist() == [np.inf, 0, 0, 2]


def test_global_lp_pooling_is_the_norm_of_each_channel() -> None:
    """Neither ONNX Runtime nor onnx's own reference supports it."""
    rng = np.random.default_rng(4)
    for _ in range(10):
        case = CASES["GlobalLpPool"](rng)
        x, p = case.inputs[0].astype(np.float64), case.attributes["p"]
        expected = np.linalg.norm(x.reshape(*x.shape[:2], -1), p, axis=-1)
        (y,) = compute("GlobalLpPool", case)
        np.testing.assert_allclose(y.reshape(expected.shape), expected, rtol=1e-5)


def test_linear_and_adaptive_pooling_are_those_of_torch() -> None:
    rng = np.random.default_rng(1)
    for _ in range(30):
        case = CASES["qfmt.Linear"](rng)
        tensors = [None if each is None else torch.from_numpy(each) for each in case.inputs]
        expected = functional.linear(*tensors).numpy()
        np.testing.assert_allclose(compute("qfmt.Linear", case)[0], expected, rtol=1e-5, atol=1e-5)

        case = CASES["qfmt.AdaptiveAveragePool"](rng)
        size = case.attributes["output_size"]
        pool = getattr(functional, f"adaptive_avg_pool{len(size)}d")
        expected = pool(torch.from_numpy(case.inputs[0]), size).numpy()
        np.testing.assert_allclose(compute("qfmt.AdaptiveAveragePool", case)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OPERATORS)
def test_attributes_are_complete_or_refused(name: str) -> None:
    operator = OPERATORS[name]
    with pytest.raises(QfmtError, match="has no attribute nonsense"):
        operator.complete({"nonsense": 1})
    required = [key for key, spec in operator.attributes.items() if spec.default is None]
    if required:
        with pytest.raises(QfmtError, match=f"needs the attribute {required[0]}"):
            operator.complete({})
    else:
        assert operator.complete({}).keys() == operator.attributes.keys()


def test_every_spelling_names_inputs_and_attributes_that_exist() -> None:
    """ "aten::name(torch_name:target=default, other==value)", as qfmt.frontends.torch reads it."""
    for operator in OPERATORS.values():
        targets = {*(p.name for p in operator.inputs), *operator.attributes, "$scale", "$zero_point", "_"}
        for text in operator.torch:
            for word in text.rstrip(")").partition("(")[2].split(", "):
                named = word.partition("=")[0]
                assert "==" in word or named.rpartition(":")[2].rstrip("*") in targets, text
