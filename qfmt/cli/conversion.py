"""What the options of `qfmt convert` make of a source, for one DEST or an archive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import qfmt

from ..errors import DestinationError, SourceError
from ..urls import Place
from .integer import Lowering
from .options import Shapes
from .source import QFB, kind_of

if TYPE_CHECKING:
    from ..model import Model


@dataclass(frozen=True)
class Conversion:
    """What the options say of reading a source and lowering its network."""

    engine: str | None
    shapes: Shapes
    quantizations: dict[str, tuple[float, int, str]]
    dtypes: dict[str, str]
    eval_mode: bool
    prepared: Place | None
    lowering: Lowering | None

    def read(self, source: Place, *, needs_shapes: bool = False) -> tuple[Model, bool]:
        """The model of a source, and whether it is a `.qfb`, whose engine and inputs are fixed."""
        if kind_of(source) != QFB:
            model = qfmt.convert(
                source,
                engine=self.engine,
                input_shapes=self.shapes,
                input_quantization=self.quantizations,
                input_dtypes=self.dtypes,
                eval_mode=self.eval_mode,
                prepared=self.prepared,
            )
            return model, False
        is_used = needs_shapes or self.lowering is not None
        given = self.engine or self.quantizations or self.dtypes or self.eval_mode or self.prepared
        if given or (self.shapes and not is_used):
            hint = "give --engine, --eval-mode, --prepared and --input-… when you convert the original"
            raise SourceError("is a .qfb, whose engine and inputs are fixed", where=str(source), hint=hint)
        return qfmt.load(source), True

    def lower(self, model: Model, source: Place, opened: bool) -> tuple[Model, str]:
        """The integer-only model, and a description of it."""
        assert self.lowering is not None
        return self.lowering.apply(model, str(source), self.shapes if opened else {})


def make(
    source: Place,
    *,
    engine: str | None = None,
    input_shapes: Shapes | None = None,
    input_quantization: dict[str, tuple[float, int, str]] | None = None,
    input_dtypes: dict[str, str] | None = None,
    eval_mode: bool = False,
    integer_only: bool = False,
    exact: bool = False,
    outputs: tuple[str, ...] = (),
    requantize: str | None = None,
    bits: str | None = None,
    vectors: int | None = None,
) -> Model:
    """The model of a source by the options of the command line, with test vectors if these are requested."""
    lowering = Lowering.of(integer_only, exact, outputs, requantize, bits)
    of_inputs = input_shapes or {}, input_quantization or {}, input_dtypes or {}
    conversion = Conversion(engine, *of_inputs, eval_mode, None, lowering)
    model, opened = conversion.read(source, needs_shapes=vectors is not None)
    if lowering is not None:
        model = conversion.lower(model, source, opened)[0]
    if vectors is None:
        return model
    from ..compare import with_random_vectors

    return with_random_vectors(model, vectors, fixed_sizes(conversion.shapes) if opened and lowering is None else {})


def fixed_sizes(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Shapes for one run, or a C program."""
    sizes = {name: tuple(size for size in shape if isinstance(size, int)) for name, shape in shapes.items()}
    if named := [name for name, shape in shapes.items() if len(sizes[name]) != len(shape)]:
        where = f"--input-shape {named[0]}"
        raise DestinationError("C and test vectors require fixed sizes", where=where, hint="give numbers, not names")
    return sizes
