"""Whole integer-only networks: equal integers, also from the command line; unsupported networks are refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import qfmt
from networks import architectures, onnx_runtime, pytorch
from networks.requant_shifts import expected, network
from qfmt.arithmetic import dequantize
from qfmt.cli import main
from qfmt.errors import BudgetError, NoIntegerFormError, RunError
from qfmt.forms import FORMS, NARROWED
from qfmt.interpreter import trace
from qfmt.model import Graph, Model, Node, Quantization, Tensor
from qfmt.ops import OPERATORS
from qfmt.ops.geometry import sizes_along, windows
from qfmt.passes.lowering import lower_integer
from qfmt.passes.lowering.context import Context
from qfmt.passes.lowering.elements import by_element
from qfmt.passes.lowering.facts import requantizations, totals
from qfmt.passes.proofs import proofs
from qfmt.passes.sizes import with_input_shapes
from support.counts import tell
from support.paths import DIGITS, HELD_BACK, SUITE

SIZES = "x=N,1,8,8"
f32 = np.float32


def both(model: Model, lowered: Model, given: dict[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
    """All tensors of a run of the model, and of a run of the lowered model on the same quantized inputs."""
    runs: list[dict[str, Any]] = []
    for each, inputs in ((model, given), (lowered, None)):
        values: dict[str, Any] = {}
        kept = dict(given) if inputs else {name: runs[0][name] for name in lowered.graph.inputs}
        for node in trace(each, dict(kept), values):
            kept.update((name, values[name]) for name in node.outputs)
        runs.append(kept)
    return runs[0], runs[1]


def compare(what: str, model: Model, lowered: Model, given: list[dict[str, np.ndarray]]) -> int:
    """The number of differing integers of tensors in both runs; prints it with the total."""
    equal = total = 0
    for each in given:
        want, got = both(model, lowered, each)
        for name in set(want) & set(got) - set(lowered.graph.inputs):
            equal, total = equal + int((want[name] == got[name]).sum()), total + want[name].size
    sums = totals(lowered)
    tell(f"{what} integer-only: {equal:,} of {total:,} equal; {sums.channels:,} channels, {sums.thresholds:,} "
         f"by thresholds, {sums.differs:,} of {sums.sums:,} sums differ")  # fmt: skip
    return total - equal


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="qfmt")


@pytest.fixture(scope="module")
def digits() -> Model:
    return qfmt.convert(DIGITS, input_shapes={"x": ("N", 1, 8, 8)})


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    with np.load(HELD_BACK) as stored:
        return stored[next(name for name in stored.files if stored[name].ndim == 4)].astype(f32)


@pytest.mark.parametrize("engine", ["fbgemm", "qnnpack", "onednn", "x86"])
def test_digits_by_the_rules_of_every_engine(engine: str, images: np.ndarray) -> None:
    model = qfmt.convert(DIGITS, engine=engine, input_shapes={"x": ("N", 1, 8, 8)})
    lowered = lower_integer(model, exact=True)
    assert lowered.source["integer_only"] == "exact"
    assert lowered.engine == "integer"
    assert compare(f"digits by {engine}", model, lowered, [{"x": images}]) == 0
    assert [*lowered.run({"quant": both(model, lowered, {"x": images})[0]["quant"]})] == ["fc"]


@pytest.mark.parametrize("form", ["multiply_shift", "fixed_point_single", "fixed_point_double", "multiply_add_divide"])
def test_digits_in_inexact_forms(form: str, digits: Model, images: np.ndarray) -> None:
    """A tensor whose proof states no differences is equal if its inputs are equal."""
    lowered = lower_integer(digits, form=form, bits=16 if form in NARROWED else 32)
    differing = compare(f"digits by {form}", digits, lowered, [{"x": images}])
    want, got = both(digits, lowered, {"x": images})
    first = next((each for each in requantizations(lowered) if (want[each.output] != got[each.output]).any()), None)
    assert (first is None) == (differing == 0)
    assert first is None or first.differs > 0 or not first.compared
    assert (want["fc"].argmax(1) == got["fc"].argmax(1)).mean() > 0.99


@pytest.mark.parametrize("form", FORMS)
def test_the_requested_form_is_kept(form: str, digits: Model, images: np.ndarray) -> None:
    """With --exact, channels have the requested form if it is equal, else thresholds, and no other form."""
    lowered = lower_integer(digits, form=form, exact=True)
    found = [*requantizations(lowered)]
    assert {each.rule for each in found} <= {form, "thresholds"}
    assert all(each.compared and not each.differs for each in found)
    tell(f"digits, {form}: {sum(each.channels - each.thresholds for each in found)} channels in that form, "
         f"{sum(each.thresholds for each in found)} by thresholds")  # fmt: skip
    assert compare(f"digits by {form}, exact", digits, lowered, [{"x": images}]) == 0


def test_what_is_written_is_valid_and_reads_back(digits: Model, tmp_path: Path) -> None:
    for form in ("multiply_shift", "thresholds", "power_of_two", "multiply_add_divide"):
        lowered = lower_integer(digits, form=form)
        lowered.save(tmp_path / "m.qfb")
        assert qfmt.check(tmp_path / "m.qfb") == []
        assert qfmt.load(tmp_path / "m.qfb").content_id() == lowered.content_id()
    again = lower_integer(digits, exact=True)
    assert again.content_id() == lower_integer(digits, exact=True).content_id()


class KeywordSpotter(architectures.Network):
    """Zhang et al. 2017 (DS-CNN) for keyword spotting: a 10 × 4 convolution, then separable blocks."""

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = [
            nn.Conv2d(1, 64, (10, 4), 2, (5, 1), bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        ]  # fmt: skip
        for _ in range(4):
            blocks += [*architectures.conv_bn_relu(64, 64, 3, 1, 64), *architectures.conv_bn_relu(64, 64)]
        self.features = nn.Sequential(*blocks)
        self.pool = nn.AvgPool2d((25, 5))
        self.fc = nn.Linear(64, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dequant(self.fc(self.pool(self.features(self.quant(x))).flatten(1)))


NETWORKS = {**pytorch.NETWORKS, "ds_cnn": pytorch.Definition(KeywordSpotter, ((2, 1, 49, 10),), histograms=False)}

LOWERED = ["ds_cnn eager", "mobilenet_v3 eager", "shufflenet_v2 fx", "conv1d eager", "convolutions fx"]
MORE = [
    *("ds_cnn fx", "resnet18 eager", "resnet18 fx", "mobilenet_v2 eager", "mobilenet_v2 fx", "mobilenet_v3 fx"),
    *("shufflenet_v2 eager", "conv3d eager", "conv3d fx", "convolutions eager", "activations eager", "two_inputs fx"),
]


@pytest.mark.parametrize("which", [*LOWERED, *(pytest.param(each, marks=pytest.mark.slow) for each in MORE)])
def test_networks_quantized_by_torch(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, mode = which.split()
    monkeypatch.setattr(pytorch, "NETWORKS", NETWORKS)
    module, given = pytorch.quantized(name, mode)
    open_ = qfmt.convert(module, example_inputs=given)
    sizes = {key: tuple(each.shape) for key, each in zip(open_.graph.inputs, given, strict=True)}
    model = open_.replace(graph=with_input_shapes(open_.graph, sizes))
    lowered = lower_integer(model, exact=True)
    assert lowered.source["integer_only"] == "exact"
    inputs = {key: each.numpy() for key, each in zip(model.graph.inputs, given, strict=True)}
    assert compare(f"{name} ({mode})", model, lowered, [inputs]) == 0


def test_mobilenet_of_2019(shared_data: Path) -> None:
    path = shared_data / "torchscript" / "ios_mobilenet_quantized.pt"
    model = qfmt.convert(path, input_shapes={"X": (1, 3, 224, 224)})
    lowered = lower_integer(model, exact=True)
    assert totals(lowered).differs == 0
    rng = np.random.default_rng(0)
    given = [{"X": rng.normal(0, 1, (1, 3, 224, 224)).astype(f32)} for _ in range(2)]
    assert compare("MobileNetV2", model, lowered, given) == 0


@pytest.mark.slow
def test_mobilenet_of_2019_at_length(shared_data: Path) -> None:
    path = shared_data / "torchscript" / "ios_mobilenet_quantized.pt"
    rng = np.random.default_rng(1)
    given = [{"X": rng.normal(0, scale, (1, 3, 224, 224)).astype(f32)} for scale in (0.3, 1, 1, 1, 1, 2, 2, 3)]
    for engine in ("fbgemm", "qnnpack", "onednn"):
        model = qfmt.convert(path, engine=engine, input_shapes={"X": (1, 3, 224, 224)})
        assert compare(f"MobileNetV2 by {engine}", model, lower_integer(model, exact=True), given) == 0


def test_onnx_files_that_others_made(shared_data: Path) -> None:
    rng = np.random.default_rng(2)
    lowered_ones = 0
    for path in sorted((shared_data / "onnx_ort_testdata").glob("*.onnx")):
        try:
            model = qfmt.convert(path)
            lowered = lower_integer(model, exact=True)
        except qfmt.QfmtError:
            continue
        given = {name: _random(model, name, rng) for name in model.graph.inputs}
        if set(lowered.graph.inputs) <= {*given, *(name for node in model.nodes for name in node.outputs)}:
            lowered_ones += 1
            assert compare(path.name, model, lowered, [given]) == 0
    assert lowered_ones >= 8


def _random(model: Model, name: str, rng: np.random.Generator) -> np.ndarray:
    tensor = model.tensors[name]
    shape = [size if isinstance(size, int) else 2 for size in tensor.shape or ()]
    if tensor.quantization is None:
        return rng.normal(0, 1, shape).astype(tensor.dtype)
    return rng.integers(tensor.quantization.quant_min, tensor.quantization.quant_max + 1, shape).astype(tensor.dtype)


class Pooled(architectures.Network):
    """The mean of an image, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dequant(nn.functional.adaptive_avg_pool2d(self.mix(self.quant(x)), 1).flatten(1))


