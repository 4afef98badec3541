"""End to end: networks made by torch, converted without it, and compared with torch's results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.ao.nn import quantized as nnq

import qfmt
from networks import pytorch
from networks.pytorch import convert, named
from qfmt.model import Model, Tensor
from qfmt.ops import OPERATORS
from support import processor, torch_witness
from support.matrix import CELLS, SHORT

pytestmark = pytest.mark.usefixtures("fbgemm")

UNPACK = {
    nnq.Conv1d: torch.ops.quantized.conv1d_unpack,
    nnq.Conv2d: torch.ops.quantized.conv2d_unpack,
    nnq.Conv3d: torch.ops.quantized.conv3d_unpack,
    nnq.ConvTranspose1d: torch.ops.quantized.conv_transpose1d_unpack,
    nnq.ConvTranspose2d: torch.ops.quantized.conv_transpose2d_unpack,
    nnq.ConvTranspose3d: torch.ops.quantized.conv_transpose3d_unpack,
    nnq.Linear: torch.ops.quantized.linear_unpack,
}


OPERATORS_OF: dict[tuple[str, str], set[str]] = {}
"""Operators of the networks that were converted so far."""

NOT_FROM_TORCH = {
    *("ArgMax", "ArgMin", "CumSum", "Einsum", "Gemm", "GlobalLpPool", "GlobalMaxPool", "Hardmax", "Identity", "LRN"),
    *("LpNormalization", "LpPool", "Mean", "MeanVarianceNormalization", "RMSNormalization", "ReduceL1", "ReduceL2"),
    *("ReduceLogSum", "ReduceLogSumExp", "ReduceMin", "ReduceProd", "ReduceSumSquare", "Size", "SpaceToDepth", "Sum"),
    *("ThresholdedRelu", "TopK", "ai.onnx.DequantizeLinear", "ai.onnx.QuantizeLinear"),
}
"""Operators that are not the conversion of any torch call on floats."""

OF_ONNX = {"attention", "functions", "indexing", "integer_products", "logic", "onnx_recurrent", "rescaling", "sampling"}
"""Families of operators that only ONNX has."""

OF_THEIR_OWN = {"creation", "dynamic", "embedding", "recurrent", "requantization"} | OF_ONNX
"""Families that test_dynamic.py and test_recurrent.py test, or that only qfmt creates."""


@dataclass
class Cell:
    """One network in one mode: torch's values, and the converted archives."""

    name: str
    mode: str
    folder: Path

    @cached_property
    def torch_model(self) -> torch.nn.Module:
        return pytorch.quantized(self.name, self.mode)[0]

    @cached_property
    def inputs(self) -> pytorch.Inputs:
        return pytorch.quantized(self.name, self.mode)[1]

    @cached_property
    def observed(self) -> tuple[list[np.ndarray], list[torch_witness.Seen]]:
        return torch_witness.observe(self.torch_model, self.inputs)

    @cached_property
    def models(self) -> dict[str, Model]:
        """Each kind of archive: converted, saved and loaded again."""
        return {kind: self._converted(kind) for kind in pytorch.KINDS}

    def _converted(self, kind: str) -> Model:
        """The archive of this kind, converted, saved and loaded."""
        archive = pytorch.save_as(self.torch_model, self.inputs, kind, self.folder / f"{kind}.pt")
        stored = self.folder / f"{kind}.qfb"
        qfmt.save(convert(self.name, archive), stored)
        assert qfmt.check(stored) == []
        model = qfmt.load(stored)
        OPERATORS_OF.setdefault((self.name, self.mode), set()).update(node.operator for node in model.nodes)
        return model

    @cached_property
    def outputs(self) -> list[np.ndarray]:
        """Those of the traced model."""
        return run(self.models["trace"], self.inputs)


def run(model: Model, inputs: pytorch.Inputs) -> list[np.ndarray]:
    results = processor.run(model, named(model, inputs))
    return [results[name] for name in model.graph.outputs]


@pytest.fixture(scope="module", params=CELLS)
def cell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cell:
    name, mode = request.param
    return Cell(name, mode, tmp_path_factory.mktemp(f"{name}-{mode}"))


def test_every_node_computes_what_torch_computes(cell: Cell) -> None:
    model = cell.models["trace"]
    tally = torch_witness.compare(model, named(model, cell.inputs), cell.observed[1], torch_witness.Tally())
    print(f"\n{cell.name} {cell.mode}\n{tally}")
    assert tally.is_good, str(tally)
    expected, got = cell.observed[0], cell.outputs
    assert [array.shape for array in got] == [array.shape for array in expected]
    equal = sum(int((a == b).sum()) for a, b in zip(got, expected, strict=True))
    total = sum(array.size for array in expected)
    largest = max(float(np.abs(a - b).max(initial=0)) for a, b in zip(got, expected, strict=True))
    print(f"outputs of the whole network: {equal} of {total} equal, largest difference {largest:.3g}")
    if tally.is_exact:
        assert equal == total, f"{total - equal} of {total} outputs differ although every node is exact"


def test_trace_script_and_freeze_are_one_network(cell: Cell) -> None:
    identities = {kind: model.content_id() for kind, model in cell.models.items()}
    print(f"\n{cell.name} {cell.mode}: {len(set(identities.values()))} content ids")
    for kind in pytorch.KINDS[1:]:
        if identities[kind] != identities["trace"]:
            for mine, first in zip(run(cell.models[kind], cell.inputs), cell.outputs, strict=True):
                np.testing.assert_array_equal(mine, first)


