"""An exported program as a Model: its calls lifted, its pairs of quantize and dequantize folded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import SourceError, damaged
from ....model import Model, Shape
from ....progress import counted
from ...content import sha256_of
from ...options import Options
from ..calls import Place, Recorder
from ..network import Network
from ..torchscript.folding import fold, on_values
from ..values import PLAIN_CODES, InputSpec, TensorValue
from .archive import Archive
from .document import Call, Graph, Program, Ref, read_program
from .memory import CHECKS, INLINED, Aliases, live, written
from .names import recovered

if TYPE_CHECKING:
    from ..witness import TorchWitness

QUANTIZE = (
    "quantize it first: prepare_pt2e, calibration, convert_pt2e of torchao (without use_reference_representation), and"
    " export what that returns; what quantize_ quantized is converted before it is exported: qfmt.convert(model,"
    " example_inputs=(x,))"
)


def convert(path: Path, options: Options) -> Model:
    return network(Archive(path), {"sha256": sha256_of(path)}, must_be_quantized=True).model(options)


def witness(path: Path, file: Model, engine: str | None = None) -> TorchWitness:
    from ..witness import witness_of

    return witness_of(network(Archive(path), {"sha256": sha256_of(path)}), file, engine)


def network(archive: Archive, source: Mapping[str, str], *, must_be_quantized: bool = False) -> Network:
    """The program in an archive; `source` are source keys that only the caller knows."""
    evaluation = Evaluation(archive, read_program(archive.program))
    if must_be_quantized and not any(map(_is_quantized, evaluation.program.graph.calls)):
        raise SourceError("nothing in the program is quantized", hint=QUANTIZE)
    keys = {
        **source,
        "format": "exported_program",
        "format_version": archive.version,
        "framework": "pytorch",
        "framework_version": str(archive.program.get("torch_version", "")),
        "dropped_parameters": str(len(evaluation.unread) or ""),
    }
    known = {key: text for key, text in keys.items() if text}
    return Network(evaluation.inputs(), evaluation.run, archive.budget, known, is_decomposed=True)


def _is_quantized(call: Call) -> bool:
    namespace, _, name = call.target.partition("::")
    inner = [graph for graph in call.args if isinstance(graph, Graph)]
    return (
        namespace in ("quantized_decomposed", "torchao", "qfmt")
        or name.startswith("fake_quantize")
        or any(_is_quantized(each) for graph in inner for each in graph.calls)
    )


def _refuse_state(program: Program, aliases: Aliases, live: set[str]) -> None:
    """SourceError for a program whose outputs depend on state that it changes: its results would change, too."""
    inputs = [name for kind, name, _ in program.changed if kind == "user_input_mutation"]
    state = [program.stored[value].name for value in written(program, aliases) if value in live]
    for name in (*inputs, *state):
        what = "the program modifies it at run time; a network in a file has no state"
        raise SourceError(what, where=name, hint="export the model in eval mode, without a cache")


class Evaluation:
    """Passes the calls of a program to a recorder, any number of times."""

    def __init__(self, archive: Archive, program: Program) -> None:
        self.archive, self.program = archive, program
        sharing: dict[str, list[str]] = defaultdict(list)
        for value, entry in program.stored.items():
            sharing[archive.storage(entry.kind, entry.name)].append(value)
        aliases = Aliases(program.graph, sharing.values())
        self.live = live(program, aliases)
        _refuse_state(program, aliases, self.live.values)
        stored = {value: entry for value, entry in program.stored.items() if value in self.live.values}
        read = {entry.name for entry in stored.values()}
        self.unread = [name for name in archive.names("weights") if name not in read]
        names = recovered(program, self.unread, lambda name: archive.shape("weights", name), archive.budget)
        self.stored = {value: (entry, names.get(value, "")) for value, entry in stored.items()}

    def inputs(self) -> list[InputSpec]:
        types = self.program.graph.types
        specs = []
        for name in self.program.inputs:
            if name not in types:
                hint = "only tensors can be inputs: export the model with this argument fixed"
                raise SourceError("the program has a number as an input", where=f"input {name}", hint=hint)
            if types[name].dtype not in PLAIN_CODES:
                raise SourceError(
                    "the program has an input of an element type that is not supported", where=f"input {name}"
                )
            shape: Shape = types[name].shape
            specs.append(InputSpec(name, shape, types[name].dtype, typed=True))
        return specs

    def run(self, to: Recorder, inputs: Mapping[str, TensorValue]) -> Any:
        values: dict[str, Any] = {**self.program.fixed, **inputs}
        for value, (entry, name) in self.stored.items():
            tensor = self.archive.tensor(entry.kind, entry.name)
            if name and name not in tensor.names:
                tensor.names.insert(0, name)
            values[value] = tensor
        self._calls(to, self.program.graph, values)
        return [self._resolved(output, values) for output in self.program.outputs]

    def _calls(self, to: Recorder, graph: Graph, values: dict[str, Any]) -> None:
        for call in counted(graph.calls, "", len(graph.calls), "calls"):
            self.archive.budget.spend()
            if call.target in CHECKS or (graph is self.program.graph and id(call) not in self.live.calls):
                continue
            args = [self._resolved(argument, values) for argument in call.args]
            if call.target in INLINED:
                if "autocast" in call.target and any(args[2:3]):
                    what = "computes with torch.autocast, which chooses element types while it runs"
                    raise SourceError(what, where=call.scope, hint="convert program.run_decompositions()")
                result: Any = self._inlined(to, call, args[INLINED[call.target] :])
            else:
                kwargs = {name: self._resolved(argument, values) for name, argument in call.kwargs.items()}
                numbers = bool(args) and all(isinstance(each, int | float) for each in args)  # sizes that are known
                result = fold(on_values, call.target, args, kwargs) if numbers else NotImplemented
                if result is NotImplemented:
                    result = to.call(call.target, tuple(args), kwargs, Place(call.scope))
            _bind(call.outputs, result, values)

    def _inlined(self, to: Recorder, call: Call, args: list[Any]) -> Any:
        match args:
            case [Graph(inputs=names, outputs=outputs) as body, *given] if (
                len(given) == len(names) and not call.kwargs and (outputs or not isinstance(call.outputs, Ref))
            ):
                inner = dict(zip(names, given, strict=True))
                self._calls(to, body, inner)
                results = [self._resolved(output, inner) for output in outputs]
                return results[0] if len(results) == 1 else results
        raise damaged(f"{call.target} is called with arguments that PyTorch does not write")

    def _resolved(self, argument: Any, values: Mapping[str, Any]) -> Any:
        if isinstance(argument, Ref):
            if argument.name not in values:
                raise damaged("uses a value that no node computes", where=argument.name)
            return values[argument.name]
        if isinstance(argument, list | tuple):
            return [self._resolved(item, values) for item in argument]
        return argument


def _bind(outputs: Any, result: Any, values: dict[str, Any]) -> None:
    """Assign values to the output names of a call."""
    if isinstance(outputs, Ref):
        values[outputs.name] = result
    elif isinstance(outputs, list | tuple):
        results = result if isinstance(result, list | tuple) else [result] * len(outputs)
        if len(results) < len(outputs):
            raise damaged(f"has {len(results)} results, but {len(outputs)} are used")
        for output, each in zip(outputs, results, strict=False):
            _bind(output, each, values)
