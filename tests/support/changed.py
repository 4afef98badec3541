"""Copies of a model with one thing changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from qfmt.model import Model, Tensor


def with_tensor(model: Model, name: str, **changes: Any) -> Model:
    tensors = {**model.graph.tensors, name: replace(model.graph.tensors[name], **changes)}
    return model.replace(graph=replace(model.graph, tensors=tensors))


def with_node(model: Model, output: str, **changes: Any) -> Model:
    """With changes to the node that computes `output` first."""
    nodes = [replace(node, **changes) if node.outputs[0] == output else node for node in model.nodes]
    return model.replace(graph=replace(model.graph, nodes=nodes))


def one_value_changed(model: Model, name: str) -> Model:
    tensor = model.tensors[name]
    array = tensor.array.copy()
    array.flat[array.size // 2] += 1
    return with_tensor(model, name, data=Tensor.constant(name, array, dtype=tensor.dtype).data)


def one_scale_changed(model: Model, name: str) -> Model:
    quantization = model.tensors[name].quantization
    assert quantization is not None
    scale = (*quantization.scale[:-1], float(np.nextafter(np.float32(quantization.scale[-1]), np.float32(9))))
    return with_tensor(model, name, quantization=quantization.with_values(scale))


def zero_point_moved(model: Model, name: str) -> Model:
    quantization = model.tensors[name].quantization
    assert quantization is not None
    return with_tensor(model, name, quantization=quantization.with_values(zero_point=quantization.zero_point[0] + 1))