def test_names_and_values_of_packed_parameters_are_kept(cell: Cell) -> None:
    packed = {
        name: module
        for name, module in cell.torch_model.named_modules()
        if any(isinstance(module, kind) for kind in UNPACK)
    }
    for kind in ("trace", "script"):
        model = cell.models[kind]
        for name, module in packed.items():
            if isinstance(module, nnq.Linear):
                path, state = f"{name}._packed_params._packed_params", module._packed_params._packed_params
            else:
                path, state = f"{name}._packed_params", module._packed_params
            unpack = next(function for base, function in UNPACK.items() if isinstance(module, base))
            weight = model.graph.find(path)
            assert weight is not None, f"{kind}: {path} is not found"
            _assert_same_parameters(model, weight, *unpack(state))
            node = next(node for node in model.nodes if weight.name in node.inputs)
            quantization = model.tensors[node.outputs[0]].quantization
            assert quantization is not None
            assert (quantization.scale.numbers(), quantization.zero_point.numbers()) == (
                (module.scale,),
                (module.zero_point,),
            )


def _assert_same_parameters(model: Model, weight: Tensor, theirs: torch.Tensor, bias: torch.Tensor | None) -> None:
    assert weight.array.shape == tuple(theirs.shape)
    assert weight.array.tobytes() == theirs.int_repr().contiguous().numpy().tobytes()
    assert weight.quantization is not None
    if theirs.qscheme() == torch.per_tensor_affine:
        expected = (theirs.q_scale(),), (theirs.q_zero_point(),), None
    else:
        scales, zero_points = theirs.q_per_channel_scales(), theirs.q_per_channel_zero_points()
        expected = tuple(scales.tolist()), tuple(zero_points.tolist()), theirs.q_per_channel_axis()
    quantization = weight.quantization
    assert (quantization.scale.numbers(), quantization.each_zero_point, quantization.axis) == expected
    node = next(node for node in model.nodes if weight.name in node.inputs)
    if bias is None:
        assert len(node.inputs) < 3 or not node.inputs[2]
    else:
        assert model.tensors[node.inputs[2]].array.tobytes() == bias.detach().numpy().tobytes()


def test_every_operator_occurs_in_a_network() -> None:
    if missing := set(SHORT) - OPERATORS_OF.keys():
        pytest.skip(f"{len(missing)} of the networks were not converted in this run")
    here = {name for name, operator in OPERATORS.items() if operator.family not in OF_THEIR_OWN}
    assert set().union(*OPERATORS_OF.values()) - (set(OPERATORS) - here) == here - NOT_FROM_TORCH


def test_the_witness_detects_one_wrong_weight(tmp_path: Path) -> None:
    """The comparison above can fail: it finds one weight that is changed by one step."""
    network, inputs = pytorch.quantized("dictionary", "eager")
    _, seen = torch_witness.observe(network, inputs)
    model = qfmt.convert(pytorch.save_as(network, inputs, "trace", tmp_path / "m.pt"))
    assert torch_witness.compare(model, named(model, inputs), seen, torch_witness.Tally()).is_good
    weight = next(tensor for tensor in model.graph.constants() if tensor.dtype == "int8")
    values = weight.array.copy()
    values.flat[0] += -1 if values.flat[0] > 0 else 1
    changed = Tensor.constant(weight.name, values, weight.quantization)
    graph = replace(model.graph, tensors={**model.tensors, weight.name: changed})
    tally = torch_witness.compare(model.replace(graph=graph), named(model, inputs), seen, torch_witness.Tally())
    assert not tally.is_good
    assert sum(tally.wrong.values()) > 0


@pytest.mark.slow
def test_mobilenet_at_its_published_size(tmp_path: Path) -> None:
    network, inputs = pytorch.quantized("mobilenet_v2_224", "fx")
    outputs, seen = torch_witness.observe(network, inputs)
    model = qfmt.convert(pytorch.save_as(network, inputs, "trace", tmp_path / "m.pt"))
    tally = torch_witness.compare(model, named(model, inputs), seen, torch_witness.Tally())
    print(f"\nmobilenet_v2_224 fx\n{tally}")
    assert tally.is_good, str(tally)
    if tally.is_exact:
        np.testing.assert_array_equal(run(model, inputs)[0], outputs[0])


ENGINES = [
    pytest.param(engine, name, marks=pytest.mark.slow if (place + turn) % 2 else (), id=f"{engine}-{name}")
    for turn, engine in enumerate(("qnnpack", "onednn"))
    for place, name in enumerate(("resnet18", "mobilenet_v3", "shufflenet_v2", "linears", "conv1d"))
]
"""Each network by one engine; by the other it is slow."""


@pytest.mark.parametrize(("engine_name", "name"), ENGINES)
def test_other_engines_differ_only_where_rounding_ties(engine_name: str, name: str, tmp_path: Path) -> None:
    network, inputs = pytorch.quantize(name, "fx", engine_name)
    torch.backends.quantized.engine = engine_name
    outputs, seen = torch_witness.observe(network, inputs)
    archive = pytorch.save_as(network, inputs, "trace", tmp_path / "m.pt")
    model = convert(name, archive, engine_name)
    tally = torch_witness.compare(model, named(model, inputs), seen, torch_witness.Tally())
    print(f"\n{name} by {engine_name}\n{tally}")
    assert tally.is_good, str(tally)
    if tally.is_exact:
        np.testing.assert_array_equal(run(model, inputs)[0], outputs[0])
