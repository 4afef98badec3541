"""The reference interpreter: each node as docs/spec/operators.md states it, NumPy only. Exactness before speed."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .arithmetic import QUANTIZE, dequantize, quantize
from .arrays import Array
from .errors import MemoryLimitError, QfmtError, RunError
from .memory import Memory, limit_for, require
from .model import DTYPES, Dimension, Model, Node, Quantization, Shape, Tensor, numpy_dtype, static_shape
from .ops import OPERATORS, UNFIT, Inference, Operand, Operator, Quantized, Result, UnknownRank
from .ops.accumulation import int32_sums
from .ops.registry import is_usable
from .ops.rescaling import multiply_add_divide
from .progress import counted

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

UNPACKING = 3
"""Bytes for each element while a packed constant is unpacked: `arrays.unpack` makes three arrays."""

MOVING, WORKING, SUMMING = 2, 16, 32
"""Bytes that a node may need while it runs for each element that it reads or writes: if it only moves or clamps them;
in general; if it sums products.

Measured: few operators need more, but for those that ask for it (`memory.require`).
"""


def run(
    model: Model,
    inputs: Mapping[str, ArrayLike],
    memory: int | None = None,
    watch: Callable[[Node, Mapping[str, Array]], None] | None = None,
) -> dict[str, Array]:
    """{input: array} → {output: array}. Quantized inputs and outputs are their integers. `watch` gets each node, and
    the values by name, after it has run.

    Checks the inputs and the memory, not the graph: `Model.run` does (level 3 of docs/checking.md).
    Raises RunError for a node that would take more than `memory` bytes; the default is `memory.limit_for`.
    """
    values: dict[str, Array] = {}
    given: list[Array] = []
    for node in trace(model, inputs, values, memory):
        given = given or [values[name] for name in model.graph.inputs]
        if watch is not None:
            watch(node, values)
    taken = {id(_owner(array)) for array in given or [values[name] for name in model.graph.inputs]}
    """What must not be changed through a result: the inputs, and the results before it."""
    results: dict[str, Array] = {}
    for name in model.graph.outputs:
        owner = _owner(values[name])
        results[name] = values[name].copy() if id(owner) in taken else values[name]
        if owner.flags.writeable:  # constants are not
            taken.add(id(owner))
    return results


def _owner(array: Any) -> Any:
    """The array that owns the memory of this one."""
    while hasattr(array.base, "__array_interface__"):
        array = array.base
    return array


def trace(
    model: Model, inputs: Mapping[str, ArrayLike], values: dict[str, Array], memory: int | None = None
) -> Iterator[Node]:
    """Run node by node: after each yield the outputs of that node are in `values`.

    A value is dropped when its last reader has run, unless it is an output of the graph. To keep one, read it
    from `values` when its node is yielded. Inputs and constants that are outputs are there from the beginning.
    """
    if model.no_graph:
        raise RunError(model.no_graph)
    graph, tensors = model.graph, model.graph.tensors
    values.update(checked_inputs(model, inputs))
    budget = _memory(model, values, memory)
    uses = graph.uses()
    constants: dict[str, Array] = {}
    known = ChainMap(values, constants)
    for name in graph.outputs:
        if name in values:
            budget.held += values[name].nbytes  # of its copy
        elif tensors[name].is_constant:
            values[name] = read_constant(tensors[name], budget)
    for node in counted(graph.nodes, "", len(graph.nodes), "nodes"):
        for name in node.inputs:
            if name and name not in known:
                constants[name] = read_constant(tensors[name], budget, node)
        with budget.spent():
            results = execute(node, operands_of(node, known, tensors), [tensors[name] for name in node.outputs])
        values.update(zip(node.outputs, results, strict=True))
        budget.held += sum(result.nbytes for result in results)
        yield node
        for name in node.inputs:
            uses[name] -= 1
            if uses[name] == 0:
                budget.held -= values[name].nbytes if name in values else _unpacked(tensors[name])
                values.pop(name, None)
                constants.pop(name, None)


def read_constant(tensor: Tensor, memory: Memory, node: Node | None = None) -> Array:
    """The array of a constant, whose elements count as held if they are unpacked: then they are not the file's.

    MemoryLimitError, placed at the node that reads it.
    """
    unpacked = _unpacked(tensor)
    try:
        memory.require(UNPACKING * unpacked)
    except MemoryLimitError as error:
        raise error.at(f"node {node.title}" if node else f"output {tensor.name}") from None
    memory.held += unpacked
    return tensor.array


def _unpacked(tensor: Tensor) -> int:
    """The bytes of its elements if the file has more than one in a byte."""
    return prod(static_shape(tensor)) if DTYPES[tensor.dtype].bits < 8 else 0


def _memory(model: Model, inputs: Mapping[str, Array], limit: int | None) -> Memory:
    """What a run may take, of which the inputs already take a part."""
    given = sum(array.nbytes for array in inputs.values())
    if limit is None:
        constants = (data.nbytes for tensor in model.graph.constants() for _, data in tensor.stored())
        limit = limit_for(given + sum(constants))
    memory = Memory(limit, "allow more: --memory of `qfmt run` and `qfmt check`, or run(…, memory=…)")
    memory.held = given
    return memory


def checked_inputs(model: Model, inputs: Mapping[str, ArrayLike]) -> dict[str, Array]:
    """The inputs as arrays of the right dtypes; RunError for one missing, unknown, misshapen or out of range."""
    expected = model.graph.inputs
    if not isinstance(inputs, Mapping):
        hint = f'pass {{"{expected[0]}": array}}' if expected else "pass {}"
        raise RunError(f"inputs are arrays by name, not a {type(inputs).__name__}", hint=hint)
    known = set(expected)
    if unknown := [name for name in inputs if name not in known]:
        raise RunError(f"the model has no input {unknown[0]!r}", hint=f"its inputs are {', '.join(expected)}")
    sizes: dict[str, int] = {}
    arrays = {}
    for name in expected:
        if name not in inputs:
            raise RunError(f"input {name!r} is missing", hint=f"the inputs are {', '.join(expected)}")
        try:
            array = _in_order(inputs[name])
        except (
            ValueError,
            TypeError,
            OverflowError,
            RuntimeError,
        ) as error:  # unequal lengths; a tensor with a gradient
            raise RunError(f"is not an array: {error}", where=f"input {name}") from None
        except RunError as error:
            raise error.at(f"input {name}") from None
        try:
            arrays[name] = _checked_input(model.tensors[name], array, sizes)
        except RunError as error:
            if model.source.get("assumed_ranks"):
                error.hint = "the source does not state the number of dimensions; convert it with --input-shape"
            raise
    return arrays


def _in_order(given: ArrayLike) -> Array:
    """An array in C order, because sums of floats depend on the order in memory. RunError if there is no memory for it,
    and for a mask, which NumPy would drop."""
    if isinstance(given, np.ma.MaskedArray):
        raise RunError("is a masked array", hint="pass numbers for all elements: array.filled(value)")
    array = np.asarray(given)
    if not array.flags.c_contiguous:
        require(array.nbytes)  # a view can be far larger than its memory
    return np.asarray(array, order="C")


def _checked_input(tensor: Tensor, array: Array, sizes: dict[str, int]) -> Array:
    dtype = numpy_dtype(tensor.dtype)
    if array.dtype.type is np.void and array.dtype.itemsize == dtype.itemsize and DTYPES[tensor.dtype].kind == "f":
        array = array.view(dtype)  # how NumPy saves the types of ml_dtypes
    if array.dtype != dtype:
        if not np.can_cast(array.dtype, dtype, "same_kind") or tensor.quantization is not None:
            raise RunError(f"expects {tensor.dtype}, not {array.dtype}", where=f"input {tensor.name}")
        with np.errstate(over="ignore"):  # what is beyond float32 is infinite
            array, original = array.astype(dtype), array
        if dtype.kind in "iu" and (lost := original[array != original]).size:
            raise RunError(f"expects {tensor.dtype}, which cannot represent {lost[0]}", where=f"input {tensor.name}")
    if tensor.quantization is not None:
        low, high = tensor.quantization.quant_min, tensor.quantization.quant_max
        values = array if array.dtype.kind in "iu" else array.astype(np.float32)
        outside = array[(values < low) | (values > high)]
        if outside.size:
            what = "integers" if array.dtype.kind in "iu" else tensor.dtype
            raise RunError(f"expects {what} in [{low}, {high}], not {outside[0]}", where=f"input {tensor.name}")
    if tensor.shape is None:
        return array
    if array.ndim != len(tensor.shape):
        raise RunError(f"expects {len(tensor.shape)} dimensions, not {array.ndim}", where=f"input {tensor.name}")
    for axis, (size, wanted) in enumerate(zip(array.shape, tensor.shape, strict=True)):
        if isinstance(wanted, str):
            wanted = sizes.setdefault(wanted, size)
        if wanted is not None and size != wanted:
            raise RunError(f"dimension {axis} is {size}, must be {wanted}", where=f"input {tensor.name}")
    return array


def operands_of(node: Node, values: Mapping[str, Array], tensors: Mapping[str, Tensor]) -> list[Operand | None]:
    """The inputs of a node: from `values` by name, or else constants of the graph; None for an absent one."""
    return [
        Operand(values[name] if name in values else tensors[name].array, tensors[name].quantization) if name else None
        for name in node.inputs
    ]


def execute(node: Node, operands: Sequence[Operand | None], outputs: Sequence[Tensor]) -> list[Array]:
    """The outputs of one node, from its operands; `outputs` says what dtype and quantization they have.

    Raises RunError, placed at the node, for an operator or rule without a reference, and for operands that do
    not fit each other: those that the shape rule refuses, or for which the outputs have other shapes than it says.
    """
    try:
        shapes = _checked_sizes(node, operands, outputs)
        with np.errstate(all="ignore"):
            results = [np.asarray(each, order="C") for each in _execute(node, operands, outputs)]  # as inputs
        for result, shape in zip(results, shapes, strict=False):
            if shape is not None and not _is_of(result.shape, shape):  # NumPy broadcasts operands that do not fit
                raise RunError(f"gives an output of shape {list(result.shape)}, expected {list(shape)}")
        return results
    except RunError as error:
        raise error.at(f"node {node.title}") from None
    except QfmtError as error:
        raise RunError(error.what, where=f"node {node.title}", hint=error.hint) from None
    except MemoryError:
        raise MemoryLimitError("needs more memory than there is", where=f"node {node.title}") from None
    except UNFIT as error:
        given = ", ".join("absent" if operand is None else str(operand.array.shape) for operand in operands)
        why = str(error) or type(error).__name__
        raise RunError(f"cannot be computed from shapes {given}: {why}", where=f"node {node.title}") from error


def operator_of(node: Node) -> Operator:
    """The entry of its operator; RunError for one that this qfmt cannot run."""
    operator = OPERATORS.get(node.operator)
    if operator is None:
        raise RunError("qfmt cannot run this operator", hint="its arrays can still be read")
    if node.version > operator.version:
        raise RunError(f"version {node.version} of this operator is not supported", hint="a newer qfmt is needed")
    if node.rule not in ("", *operator.rules, *operator.sum_rules) and not (operator.rules and node.rule in QUANTIZE):
        known = ", ".join((*operator.rules, *operator.sum_rules)) or "none"
        raise RunError(f"the rounding rule {node.rule!r} is not supported here", hint=f"use {known}, or a newer qfmt")
    return operator


def check_versions(model: Model) -> None:
    """RunError if a node is of a known operator in a version that this qfmt does not know, whose meaning is unknown."""
    for node in model.nodes:
        if node.operator in OPERATORS:
            try:
                operator_of(node)
            except RunError as error:
                raise error.at(f"node {node.title}") from None


def _execute(node: Node, operands: Sequence[Operand | None], outputs: Sequence[Tensor]) -> list[Array]:
    operator = operator_of(node)
    wanted = outputs[0].quantization
    only_moves = operator.selects is not None and wanted is not None and not node.rule
    moves = operator.moves or only_moves
    attributes = operator.complete(node.attributes)
    if node.rule in operator.sum_rules and operator.sums is not None:
        sums = operator.sums.function(*_filled(operator, operands), rule=node.rule, **attributes)
        return [int32_sums(sums)]
    if operator.takes_integers:
        return [_integers(operator, node.rule, operands, outputs[0], attributes)]
    if operator.integer is not None and node.rule not in QUANTIZE and node.rule:
        _check_integers(node.rule, operands, outputs)
    if wanted is not None and operator.integer is not None and node.rule not in QUANTIZE and not only_moves:
        _check_per_tensor(operator, node.rule, operands, wanted)
        result = Result(numpy_dtype(outputs[0].dtype), wanted, node.rule)
        return [operator.integer(*_filled(operator, operands), result=result, **attributes)]
    if operator.has_quantized_weights(operands):
        assert operator.integer is not None
        return _several(operator.integer(*_filled(operator, operands), rule=node.rule, **attributes))
    if moves:
        _check_same_grid(operands[0], outputs)
        arrays = _filled(operator, [operand and _movable(operand.array) for operand in operands])
    else:
        reals = [operand and _real(operand, node.rule) for operand in operands]
        arrays = _filled(operator, _widened(reals))
    results = _several(operator.reference(*arrays, **attributes))[: len(outputs)]  # optional ones may be absent
    if moves:
        if wanted is not None and not arrays[0].size:  # an extreme of no elements is the end of the range
            results = [np.clip(result, wanted.quant_min, wanted.quant_max) for result in results]
        kinds = [numpy_dtype(tensor.dtype) for tensor in outputs]
        return [np.asarray(result).astype(kind, copy=False) for result, kind in zip(results, kinds, strict=True)]
    return [_finish(np.asarray(result), tensor, node) for result, tensor in zip(results, outputs, strict=True)]


def _checked_sizes(node: Node, operands: Sequence[Operand | None], outputs: Sequence[Tensor]) -> list[Shape]:
    """The shapes of the outputs; QfmtError for operands that do not fit each other, RunError for outputs that need more
    memory than there is."""
    operator = operator_of(node)
    arrays = _filled(operator, [operand and operand.array for operand in operands])
    given = [None if array is None else array.shape for array in arrays]
    try:
        shapes = operator.infer(Inference(given, operator.complete(node.attributes), arrays))
    except UnknownRank:  # of an absent input
        return []
    counts = [_elements(shape or ()) for shape in shapes]
    made = sum(count * numpy_dtype(tensor.dtype).itemsize for count, tensor in zip(counts, outputs, strict=False))
    read = sum(_elements(shape) for shape in given if shape is not None)
    working = MOVING if operator.moves else SUMMING if operator.accumulates or operator.takes_weights else WORKING
    require(made + working * (sum(counts) + read))
    return shapes


def _elements(shape: Sequence[Dimension]) -> int:
    """How many elements what is in between may have: a dimension without elements may come last."""
    return prod(max(1, size) for size in shape if isinstance(size, int))


def _is_of(shape: tuple[int, ...], expected: tuple[Dimension, ...]) -> bool:
    """Whether a shape is one of an inferred shape; a size that depends on values may have any size."""
    pairs = zip(shape, expected, strict=False)
    return len(shape) == len(expected) and all(size == own or not isinstance(size, int) for own, size in pairs)


def _integers(
    operator: Operator, rule: str, operands: Sequence[Operand | None], output: Tensor, attributes: Mapping[str, Any]
) -> Array:
    """The output of an operator that uses stored integers, whatever they represent."""
    dtype = numpy_dtype(output.dtype)
    if operator.integer is not None and output.quantization is not None:
        result = Result(dtype, output.quantization, rule)
        return np.asarray(operator.integer(*_filled(operator, operands), result=result, **attributes))
    arrays = _filled(operator, [operand and operand.array for operand in operands])
    made = np.asarray(operator.reference(*arrays, **attributes))
    if made.dtype != dtype:
        raise RunError(f"computes {made.dtype}, but {output.name} is {output.dtype}")
    return made


def _check_integers(rule: str, operands: Sequence[Operand | None], outputs: Sequence[Tensor]) -> None:
    """RunError if a formula on integers would get block-wise scales, or floats."""
    grids = [(str(each.array.dtype), each.quantization) for each in operands if each is not None]
    for dtype, grid in (*grids, *((tensor.dtype, tensor.quantization) for tensor in outputs)):
        if grid is not None and not (is_usable(grid, rule) and DTYPES[dtype].is_integer):
            what = "block-wise scales, or float zero points" if DTYPES[dtype].is_integer else f"quantized {dtype}"
            raise RunError(f"computes on integers, not with {what}", hint="state a quantize rule: dequantize, compute")


def _check_per_tensor(operator: Operator, rule: str, operands: Sequence[Operand | None], wanted: Quantization) -> None:
    """RunError if a formula on integers would use the first scale of an axis for all; weights have their own."""
    if operator.moves:
        return
    grids = [wanted]
    if operator.quantized is Quantized.OWN and rule != multiply_add_divide.__name__:  # which reads no scale
        grids += [each.quantization for each in operands if each is not None and each.quantization is not None]
    if any(grid.is_per_channel for grid in grids):
        raise RunError("computes on integers that are quantized per tensor, not per channel")


def _several(computed: Any) -> list[Array]:
    return list(computed) if isinstance(computed, tuple | list) else [computed]


def _filled(operator: Operator, given: Sequence[Any]) -> list[Any]:
    """The operands, with None for optional ones at the end that the node does not name."""
    fixed = [parameter for parameter in operator.inputs if not parameter.variadic]
    return [*given, *[None] * (len(fixed) - len(given))]


def _real(operand: Operand, rule: str) -> Array:
    if operand.quantization is None:
        return operand.array
    return dequantize(operand.array, operand.quantization, rule)


def _widened(arrays: Sequence[Array | None]) -> Sequence[Array | None]:
    """Floats of 16 and fewer bits as float32, if the first input has them: sums, squares and products need more digits,
    and a larger range. torch and ONNX Runtime compute in float32, too. The result is rounded once. (fbgemm's products
    of float32 with weights of float16 are sums of their own.)"""
    first = next(iter(arrays), None)
    if first is None or not _is_narrow(first):
        return arrays
    return [each.astype(np.float32) if each is not None and _is_narrow(each) else each for each in arrays]


def _is_narrow(array: Array) -> bool:
    return DTYPES[array.dtype.name].kind == "f" and array.dtype.itemsize < 4


def _movable(array: Array) -> Array:
    """Floats of 8 and 4 bits as float32, which has the infinities that a search for the largest begins with."""
    return array.astype(np.float32) if DTYPES[array.dtype.name].kind == "f" and array.dtype.itemsize == 1 else array


def _finish(result: Array, tensor: Tensor, node: Node) -> Array:
    dtype = numpy_dtype(tensor.dtype)
    if tensor.quantization is None:
        return result.astype(dtype, copy=False)
    return quantize(result.astype(np.float32, copy=False), tensor.quantization, dtype, node.rule)


def _check_same_grid(source: Operand | None, outputs: Sequence[Tensor]) -> None:
    quantization = source.quantization if source is not None else None
    for tensor in outputs:
        same = tensor.quantization is None if quantization is None else quantization.same_grid(tensor.quantization)
        if not same:
            raise RunError("moves integers, so its output must have the quantization of its input")