def test_the_size_of_an_image_is_assumed_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """224 × 224 with 3 channels is assumed if a mean needs the size; stated sizes are used."""
    monkeypatch.setattr(pytorch, "NETWORKS", {"pooled": pytorch.Definition(Pooled, ((2, 3, 20, 24),))})
    module, given = pytorch.quantized("pooled", "eager")
    path = pytorch.save_as(module, given, "trace", tmp_path / "m.pt")
    stored, dest = tmp_path / "m.qfb", tmp_path / "int.qfb"
    assert invoke("convert", path, stored).exit_code == 0
    for options, sizes, assumed in (([], (224, 224), True), (["--input-shape", "x=N,3,20,24"], (20, 24), False)):
        result = invoke("convert", stored, dest, "--integer-only", "--exact", *options)
        assert result.exit_code == 0, result.stderr
        lowered = qfmt.load(dest)
        assert lowered.tensors[lowered.graph.inputs[0]].shape == ("N", 3, *sizes)
        assert ("note   the size of x is not stated in the file: 224 × 224 is assumed" in result.stderr) == assumed
        assert lowered.source.get("assumed_sizes") == ('{"x": ["N", 3, 224, 224]}' if assumed else None)
    assert compare("a mean of an image", qfmt.load(stored), lowered, [{"x": given[0].numpy()}]) == 0


