"""Integer-only models: the options of `qfmt convert --integer-only`, and `qfmt inspect --integer`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ..errors import QfmtError
from ..forms import FORMS, NARROWED, NO_MULTIPLIERS, WIDTHS
from .options import Shapes, completed
from .output import Column, as_json, line, pairs, table

if TYPE_CHECKING:
    from ..model import Model, Tensor
    from ..passes.lowering.facts import Facts, Totals


def integer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--integer-only` and the options that go with it; `Lowering.of` parses them."""
    for option in (
        click.option(
            "--bits",
            type=click.Choice([str(width) for width in WIDTHS]),
            help="Maximum bits of a multiplier  [default: 32]",
        ),
        click.option(
            "--requantize",
            type=click.Choice(FORMS),
            metavar="FORM",
            help=f"How sums are requantized: {', '.join(FORMS)}  [default: {FORMS[0]}]",
        ),
        click.option(
            "--end-at",
            "outputs",
            multiple=True,
            metavar="NAME",
            shell_complete=completed("tensors"),
            help="End the network at this tensor; leave out the rest.",
        ),
        click.option(
            "--exact", is_flag=True, help="Compute exactly the integers of SOURCE; use thresholds where FORM cannot."
        ),
        click.option(
            "--integer-only", is_flag=True, help="Make the arithmetic integer-only, and count the results that differ."
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class Lowering:
    """The options of `--integer-only`."""

    form: str
    bits: int
    exact: bool
    outputs: tuple[str, ...]

    @classmethod
    def of(
        cls, integer_only: bool, exact: bool, outputs: tuple[str, ...], requantize: str | None, bits: str | None
    ) -> Lowering | None:
        """None without `--integer-only`, which the other options need."""
        if integer_only:
            form = requantize or FORMS[0]
            if bits and (form in NO_MULTIPLIERS or (form not in NARROWED and int(bits) != WIDTHS[0])):
                why = "has no multipliers" if form in NO_MULTIPLIERS else "has multipliers of 31 bits"
                raise click.UsageError(f"--requantize {form} {why}: --bits requires {', '.join(NARROWED)}")
            return cls(form, int(bits or WIDTHS[0]), exact, outputs)
        options = {"exact": exact, "end-at": outputs, "requantize": requantize, "bits": bits}
        if given := [word for word, value in options.items() if value]:
            raise click.UsageError(f"--{given[0]} requires --integer-only")
        return None

    def apply(self, model: Model, place: str, shapes: Shapes) -> tuple[Model, str]:
        """The integer-only model, and a description of it."""
        from ..passes.lowering import lower_integer
        from ..passes.lowering.facts import totals

        try:
            how: dict[str, Any] = {"form": self.form, "bits": self.bits, "exact": self.exact}
            lowered = lower_integer(model, **how, input_shapes=shapes, outputs=self.outputs)
        except QfmtError as error:
            raise error.at(place) from None
        return lowered, _summary(totals(lowered), lowered)

    def others(self, model: Model) -> str:
        """Tensors that are not requantized in the requested form for any channel."""
        from ..passes.lowering.facts import requantizations

        found = [each.output for each in requantizations(model) if each.rule == "thresholds"]
        return _some(found) if found and self.form != "thresholds" and not self.exact else ""

    def notes(self, model: Model) -> Iterator[str]:
        """Notes on what the user of a lowered model may not expect."""
        for name, shape in json.loads(model.source.get("assumed_sizes", "{}")).items():
            sizes = " × ".join(map(str, shape[2:]))
            yield f"the size of {name} is not stated in the file: {sizes} is assumed; use --input-shape to change it"
        if others := self.others(model):
            yield f"no {self.form} comes close to what {others} states: thresholds are used there"
        if unsure := _unsure(model):
            yield f"{unsure} may be rounded either way: the stated rule does not fix the order of additions"


def _summary(found: Totals, model: Model) -> str:
    """`18,067 channels: 17,649 by multipliers of up to 27 bits, 418 by thresholds; equal on all 15,080,766,772 sums`"""
    ways = []
    if multiplied := found.channels - found.thresholds - found.shifts:
        ways.append(f"{multiplied:,} by multipliers of up to {found.bits} bits")
    if found.shifts:
        ways.append(f"{found.shifts:,} by shifts")
    if found.thresholds:
        ways.append(f"{found.thresholds:,} by thresholds")
    noun = "channel" if found.channels == 1 else "channels"
    listed = f": {', '.join(ways)}" if ways else ""
    unsure = _unsure(model)
    proof = f"differs on at most {unsure}" if unsure else _proof(found.sums, found.differs, found.largest)
    if found.unproven and found.sums:
        proof += f"; {found.unproven} of {found.count} requantizations are not compared"
    return f"{found.channels:,} {noun}{listed}; {proof}"


def _unsure(model: Model) -> str:
    """`255 of the 1,021 sums of pool1, a mean of floats`: the only sums of a model whose result is not certain."""
    from ..passes.lowering.facts import requantizations

    is_exact = model.source.get("integer_only", "").startswith("exact")
    found = [each for each in requantizations(model) if each.differs] if is_exact else []
    if not found:
        return ""
    listed = [f"{each.differs:,} of the {each.sums:,} sums of {each.output}" for each in found]
    return f"{_some(listed)}, {'a mean' if len(found) == 1 else 'means'} of floats"


def _some(words: list[str]) -> str:
    return ", ".join(words[:SOME]) + (f" and {len(words) - SOME} more" if len(words) > SOME else "")


SOME = 5


def _proof(sums: int, differs: int, largest: int) -> str:
    if not sums:
        return "not compared"
    if differs:
        return f"differs on {differs:,} of {sums:,} reachable sums, by {largest} at most"
    return f"equal on all {sums:,} reachable sums"


def show_integers(model: Model, json_: bool) -> None:
    """Every requantization and table of a model: how it rounds, the range of its sums, and the proof that is stated."""
    from ..passes.lowering.facts import requantizations, totals
    from ..rules import require_sound

    require_sound(model)
    found = list(requantizations(model))
    if json_:
        as_json([_data(each, model) for each in found])
        return
    if not found and "integer_only" not in model.source:
        quantized = any(tensor.quantization is not None for tensor in model.tensors.values())
        what = "computes in floating point" if quantized else "is not quantized"
        how = (
            "`qfmt convert FILE OUT.qfb --integer-only` makes it integer-only"
            if quantized
            else "quantize the network first"
        )
        raise QfmtError(f"{what}: there is no requantization to show", hint=how)
    columns = [Column("output", color="cyan"), Column("rule"), Column("channels", right=True), Column("by")]
    columns += [Column("sums", right=True), Column("bits", right=True), Column("stated proof")]
    table(columns, [[*_cells(each)] for each in found])
    line()
    line(_summary(totals(model), model))
    if tables := _tables(model):
        line(tables)


FORMULAS = {
    "multiply_shift": "zero point + ((x · multiplier + add) >> shift)",
    "fixed_point_single": "zero point + ((x · multiplier + 2^(shift - 1)) >> shift)",
    "fixed_point_double": "zero point + ((x · multiplier + 2^(shift - 1) ± 2^30) >> shift), 2^30 if shift > 31",
    "power_of_two": "zero point + ((x + 2^(shift - 1)) >> shift)",
    "thresholds": "quant_min + the number of thresholds that x reaches",
    "multiply_add_divide": "zero point + floor((x · multiplier + add) / div + 1/2)",
}
"""The formulas of docs/spec/integer-only.md, "Integer rules", before the clamp."""

FEW = 6
"""The most thresholds that are printed; `--json` has all of them."""


def show_channels(model: Model, tensor: Tensor, json_: bool) -> None:
    """The integers that turn sums into one tensor, channel by channel; `tensor`: that one, its sums or a parameter."""
    from ..passes.lowering.facts import requantizations
    from ..rules import require_sound

    require_sound(model)
    found = [each for each in requantizations(model) if tensor.name in (each.output, *each.node.inputs)]
    if not found:
        hint = "`qfmt inspect FILE --integer` lists the tensors that are"
        raise QfmtError(f"{tensor.name} is not the output of an integer requantization", hint=hint)
    if json_:
        as_json([_data(each, model) for each in found])
        return
    for each in found:
        _show_channels(each, model)


def _show_channels(found: Facts, model: Model) -> None:
    data, grid = _data(found, model), model.tensors[found.output].quantization
    facts = [("tensor", found.output), ("sums", f"x = {found.source}")]
    facts.append(("rule", f"{found.rule}: {FORMULAS.get(found.rule, '')}"))
    if grid is not None:
        facts.append(("then", f"zero point {grid.zero_point[0]}, clamped to {grid.quant_min}..{grid.quant_max}"))
    if data["div"] is not None:
        facts.append(("div", str(data["div"])))
    facts.append(("proof", _proof(found.sums if found.compared else 0, found.differs, found.largest)))
    pairs(facts)
    line()
    words = [word for word in ("bias", "multiplier", "shift", "add") if data[word] is not None]
    columns = [Column(word, right=True) for word in ("channel", "reachable sums", *words)]
    with_rows = [Column("thresholds")] if data["thresholds"] is not None else []
    differs = found.node.proof.differs if found.node.proof else ()
    counted = [Column("differ", right=True)] if any(differs) else []
    table([*columns, *with_rows, *counted], [_channel(c, found, data, words, differs) for c in range(found.channels)])


def _channel(channel: int, found: Facts, data: dict[str, Any], words: list[str], differs: Any) -> list[str]:
    """One row: the numbers of one channel, or those that all channels share."""

    def own(values: Any) -> Any:
        return values[channel if len(values) > 1 else 0]

    low, high = own(found.reach) if found.reach else (None, None)
    cells = [str(channel), "-" if low is None else f"{low:,}..{high:,}"]
    row = -1
    if data["thresholds"] is not None:
        rows = range(len(data["thresholds"])) if data["row"] is None else data["row"]
        row = own(rows)
    by_line = row < 0
    cells += [str(own(data[word])) if by_line or word == "bias" else "-" for word in words]
    if data["thresholds"] is not None:
        cells.append("-" if by_line else _first(data["thresholds"][row]))
    return [*cells, str(own(differs))] if any(differs) else cells


def _first(thresholds: list[int]) -> str:
    """The first elements, as text."""
    more = f", … ({len(thresholds)})" if len(thresholds) > FEW else ""
    return ", ".join(map(str, thresholds[:FEW])) + more


def _cells(found: Facts) -> Iterator[str]:
    yield from (found.output, found.rule, f"{found.channels:,}", _ways(found))
    low, high = min(found.reach, default=(0, 0))[0], max((high for _, high in found.reach), default=0)
    yield f"{low:,}..{high:,}" if found.reach else "-"
    yield str(found.sum_bits) if found.reach else "-"
    yield _proof(found.sums if found.compared else 0, found.differs, found.largest)


def _ways(found: Facts) -> str:
    """`57 of 8 bits, 7 by thresholds`"""
    ways = [f"{count:,} of {width} bit{'s' if width > 1 else ''}" for width, count in found.widths.items() if count]
    if found.thresholds:
        ways.append(f"{found.thresholds:,} by thresholds")
    return ", ".join(ways) or "shifts"


def _tables(model: Model) -> str:
    """`6 tables of 1.5 kB, 10 weighted sums`"""
    words = {"qfmt.Table": "table", "qfmt.PairTable": "table of pairs", "qfmt.WeightedSum": "weighted sum"}
    parts = []
    for operator, word in words.items():
        nodes = [node for node in model.nodes if node.operator == operator]
        if nodes:
            plural = word.replace("table", "tables", 1) if "table" in word else f"{word}s"
            elements = sum(model.tensors[node.inputs[-1]].array.size for node in nodes) if "Table" in operator else 0
            held = f" ({elements:,} elements)" if elements else ""
            parts.append(f"{len(nodes)} {plural if len(nodes) > 1 else word}{held}")
    return ", ".join(parts)


def _data(found: Facts, model: Model) -> dict[str, Any]:
    """All integers of a requantization; the keys are as stable as those of `describe`."""
    from ..passes.lowering.facts import parameters

    arrays = {word: array.reshape(-1).tolist() for word, array in parameters(found.node, model).items()}
    thresholds = parameters(found.node, model).get("thresholds")
    bias = _bias(found, model)
    return {
        "output": found.output,
        "sums": found.source,
        "rule": found.rule,
        "channels": found.channels,
        "widths": {str(width): count for width, count in found.widths.items()},
        "by_thresholds": found.thresholds,
        "reach": [list(each) for each in found.reach],
        "sum_bits": found.sum_bits,
        "compared": found.compared,
        "sums_in_reach": found.sums if found.compared else None,
        "differs": found.differs if found.compared else None,
        "largest": found.largest if found.compared else None,
        "bias": bias,
        **{word: arrays.get(word) for word in ("multiplier", "shift", "add", "row")},
        "div": found.node.attributes.get("div"),
        "thresholds": None if thresholds is None else thresholds.tolist(),
    }


def _bias(found: Facts, model: Model) -> list[int] | None:
    """The bias of the node that computes the sums."""
    adding = next((node for node in model.nodes if found.source in node.outputs), None)
    if adding is None or adding.rule not in ("exact", "folded") or len(adding.inputs) < 3:
        return None
    bias: list[int] = model.tensors[adding.inputs[2]].array.reshape(-1).tolist()
    return bias
