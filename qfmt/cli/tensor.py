"""One tensor in full: `qfmt inspect FILE --tensor NAME`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..errors import FormatError
from ..model import DTYPES, Model, Parameter, Quantization, Tensor
from ..notation import number, quantization_cells, shape_text, size, span
from ..passes.statistics import missing_shard, real_range
from .facts import Facts, discarded_calibration
from .output import line, pairs

SHOWN = 8
"""The most scales that are printed; `--json` has all of them."""

Lines = Iterator[tuple[str, str]]


def show_tensor(model: Model, tensor: Tensor, facts: Facts, *, asked: str) -> None:
    """Print the results of `tensor_facts` and `stored_range`, and which nodes write and read the tensor."""
    if asked != tensor.name:
        line(_explain_name(asked, tensor))
        line()
    lines = [("tensor", tensor.name), ("role", _role(model, tensor))]
    lines.append(("type", f"{tensor.dtype} {shape_text(tensor.shape)}"))
    if tensor.quantization is not None:
        lines += _quantization_lines(model, tensor, tensor.quantization)
    lines += _stored_lines(tensor, facts)
    if tensor.aliases:
        lines.append(("names", ", ".join(tensor.aliases)))
    lines += _neighbour_lines(model, facts)
    pairs(lines)


def _explain_name(asked: str, tensor: Tensor) -> str:
    owner, _, last = asked.rpartition(".")
    if asked not in tensor.aliases and last in ("scale", "zero_point"):
        of = f"the constant {owner}" if tensor.is_constant else f"the output of {owner}"
        return f"{asked} is the {last.replace('_', ' ')} of {of}"
    return f"{asked} is a name of this tensor in its source"


def _role(model: Model, tensor: Tensor) -> str:
    if tensor.data is not None:
        return f"constant, {size(tensor.data.nbytes)}"
    if model.no_graph:
        return "computed at run time; the file has no graph, so only its quantization is known"
    if tensor.name in model.graph.inputs:
        return "input of the graph"
    return "output of the graph" if tensor.name in model.graph.outputs else "computed"


def _quantization_lines(model: Model, tensor: Tensor, quantization: Quantization) -> Lines:
    limits = DTYPES[tensor.dtype]
    yield "per", quantization_cells(quantization)[-1]
    yield "scale", _read(_scale, quantization)
    yield "zero point", _read(_of_parameter, quantization.zero_point, quantization)
    if quantization.offset is not None:
        yield "offset", _read(_of_parameter, quantization.offset, quantization)
    if (table := quantization.table) is not None:
        yield "table", f"{_read(span, table)}, {table.dtype}, what the {len(table)} codes mean"
    if (index := quantization.group_index) is not None:
        yield "group index", f"{index.dtype} {shape_text(index.shape)}, the block of each position"
    yield "quant_min", f"{quantization.quant_min} ({tensor.dtype} starts at {limits.minimum})"
    yield "quant_max", f"{quantization.quant_max} ({tensor.dtype} ends at {limits.maximum})"
    yield "can hold", _read(_can_hold, quantization)
    observed = quantization.observed
    if observed is not None:
        seen = f"{number(min(observed.minimum))}..{number(max(observed.maximum))}"
        yield "calibration", f"{observed.observer} saw {seen}"
        if observed.quant_min is not None:
            yield "", f"and chose the scale for {observed.quant_min}..{observed.quant_max} ({observed.qscheme})"
    elif discarded_calibration(model, tensor):
        yield "calibration", "min and max were discarded by PyTorch's convert; the source does not hold them"


def _read(text: Callable[..., str], *of: object) -> str:
    """The text; or why it is not known, if it needs a shard that is not there."""
    try:
        return text(*of)
    except FormatError as error:
        return f"unknown: {missing_shard(error)}"


def _scale(quantization: Quantization) -> str:
    if quantization.is_blocked:
        return _of_blocks(quantization.scale)
    return f"{_first(quantization.scale)} ({quantization.scale_dtype} in the source)"


def _of_parameter(values: Parameter, quantization: Quantization) -> str:
    return _of_blocks(values) if quantization.is_blocked and values.shape else span(values)


def _can_hold(quantization: Quantization) -> str:
    low, high = real_range(quantization)
    return f"{number(low)}..{number(high)}, as {_formula(quantization)}"


def _stored_lines(tensor: Tensor, facts: Facts) -> Lines:
    unknown = f"unknown: {facts['error']}" if "error" in facts else ""
    if not tensor.is_constant or not (unknown or facts["stored_min"] is not None):
        return
    real = unknown or f"{number(facts['real_min'])}..{number(facts['real_max'])} (smallest and largest stored value)"
    if tensor.quantization is not None and facts["stored_min"] is not None:
        what = "integer" if DTYPES[tensor.dtype].is_integer else tensor.dtype
        yield "used range", f"{facts['stored_min']}..{facts['stored_max']} (smallest and largest stored {what})"
    yield "real range", real


def _neighbour_lines(model: Model, facts: Facts) -> Lines:
    if facts["written_by"] is not None:
        node = model.nodes[facts["written_by"]]
        yield "written by", f"{node.title} from"
        for name in filter(None, node.inputs):
            yield "", f"  {_in_short(model.tensors[name])}"
    for index in facts["read_by"]:
        node = model.nodes[index]
        yield "read by", node.title


def _in_short(tensor: Tensor) -> str:
    if tensor.quantization is None:
        return f"{tensor.name}  {tensor.dtype}, not quantized"
    scale, zero_point, _, per = quantization_cells(tensor.quantization)
    return f"{tensor.name}  {tensor.dtype}, scale {scale}, zero point {zero_point}, per {per}"


def _of_blocks(values: Parameter) -> str:
    parts = values.parts() if values.quantization is None else [values.real]
    ends = [(float(part.min()), float(part.max())) for part in parts]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    nested = "" if values.quantization is None else ", quantized themselves"
    return f"{number(low)}..{number(high)}, {values.dtype} {shape_text(values.shape)}, one for each block{nested}"


def _formula(quantization: Quantization) -> str:
    value = "(q - zero point)" if quantization.table is None else "table[q]"
    return f"{value} · scale" + ("" if quantization.offset is None else " + offset")


def _first(scales: Sequence[float]) -> str:
    shown = ", ".join(map(number, scales[:SHOWN]))
    return f"{shown}, … (all {len(scales)}: --json)" if len(scales) > SHOWN else shown