def test_networks_of_requant_shifts_are_lowered() -> None:
    """Sums of integers in float32 become int32; RequantShift stays, with integer constants."""
    rng = np.random.default_rng(3)
    source, weights = network(rng, 9, "int")
    lowered = lower_integer(qfmt.convert(source, input_quantization={"x": (1.0, 0, "int8")}), exact=True)
    kinds = Counter(node.operator for node in lowered.nodes)
    assert kinds == {
        "Conv": 2,
        "qfmt.RequantShift": 3,
        "qfmt.WeightedSum": 1,
        "MaxPool": 1,
        "Flatten": 1,
        "qfmt.Linear": 1,
    }
    assert {tensor.dtype for tensor in lowered.tensors.values()} <= {"int8", "uint8", "int32", "int64"}
    equal = total = 0
    for _ in range(5):
        x = rng.integers(-128, 128, (1, 3, 8, 8)).astype(np.int8)
        (got,), want = lowered.run({"x": x}).values(), expected(x, weights)
        equal, total = equal + int((got == want).sum()), total + want.size
    tell(f"a network of RequantShift integer-only: {equal} of {total} equal")
    assert equal == total
    with pytest.raises(NoIntegerFormError, match="--input-quantization x=1,0,int8"):
        lower_integer(qfmt.convert(source))


