"""Two graphs of one network in one form, if one of them is ONNX, or was exported to it: constants differ in name, type,
layout and quantization, but not in what they mean."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from ..arithmetic import f32
from ..arrays import Array
from ..model import DTYPES, Graph, Model, Parameter, Quantization, Tensor, static_shape
from ..ops import Trait, has, known
from ..ops.accumulation import QUANTIZED, int32_bias
from ..passes.edits import only_read, renamed
from ..passes.same_types import has_same_types, with_same_types
from .words import without_single_channel

FLOATS = ("float16", "bfloat16", "float32", "float64")


def in_form_of_onnx(model: Model, onnx: Graph, stated: Model) -> tuple[Graph, Graph]:
    """The graphs of a network and of ONNX, with constants that can be compared bit by bit. `stated` is the network with
    the rules by which its biases were rounded."""
    a, b = _with_int32_biases(model.graph, onnx, stated), _with_int32_biases(onnx, model.graph, stated)
    a, b = (_as_onnx_states_it(each) for each in (a, b))
    a, b = _with_transposed(a, b), _with_transposed(b, a)
    return _without_lone_grids(a, b), _without_lone_grids(b, a)


def in_terms_of_onnx(model: Model, onnx: Model) -> Model:
    """Adapt a network to the ONNX model that was made from it, or from which it was made: float32 scales, int32 biases
    where the rule of the node quantizes them, and uint8 activations and other weights if the export used
    `--same-types`."""
    model = in_types_of(model, onnx)
    tensors = dict(model.graph.tensors)
    for name, tensor in tensors.items():
        grid = tensor.quantization
        if grid is not None and grid.scale_dtype == "float64" and grid.is_affine:
            scale = Parameter.of_values(grid.scale.array.astype(f32))
            tensors[name] = replace(tensor, quantization=replace(grid, scale=scale))
    readers = model.graph.readers()
    for node in model.nodes:
        if node.rule == "integer_bias" and len(node.inputs) > 2 and len(readers.get(node.inputs[2], ())) == 1:
            x, weight, bias = (tensors[name] for name in node.inputs[:3])
            tensors[bias.name] = int32_bias(node, x, weight, bias) or bias
    return model.replace(graph=replace(model.graph, tensors=tensors))


def in_types_of(model: Model, onnx: Model) -> Model:
    """The network as it is exported with `--same-types`, if the ONNX model was. A weight that the import folded, as the
    transposed one of a MatMul, has one name in both."""
    if not has_same_types(onnx, model):
        return model
    changed = with_same_types(model)
    names = {f"{tensor.name}.{tensor.dtype}": tensor.name for tensor in onnx.graph.constants()}
    return changed.replace(graph=renamed(only_read(changed.graph), names))


def _with_int32_biases(graph: Graph, onnx: Graph, stated: Model) -> Graph:
    """With biases as ONNX has them, where it has them in integers, under its name for them. `stated` is the network
    with the rules by which they were rounded."""
    rules = {name: node.rule for node in stated.nodes for name in node.outputs}
    tensors, nodes = dict(graph.tensors), []
    for node in graph.nodes:
        name = "".join(node.inputs[2:3])
        whole, rule = name + QUANTIZED, rules.get(node.outputs[0], "") if node.outputs else ""
        has_bias = bool(name) and known(node) is not None and has(node, Trait.PRODUCT)
        if has_bias and whole in onnx.tensors and whole not in graph.tensors:
            by = replace(node, rule=rule if rule.startswith("integer_bias") else "integer_bias")
            x, weight, bias = (tensors[each] for each in node.inputs[:3])
            if made := bias if bias.dtype == "int32" else int32_bias(by, x, weight, bias):
                tensors[whole] = replace(made, name=whole)
                node = replace(node, inputs=(*node.inputs[:2], whole, *node.inputs[3:]))
        nodes.append(node)
    return replace(graph, tensors=tensors, nodes=tuple(nodes))


def _as_onnx_states_it(graph: Graph) -> Graph:
    """Without what ONNX does not state: single channels, and of constants the ranges, which only bound their integers,
    and the type of scales."""
    tensors = dict(graph.tensors)
    for name, tensor in tensors.items():
        if tensor.quantization is not None:
            grid, dtype = without_single_channel(tensor.quantization), DTYPES[tensor.dtype]
            if tensor.is_constant:
                grid = replace(grid, quant_min=dtype.minimum, quant_max=dtype.maximum)
                if grid.scale_dtype in FLOATS and grid.scale.quantization is None:
                    grid = replace(grid, scale=Parameter.of_values(grid.scale.array.astype(f32)))
            tensors[name] = replace(tensor, quantization=grid)
    return replace(graph, tensors=tensors)


def _with_transposed(graph: Graph, other: Graph) -> Graph:
    """With weights transposed and renamed where the other graph has them so: ONNX transposes those of a MatMul."""
    tensors, now = dict(graph.tensors), dict[str, str]()
    for tensor in graph.constants():
        for name in {*tensor.aliases} - graph.tensors.keys():
            like, grid = other.tensors.get(name), tensor.quantization
            if like is None or not like.is_constant or (grid and not grid.is_affine) or len(like.shape or ()) != 2:
                continue
            if like.shape == (tensor.shape or ())[::-1] and not np.array_equal(like.array, tensor.array):
                along = grid if grid is None or grid.axis is None else grid.along(1 - grid.axis)
                tensors[name] = Tensor.constant(name, tensor.array.T.copy(), along, dtype=tensor.dtype)
                now[tensor.name] = name
    nodes = (replace(node, inputs=tuple(now.get(name, name) for name in node.inputs)) for node in graph.nodes)
    return replace(graph, tensors=tensors, nodes=tuple(nodes))


def _without_lone_grids(graph: Graph, other: Graph) -> Graph:
    """Without the quantization of constants whose integers another graph has without one: ONNX computes with the scales
    of a table as with other numbers."""
    tensors = dict(graph.tensors)
    for name, tensor in tensors.items():
        like = other.tensors.get(name)
        if like is None or not like.is_constant or not tensor.is_constant or like.dtype != tensor.dtype:
            continue
        if means_itself(like) or means_itself(tensor):
            tensors[name] = replace(tensor, quantization=None)
    return replace(graph, tensors=tensors)


def stating(graph: Graph, dtype: str, grid: Quantization) -> set[str] | None:
    """The constants of a graph that hold the scales and zero points of integers of a type; None if some are missing."""
    scales, points = (np.asarray(each.array, f32).reshape(-1) for each in (grid.scale, grid.zero_point))
    plain = [each for each in graph.constants() if each.quantization is None]
    stated = {each.name for each in plain if _holds(each, scales)}
    # many constants are 1, but a single zero point has the type of its integers
    moved = {each.name for each in plain if (points.size > 1 or each.dtype == dtype) and _holds(each, points)}
    return stated | moved if stated and (moved or not points.any()) else None


def _holds(tensor: Tensor, values: Array) -> bool:
    return prod(static_shape(tensor)) == values.size and np.array_equal(tensor.array.reshape(-1).astype(f32), values)


def means_itself(tensor: Tensor) -> bool:
    """Whether the integers of a tensor are its numbers."""
    grid = tensor.quantization
    return grid is None or (grid.is_per_tensor and (grid.scale[0], grid.zero_point[0]) == (1, 0))
