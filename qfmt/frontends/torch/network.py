"""A network as a stream of torch calls, to convert or to run. Every PyTorch source is read into one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ...budget import Budget
from ...engines import TORCH_ENGINES
from ...model import Model
from ...passes.edits import without_idle_rules
from ...passes.fold import fold_sandwiches
from ...passes.hoisting import hoist_quantizers
from ..options import Options
from .calls import Recorder
from .inputs import Evaluate, Lifted, lift, with_options
from .lifter import Lifter
from .values import InputSpec


class Network(NamedTuple):
    """`run` evaluates `forward` on a recorder, any number of times; `source` are the source keys of the file.

    `is_decomposed`: integers are plain tensors in the network, and quantize and dequantize calls define their
    quantization, as in PT2E; such pairs are folded.
    """

    inputs: Sequence[InputSpec]
    run: Evaluate
    budget: Budget
    source: Mapping[str, str]
    is_decomposed: bool = False

    @property
    def engine(self) -> str:
        """The default engine, whose rounding the nodes state."""
        return "pt2e" if self.is_decomposed else TORCH_ENGINES[0]

    def lift(self, options: Options, recorder: Callable[[Lifter], Recorder] = lambda lifter: lifter) -> Lifted:
        """The calls lifted; `recorder` may put a listener before the lifter."""
        specs = with_options(self.inputs, options)
        return lift(self.run, options.engine or self.engine, specs, recorder, self.budget)

    def finished(self, lifted: Lifted) -> Model:
        """The Model of what was lifted."""
        source = {**self.source, **lifted.notes}
        model = lifted.lifter.finish(lifted.outputs, source=source)
        graph = model.graph
        if self.is_decomposed:
            graph = fold_sandwiches(hoist_quantizers(graph), model.engine)
            graph = replace(graph, tensors=dict(sorted(graph.tensors.items())))
        return replace(model, graph=without_idle_rules(graph))

    def model(self, options: Options) -> Model:
        return self.finished(self.lift(options))