NOT_LOWERED = (
    "averagepool-mean-reciprocal-fma", "clip-plain", "dynamic-", "embedding-lookup-float",
    "linear-integer-bias-overflow", "linear-integer-bias-reciprocal-overflow", "mul-product-wide",
    "reducemean-mean-divide-offset-wide", "reducemean-mean-reciprocal-fma-wide", "reducemean-mean-reciprocal-wide",
    "reducemean-mean-stored-wide", "reducemean-offset", "resize-crop", "resize-interpolate", "table-plain",
)  # fmt: skip
"""Prefixes of the names of files whose networks have no integer form, or nothing to lower."""


def test_the_conformance_suite() -> None:
    """Lowered files compute the outputs of their test vectors; the rest is refused with a qfmt error."""
    suite = SUITE
    lowered_ones = equal = total = 0
    refused = set()
    for path in sorted([*suite.glob("float/*.qfb"), *suite.glob("integer/*.qfb"), *suite.glob("refused/*.qfb")]):
        try:
            model = qfmt.load(path)
            lowered = lower_integer(model, exact=True)
        except qfmt.QfmtError:
            refused.add(path)
            continue
        assert totals(lowered).channels >= 0
        if path.parent.name == "refused" or lowered.source["integer_only"] != "exact":
            continue
        lowered_ones += 1
        for vector in model.vectors:
            if set(lowered.graph.inputs) <= set(vector.inputs):
                got = lowered.run({name: vector.inputs[name].array for name in lowered.graph.inputs})
                for name in set(got) & set(vector.outputs):
                    want = vector.outputs[name].array
                    equal, total = equal + int((got[name] == want).sum()), total + want.size
    tell(f"conformance suite integer-only: {equal:,} of {total:,} outputs of {lowered_ones} files equal")
    readable = [path for level in ("float", "integer") for path in (suite / level).glob("*.qfb")]
    assert refused & {*readable} == {path for path in readable if path.stem.startswith(NOT_LOWERED)}
    assert equal == total > 0


# The command line


class Upsampled(architectures.Network):
    """Nearest-neighbour upsampling by 2, then the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.larger = nn.Conv2d(3, 4, 1), nn.Upsample(scale_factor=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dequant(nn.functional.adaptive_avg_pool2d(self.larger(self.mix(self.quant(x))), 1))


@pytest.mark.parametrize("mode", ["eager", "fx"])
def test_sizes_may_be_stated_at_the_conversion_or_afterwards(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways write the same file, without floats: sizes are also known after a Resize by factors."""
    monkeypatch.setattr(pytorch, "NETWORKS", {"upsampled": pytorch.Definition(Upsampled, ((1, 3, 15, 17),))})
    module, given = pytorch.quantized("upsampled", mode)
    source = pytorch.save_as(module, given, "trace", tmp_path / "m.pt")
    stored, once, later = (tmp_path / f"{name}.qfb" for name in ("open", "once", "later"))
    options = ("--integer-only", "--exact", "--input-shape", "x=1,3,15,17")
    for arguments in ((source, once, *options), (source, stored), (stored, later, *options)):
        result = invoke("convert", *arguments)
        assert result.exit_code == 0, result.stderr
    made = [qfmt.load(path) for path in (once, later)]
    assert made[0].content_id() == made[1].content_id()
    assert not [name for name, tensor in made[0].tensors.items() if tensor.dtype.startswith("float")]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "digits.qfb"
    assert invoke("convert", DIGITS, path).exit_code == 0
    return path


