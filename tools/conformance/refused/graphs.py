"""Files with a graph, a node or a test vector that breaks a rule."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from ..altered import Record, attribute, both, graph, grid, node, numbers, root, setting, value
from .case import FLOAT32, HALF, Bases, Change, Refused, changed, floats


def cases(bases: Bases) -> Iterator[Refused]:
    yield from changed((*GRAPHS, *VECTORS), bases.sound)
    yield from changed(FORMULAS, bases.formulas)


def _twice(end: str) -> Callable[[Record], object]:
    """The first value of the test vector again."""
    return lambda record: record["vectors"][0][end].append(record["vectors"][0][end][0])


GRAPHS: tuple[Change, ...] = (
    ("constant-input", "V30", "An input of the graph is a constant", both(graph(inputs=[5, 0]), lambda record: record[
        "vectors"][0]["inputs"].append({"shape": [3], "buffer": record["graph"]["tensors"][0]["buffer"]}))),
    ("input-twice", "V30", "A tensor is an input twice", both(graph(inputs=[5, 5]), _twice("inputs"))),
    ("no-input", "F7", "An input of the graph with the index -1", graph(inputs=[-1])),
    ("no-output", "F7", "A node with an output that is absent", node(2, outputs=[-1])),
    ("output-twice", "V32", "Two nodes give one tensor", node(2, outputs=[7, 6])),
    ("output-twice-own", "V32", "A node gives one tensor twice", node(2, outputs=[7, 7])),
    ("output-input", "V32", "A node whose output is an input of the graph", node(2, outputs=[7, 5])),
    ("output-constant", "V32", "A node whose output is a constant", node(2, outputs=[7, 0])),
    ("cycle", "V33", "A node reads its own output", node(2, inputs=[3, 7])),
    ("not-computed", "V35", "A tensor that nothing computes", lambda record: record["graph"]["tensors"].append(
        {**record["graph"]["tensors"][-1], "name": "zz"})),
    ("empty-key", "V36", "An empty key", root(metadata=[{"key": "", "value": ""}])),
    ("empty-key-source", "V36", "An empty key of the source", root(source=[{"key": "", "value": ""}])),
    ("zero-byte-producer", "V36", "U+0000 in the producer", root(producer="\0")),
    ("zero-byte-attribute", "V36", "U+0000 in the value of an attribute", node(2, attributes=[
        {"name": "a", "type": 3, "string_value": "\0"}])),
    ("zero-byte-node", "V36", "U+0000 in the name of a node", node(2, name="\0")),
    ("zero-byte-vector", "V36", "U+0000 in the name of a test vector", lambda record: record["vectors"][0].update(
        name="\0")),
    ("no-operator", "V40", "A node whose operator is the empty name", node(2, operator="")),
    ("version-0", "V40", "Version 0 of an operator", node(2, version=0)),
    ("version-first", "V40", "Version 13 of Relu, which begins with 14", node(1, version=13)),
    ("arity", "V41", "A layer without a weight", node(0, inputs=[5])),
    ("arity-absent", "V41", "A layer whose weight has the index -1", node(0, inputs=[5, -1, 0])),
    ("arity-more", "V41", "A Relu of two inputs", node(1, inputs=[6, 5])),
    ("arity-outputs", "V41", "A Relu with two outputs", lambda record: (
        record["graph"]["tensors"].append({**record["graph"]["tensors"][6], "name": "zz"}),
        record["graph"]["nodes"][1].update(outputs=[3, 8]))),
    ("arity-none", "V41", "A node without outputs, of an unknown operator", lambda record: (
        record["graph"]["nodes"].append({**record["graph"]["nodes"][1], "operator": "example.None", "outputs": []}))),
    ("attribute", "V42", "An attribute that the operator does not have", node(1, attributes=[
        {"name": "slope", "type": 1, "int_value": 1}])),
    ("attribute-name", "V53", "An attribute without a name", node(2, attributes=[
        {"name": "", "type": 1, "int_value": 1}])),
    ("shape", "V43", "An output of another size than the operator gives", setting("y", shape=[-1, 2])),
    ("shape-rank", "V43", "An output with one dimension, where the operator gives two", setting("y", shape=[-1],
        dims=None)),
    ("moved-grid", "V45", "An operator that moves integers, to another grid", numbers("r", "scale", **floats(0.5))),
    ("rule", "V47", "A rounding rule that is not known", node(0, rule="nearest")),
    ("no-rule", "V47", "No rule of a layer with a quantized output", node(0, rule=None)),
    ("rule-without-rounding", "V56", "A rounding rule of a node that rounds nothing", node(1, rule="divide")),
    ("input-scales", "V57", "A layer whose input has a scale for each column", numbers("x", "scale", block=[0, 1],
        bytes=struct.pack("<4f", *[0.5] * 4), shape=[1, 4])),
    ("output-channels", "V57", "A layer whose output has a scale for each column", both(*(numbers(
        name, "scale", block=[0, 1], bytes=struct.pack("<3f", 0.25, 0.5, 1.0), shape=[1, 3]) for name in ("y", "r")))),
    ("weight-axis", "V52", "A weight with scales along its input channels", numbers("w", "scale", block=[0, 1],
        bytes=struct.pack("<4f", *[0.5] * 4), shape=[1, 4])),
)  # fmt: skip

FORMULAS: tuple[Change, ...] = (
    ("attribute-kind", "V42", "A float for an attribute that is an integer", attribute(
        0, "ceil_mode", type=2, int_value=0, float_value=1.0)),
    ("attribute-missing", "V42", "An attribute that is missing", lambda record: record["graph"]["nodes"][0][
        "attributes"].pop(0)),
    ("attribute-list", "V42", "An empty list for an attribute that is an integer", attribute(
        0, "ceil_mode", type=4, int_value=0, ints=[])),
    ("attribute-no-float", "V42", "An empty list for an attribute that is a float", node(
        1, operator="Elu", version=22, rule="divide", attributes=[{"name": "alpha", "type": 4, "ints": []}])),
    ("attribute-floats", "V42", "Floats for an attribute that is a list of integers", attribute(
        0, "strides", type=5, ints=None, floats=[2.0, 2.0])),
    ("attribute-truth", "V42", "A truth value of 2", attribute(0, "ceil_mode", int_value=2)),
    ("attribute-mode", "V42", "A mode that the operator does not have", node(1, operator="DepthToSpace", version=13,
        attributes=[{"name": "blocksize", "type": 1, "int_value": 1},
                    {"name": "mode", "type": 3, "string_value": "RDC"}])),
    ("window-in-padding", "V43", "A window that lies in the padding alone", both(
        attribute(0, "pads", ints=[2, 0, 0, 0]), setting("pool", shape=[1, 1, 3, 2]))),
    ("stride-0", "V43", "A stride of 0", attribute(0, "strides", ints=[2, 0])),
    ("moved-real", "V45", "Quantized integers moved into a tensor that is not quantized", setting(
        "same", quantization=None)),
    ("moved-into-grid", "V45", "Integers that are not quantized moved into a tensor that is", setting(
        "tiles", quantization=None)),
    ("moved-zero-point", "V45", "An operator that moves integers, to another zero point", numbers(
        "same", "zero_point", bytes=b"\6")),
    ("moved-scale-type", "V45", "An operator that moves integers, to an equal scale of float64", numbers(
        "same", "scale", dtype=13, bytes=struct.pack("<d", 0.5))),
    ("moved-dtype", "V44", "An operator that moves integers, to another type", setting("same", dtype=5)),
    ("real-dtype", "V44", "DequantizeLinear to float16", setting("real", dtype=10)),
    ("dequantized-output", "V46", "A quantized output of DequantizeLinear", setting(
        "real", dtype=6, quantization=HALF)),
    ("float-only", "V46", "A quantized output of Shape", setting("shape", dtype=6, quantization=HALF)),
    ("moved-blocks", "V54", "An operator that moves integers with blocks", both(*(both(
        numbers(name, "scale", block=[2, 2], shape=[2, 2], bytes=struct.pack("<4f", 1, 2, 3, 4)),
    ) for name in ("tiles", "moved")))),
    ("moved-range", "V55", "An operator that moves integers into a narrower range", grid("same", quant_max=254)),
    ("moved-range-low", "V55", "An operator that moves integers into a range that begins later", grid(
        "same", quant_min=1)),
    ("mean-grid", "V69", "A mean rule from one grid to another", numbers("pool", "scale", **floats(0.25))),
    ("mean-zero-point", "V69", "A mean rule to another zero point", numbers("pool", "zero_point", bytes=b"\6")),
    ("sum-real", "V69", "The rule sum with an input that is not quantized", setting("one", quantization=None)),
    ("sum-reals", "V69", "The rule sum with inputs that are not quantized", node(5, inputs=[5, 5])),
    ("product-offset", "V47", "The rule product with an offset", numbers("one", "offset", new=True, dtype=FLOAT32,
        **floats(0.5))),
    ("rule-real", "V56", "A quantize rule of a node with a real output", node(4, rule="divide")),
    ("sum-scales", "V69", "The rule sum with two scales", numbers("one", "scale", **floats(0.25))),
    ("product-channels", "V69", "The rule product with a scale for each channel", numbers("product", "scale",
        block=[0, 0, 1], shape=[1, 1, 4], bytes=struct.pack("<4f", 1, 2, 3, 4))),
    ("proof-of-none", "V68", "A proof of an operator that does not requantize", node(1, proof={
        "low": [0], "high": [1]})),
    ("archive-vector", "V50", "An archive with a test vector", lambda record: (
        record["graph"].update(nodes=[], inputs=[], outputs=[], tensors=[
            each for each in record["graph"]["tensors"] if each["quantization"] or each["buffer"] is not None]),
        record.update(vectors=[{"inputs": [], "outputs": []}]))),
)  # fmt: skip

VECTORS: tuple[Change, ...] = (
    ("vector-count", "V50", "A test vector with two inputs", lambda record: record["vectors"][0]["inputs"].append(
        record["vectors"][0]["inputs"][0])),
    ("vector-outputs", "V50", "A test vector with two outputs", _twice("outputs")),
    ("vector-negative", "V3", "A value with a size of -1", value("outputs", shape=[-1, 3])),
    ("vector-33", "V3", "A value of 33 dimensions", value("outputs", shape=[1] * 31 + [20, 3])),
    ("vector-shape", "V51", "A value of another size than its tensor", value("inputs", shape=[40, 2])),
    ("vector-rank", "V51", "A value of one dimension of a tensor with two", value("inputs", shape=[80])),
    ("vector-name-size", "V51", "A size with a name that is two sizes", value("outputs", shape=[30, 2])),
    ("vector-digests", "V70", "A test vector with one digest too few", lambda record: record["vectors"][0].update(
        digests=bytes(16))),
    ("vector-bytes", "V10", "A value with fewer bytes than its shape needs", value("outputs", shape=[90, 3])),
)  # fmt: skip