def test_convert_integer_only(stored: Path, images: np.ndarray, digits: Model) -> None:
    dest = stored.with_name("int.qfb")
    result = invoke("convert", stored, dest, "--integer-only", "--exact", "--input-shape", SIZES)
    assert result.exit_code == 0, result.stderr
    (told,) = [each for each in result.stderr.splitlines() if each.startswith("lower")]
    found = totals(qfmt.load(dest))
    assert f"{found.channels} channels: " in told
    assert f"equal on all {found.sums:,} reachable sums" in told
    assert "integer-only arithmetic" in result.stderr
    assert compare("digits by the command line", digits, qfmt.load(dest), [{"x": images}]) == 0
    straight = invoke("convert", DIGITS, stored.with_name("b.qfb"), "--integer-only", "--exact", "--input-shape", SIZES)
    assert straight.exit_code == 0, straight.stderr
    assert qfmt.load(stored.with_name("b.qfb")).content_id() == qfmt.load(dest).content_id()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--exact"], "--exact requires --integer-only"),
        (["--end-at", "fc"], "--end-at requires --integer-only"),
        (["--integer-only", "--end-at", "nothing"], "no tensor 'nothing'"),
        (
            ["--integer-only", "--end-at", "fc.weight"],
            "fc.weight: is a constant: a network cannot begin or end with it",
        ),
        (["--bits", "8"], "--bits requires --integer-only"),
        (["--requantize", "thresholds"], "--requantize requires --integer-only"),
        (["--integer-only", "--bits", "12"], "'12' is not one of"),
        (["--integer-only", "--bits", "16", "--requantize", "fixed_point_double"], "has multipliers of 31 bits"),
        (["--integer-only", "--bits", "32", "--requantize", "power_of_two"], "has no multipliers"),
        (["--integer-only", "--requantize", "float"], "'float' is not one of"),
        (["--integer-only"], "as in `--input-shape x=N,1,8,8`"),
        (["--integer-only", "--input-shape", "y=1,1,8,8"], "there is no input 'y'"),
        (["--integer-only", "--input-shape", "x=1,3,8,8"], "has the size 1, but 3"),
        (["--integer-only", "--input-shape", "x=1,8,8"], "has 4 dimensions, not 3"),
        (["--input-shape", SIZES], "whose engine and inputs are fixed"),
    ],
)
def test_convert_refuses(stored: Path, options: list[str], said: str) -> None:
    dest = stored.with_name("int.qfb")
    result = invoke("convert", stored, dest, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert not dest.exists()


def test_convert_ends_at_the_given_tensors(stored: Path, images: np.ndarray, digits: Model) -> None:
    """A network can end at intermediate tensors; image sizes are not needed then."""
    dest = stored.with_name("int.qfb")
    result = invoke("convert", stored, dest, "--integer-only", "--exact", "--end-at", "residual", "--end-at", "pool")
    assert result.exit_code == 0, result.stderr
    lowered = qfmt.load(dest)
    assert lowered.graph.outputs == ("residual", "pool")
    assert compare("digits up to the middle", digits, lowered, [{"x": images}]) == 0


def test_every_rule_of_requantization_is_a_form() -> None:
    """`qfmt.forms` lists them again, so that `--help` does not need NumPy."""
    assert {*FORMS} == {rule for name in ("qfmt.Requantize", "qfmt.RequantShift") for rule in OPERATORS[name].rules}


def test_convert_refuses_what_is_lowered_already(stored: Path) -> None:
    dest = stored.with_name("int.qfb")
    assert invoke("convert", stored, dest, "--integer-only", "--input-shape", SIZES).exit_code == 0
    result = invoke("convert", dest, stored.with_name("again.qfb"), "--integer-only")
    assert result.exit_code == 2
    assert "is already integer-only" in result.stderr


@pytest.mark.parametrize("options", [["--exact"], ["--bits", "8"], ["--requantize", "fixed_point_double"],
                                     ["--requantize", "power_of_two"], ["--requantize", "thresholds"],
                                     ["--requantize", "multiply_add_divide"]], ids=" ".join)  # fmt: skip
def test_inspect_integer(stored: Path, options: list[str]) -> None:
    dest = stored.with_name("int.qfb")
    assert invoke("convert", stored, dest, "--integer-only", *options, "--input-shape", SIZES).exit_code == 0
    model = qfmt.load(dest)
    shown = invoke("inspect", dest, "--integer")
    assert shown.exit_code == 0, shown.output
    found = list(requantizations(model))
    lines = shown.stdout.splitlines()
    assert [each.split()[:2] for each in lines[1 : 1 + len(found)]] == [[each.output, each.rule] for each in found]
    assert "1 weighted sum" in shown.stdout
    data = json.loads(invoke("inspect", dest, "--integer", "--json").stdout)
    assert [each["output"] for each in data] == [each.output for each in found]
    for facts, each in zip(data, found, strict=True):
        assert facts["channels"] == each.channels
        assert facts["compared"] == each.compared != ""
        assert facts["differs"] == each.differs
        assert sum(facts["widths"].values()) + facts["by_thresholds"] == (
            each.channels if facts["multiplier"] or facts["by_thresholds"] else 0
        )
        if facts["reach"]:
            ends = [end for pair in facts["reach"] for end in pair]
            assert facts["sum_bits"] == max((end if end >= 0 else -end - 1).bit_length() for end in ends) + 1
        if facts["thresholds"]:
            assert all(sorted(row) == row for row in facts["thresholds"])
    conv = data[0]
    assert len(conv["bias"]) == conv["channels"] == 16


@pytest.mark.parametrize("options", [["--exact"], ["--bits", "8"], ["--requantize", "thresholds"],
                                     ["--requantize", "multiply_add_divide"]], ids=" ".join)  # fmt: skip
def test_inspect_shows_the_integers_of_each_channel(stored: Path, options: list[str]) -> None:
    dest = stored.with_name("int.qfb")
    assert invoke("convert", stored, dest, "--integer-only", *options, "--input-shape", SIZES).exit_code == 0
    (data,) = json.loads(invoke("inspect", dest, "--integer", "--json", "--tensor", "fc.sums").stdout)
    shown = invoke("inspect", dest, "--integer", "--tensor", "fc").stdout
    facts, rows = shown.split("\n\n")
    assert data["rule"] in facts
    table = rows.splitlines()
    heads = table[0].replace("reachable sums", "reach").split()
    for channel, row in enumerate(table[1:]):
        cells = dict(zip(heads, row.split(), strict=False))
        assert cells["channel"] == str(channel)
        assert cells["bias"] == str(data["bias"][channel])
        by_row = data["thresholds"] is not None and (data["row"] is None or data["row"][channel] >= 0)
        for word in ("multiplier", "shift", "add"):
            if data[word] is not None:
                values = data[word]
                assert cells[word] == ("-" if by_row else str(values[channel % len(values)]))
        if data["differs"] and not by_row:
            assert cells["differ"].isdigit()
    assert len(table) == 1 + data["channels"]
    refused = invoke("inspect", dest, "--integer", "--tensor", "flatten")
    assert refused.exit_code == 2
    assert "flatten is not the output of an integer requantization" in refused.stderr


def test_inspect_integer_of_a_model_of_real_numbers(stored: Path) -> None:
    result = invoke("inspect", stored, "--integer")
    assert result.exit_code == 2
    assert "--integer-only` makes it integer-only" in result.stderr
    assert "integer-only: `--integer`" not in invoke("inspect", stored).stdout


def test_a_failed_lowering_names_every_node_and_where_to_end(tmp_path: Path) -> None:
    """A torch file, converted and lowered at once; with the options in the hint, lowering succeeds."""
    module, given = pytorch.quantized("linears", "eager")
    path = pytorch.save_as(module, given, "trace", tmp_path / "m.pt")
    options = "convert", path, tmp_path / "m.qfb", "--integer-only", "--input-shape", "x=2,6,24"
    result = invoke(*options)
    assert result.exit_code == 2
    assert "2 nodes have no integer form: " in result.stderr
    assert all(word in result.stderr for word in ("(Softmax)", "(LayerNormalization)"))
    assert not (tmp_path / "m.qfb").exists()
    _, found, ends = result.stderr.partition("end the network before these nodes: ")
    assert found
    ended = invoke(*options, *ends.split())
    assert ended.exit_code == 0, ended.stderr


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ("1,1,100000,100000", "more than 2,147,483,647"),
        ("1,1,0,8", "does not fit"),
        ("1,64", "has 4 dimensions, not 2"),
    ],
)
def test_invalid_sizes_are_a_one_line_error(stored: Path, sizes: str, said: str) -> None:
    """The error comes immediately, without an array of these sizes, and without a message of NumPy."""
    result = invoke("convert", stored, stored.with_name("no.qfb"), "--integer-only", "--input-shape", f"x={sizes}")
    assert result.exit_code == 2
    assert said in result.stderr
    assert "unexpected" not in result.stderr
    assert not stored.with_name("no.qfb").exists()


def test_sizes_of_many_windows_are_computed_from_few() -> None:
    """Compares the sizes of windows with those of all windows, one by one."""
    for length in (*range(5, 60), 3000):
        for kernel, stride, dilation, pads, ceil in ((3, 2, 1, (1, 1), 0), (5, 3, 1, (2, 1), 1), (2, 4, 3, (0, 1), 1)):
            attributes = {"kernel_shape": (kernel,), "strides": (stride,), "pads": pads, "dilations": (dilation,),
                          "ceil_mode": ceil, "count_include_pad": 0}  # fmt: skip
            entry = OPERATORS["AveragePool"]
            node = Node("AveragePool", ("x",), ("y",), entry.complete({**attributes}), version=entry.version)
            means = entry.reference(np.eye(length)[:, None, :], **node.attributes)
            (window,) = windows(node.attributes)
            assert sizes_along(window, length, 0) == {round(1 / each) for each in np.unique(means[means > 0])}


def test_all_obstacles_are_named_and_the_suggestion_works() -> None:
    """Also obstacles after other ones: a chain of Softmax, each over all elements of a row."""
    grid = Quantization.per_tensor(0.05, 3, "uint8")
    real = [Tensor(name, "float32", (1, 8)) for name in ("a", "b", "c", "d", "e")]
    quantized = [Tensor(name, "uint8", (1, 8), quantization=grid) for name in ("x", "h", "y")]
    versions = {name: OPERATORS[name].version for name in OPERATORS}
    chain = [
        ("Sigmoid", "x", "h", {}, "divide"),
        ("DequantizeLinear", "h", "a", {}, ""),
        ("Softmax", "a", "b", {"axis": -1}, ""),
        ("Flatten", "b", "c", {"axis": 1}, ""),
        ("LogSoftmax", "c", "d", {"axis": -1}, ""),
        ("Flatten", "d", "e", {"axis": 1}, ""),
        ("QuantizeLinear", "e", "y", {}, "divide"),
    ]
    nodes = tuple(Node(o, (i,), (y,), a, f"{o}_{y}", versions[o], rule) for o, i, y, a, rule in chain)
    model = Model(Graph(("x",), ("y",), nodes, {each.name: each for each in (*real, *quantized)}), engine="onnx")
    with pytest.raises(NoIntegerFormError) as caught:
        lower_integer(model)
    (named,) = caught.value.reasons.values()
    assert set(named) == {"Softmax_b (Softmax)", "LogSoftmax_d (LogSoftmax)"}
    assert caught.value.hint == "end the network before these nodes: --end-at h"
    assert [node.operator for node in lower_integer(model, outputs=["h"]).nodes] == ["qfmt.Table"]


def test_a_suggestion_comes_before_an_obstacle_whose_output_is_moved() -> None:
    """The lowering moves the integers of a float Flatten, as torch.fx leaves it, and then has another graph."""
    grid = Quantization.per_tensor(0.05, 3, "uint8")
    tensors = [Tensor(name, "uint8", (1, 8), quantization=grid) for name in ("x", "h", "s", "q", "y")]
    tensors += [Tensor(name, "float32", (1, 8)) for name in ("a", "b")]
    chain = [
        ("Sigmoid", "x", "h", {}, "divide"),
        ("Softmax", "h", "s", {"axis": -1}, "divide"),
        ("DequantizeLinear", "s", "a", {}, ""),
        ("Flatten", "a", "b", {"axis": 1}, ""),
        ("QuantizeLinear", "b", "q", {}, "divide"),
        ("Sigmoid", "q", "y", {}, "divide"),
    ]
    nodes = tuple(Node(o, (i,), (y,), OPERATORS[o].complete(a), "", OPERATORS[o].version, r) for o, i, y, a, r in chain)
    model = Model(Graph(("x",), ("y",), nodes, {each.name: each for each in tensors}), engine="onnx")
    with pytest.raises(NoIntegerFormError) as caught:
        lower_integer(model)
    assert caught.value.hint == "end the network before these nodes: --end-at h"
    assert [node.operator for node in lower_integer(model, outputs=["h"]).nodes] == ["qfmt.Table"]


def test_known_obstacles_are_named_if_the_rest_costs_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a transformer of 16 bits."""

    def limited(node: Node, context: Context) -> None:
        if node.operator == "Sigmoid":
            raise BudgetError("too much")
        by_element(node, context)

    grid = Quantization.per_tensor(0.05, 3, "uint8")
    tensors = {name: Tensor(name, "uint8", (1, 8), quantization=grid) for name in ("x", "h", "y")}
    nodes = [
        Node(o, (i,), (y,), OPERATORS[o].complete({}), o, OPERATORS[o].version, "divide")
        for o, i, y in (("Softmax", "x", "h"), ("Sigmoid", "h", "y"))
    ]
    model = Model(Graph(("x",), ("y",), tuple(nodes), tensors), engine="onnx")
    monkeypatch.setattr("qfmt.passes.lowering.graph.by_element", limited)
    with pytest.raises(BudgetError):
        lower_integer(Model(Graph(("h",), ("y",), (nodes[1],), {name: tensors[name] for name in "hy"}), engine="onnx"))
    with pytest.raises(NoIntegerFormError, match=r"Softmax \(Softmax\)"):
        lower_integer(model)


def test_a_suggestion_names_no_tensor_that_the_lowering_made() -> None:
    grid = Quantization.per_tensor(0.05, 3, "uint8")
    tensors = [Tensor("x", "uint8", (4, 6), quantization=grid), Tensor.constant("pads", np.array([1, 0, 0, 1]))]
    tensors += [Tensor(name, "float32", None) for name in ("d", "p", "y")]
    steps = [("DequantizeLinear", ("x",), "d"), ("Pad", ("d", "pads"), "p"), ("Softmax", ("p",), "y")]
    nodes = tuple(Node(o, i, (y,), OPERATORS[o].complete({}), version=OPERATORS[o].version) for o, i, y in steps)
    model = Model(Graph(("x",), ("y",), nodes, {each.name: each for each in tensors}), engine="onnx")
    with pytest.raises(NoIntegerFormError) as caught:
        lower_integer(model)
    assert caught.value.hint == "compute them outside the network, before or after its integer-only part"


@pytest.mark.parametrize("operator", ["Reshape", "Flatten"])
@pytest.mark.parametrize("form", ["qdq u8s8", "qoperator u8s8"])
def test_a_mean_before_a_reshape(operator: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean over the spatial axes as torch exports it, which ONNX Runtime quantizes after the Reshape."""
    monkeypatch.setitem(onnx_runtime.NETWORKS, "mean", lambda: _with_mean(operator))
    model = qfmt.convert(onnx_runtime.static("mean", form, tmp_path))
    lowered = lower_integer(model)
    assert not proofs(lowered).violations
    (source,) = lowered.graph.inputs
    grid = lowered.tensors[source].quantization
    assert grid is not None
    rng, same, total = np.random.default_rng(0), 0, 0
    for _ in range(10):
        x = rng.integers(0, 256, (1, 3, 8, 8)).astype(np.uint8)
        (got,) = lowered.run({source: x}).values()
        (want,) = model.run({"image": dequantize(x, grid)}).values()
        (y,) = (lowered.tensors[name] for name in lowered.graph.outputs)
        assert y.quantization is not None
        same, total = same + int((dequantize(got, y.quantization) == want).sum()), total + got.size
    tell(f"mean → {operator}, {form}: {same} of {total} outputs equal")
    assert same == total


def _with_mean(operator: str) -> onnx.ModelProto:
    b = onnx_runtime.Builder({"image": [1, 3, 8, 8]})
    x = b("ReduceMean", b("Relu", b.conv("image", 3, 8, 3)), b.constant(np.array([2, 3])), keepdims=1)
    x = b("Flatten", x) if operator == "Flatten" else b("Reshape", x, b.constant(np.array([-1, 8])))
    return b.finish(b.linear(x, 8, 4), "mean")


@pytest.mark.parametrize(
    ("shape", "size", "what"),
    [
        ((1, 2, 4, 4), (0, 0), "averages over zero elements"),
        ((1, 2, 0, 0), (1, 1), "averages over zero elements"),
        ((1, 2, 100_000, 4), (5, 7), "has windows with too many possible sums to compare each of them"),
    ],
)
def test_a_mean_of_nothing_or_of_too_much(shape: tuple[int, ...], size: tuple[int, ...], what: str) -> None:
    grid, operator = Quantization.per_tensor(0.1, 3, "uint8"), OPERATORS["qfmt.AdaptiveAveragePool"]
    tensors = {
        "x": Tensor("x", "uint8", shape, quantization=grid),
        "y": Tensor("y", "uint8", (*shape[:2], *size), quantization=grid),
    }
    node = Node(operator.name, ("x",), ("y",), {"output_size": size}, "n", operator.version, "mean_divide_offset")
    model = Model(Graph(("x",), ("y",), (node,), tensors), engine="fbgemm")
    given = {"x": np.full(shape, 7, np.uint8)}
    if 0 in shape:
        with pytest.raises(RunError, match="no elements have no mean"):
            model.run(given)
    else:
        assert model.run(given)["y"].shape == (*shape[:2], *size)
    with pytest.raises(NoIntegerFormError) as caught:
        lower_integer(model)
    assert list(caught.value.reasons) == [what]
