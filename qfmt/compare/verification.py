"""`qfmt.verify`: compares a file with its source, constant by constant, node by node, and as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arithmetic import any_numbers
from ..backstop import limited
from ..engines import ENGINES, engine_of
from ..errors import MissingPackageError, QfmtError, RunError, SourceError, some
from ..file.copies import downloaded
from ..frontends.sources import sniff
from ..frontends.witness import Computed, Witness, computed
from ..interpreter import trace
from ..memory import Memory, limit_for
from ..model import Graph, Model
from ..passes.same_types import has_same_types
from ..rules import require_sound
from ..urls import Named, Place, Url, place
from .comparison import Comparison
from .converted import Converted
from .lowered import Lowered, as_named_in, has_inputs_of, inputs_inside, is_lowered, likenesses
from .onnx_form import in_terms_of_onnx
from .report import Report

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

SAMPLES = 4


@any_numbers()
def verify(
    source: Named,
    model: Model | Named,
    inputs: Mapping[str, ArrayLike] | None = None,
    *,
    engine: str | None = None,
    samples: int = SAMPLES,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Report:
    """Compare a model, or a `.qfb`, with its source: a file of TorchScript, torch.save, torch.export or ONNX.

    A model that was lowered to integers may also be compared with the `.qfb` that it was made from. Its nodes differ
    from those of the source: each node that computes a tensor of the source is compared. `inputs` are then those of
    the source, or the integer inputs of the model.

    Constants are compared bit by bit with a fresh conversion; those of ONNX also with the onnx package's reader. Then
    torch runs the calls of the source under `engine` (one of TORCH_ENGINES, default: the one whose rules the file
    states), or ONNX Runtime runs the model's nodes (one of RUNTIMES, default: not optimized). Each node of the file
    gets the inputs that the source's node got. Both run in a worker process. torch never gets the file, only the calls
    that qfmt found, of operators that qfmt knows, and the parameters that qfmt read.
    `inputs` maps names to arrays; without it, `samples` pseudo-random inputs are drawn, of `input_shapes` where the
    file leaves sizes open. Without torch, nodes are skipped, and the report says so, unless they are not those of the
    source; without ONNX Runtime, the reference implementation of the onnx package replaces it.

    Raises MissingFileError, ValidityError for a graph that breaks rules, SourceError if the source cannot be converted,
    RunError if the inputs do not fit, if the model begins inside the source, or if a call cannot be run with this
    engine, MissingPackageError without torch if the nodes are not those of the source.
    """
    from ..file.reader import load

    file = model if isinstance(model, Model) else load(model)
    require_sound(file)
    if not isinstance(source, str | PathLike | Url):
        hint = "save the module with torch.jit.save(torch.jit.trace(module, inputs), path) and verify that file"
        raise SourceError(f"verify expects the path of a file, not a {type(source).__name__}", hint=hint)
    with downloaded(named := place(source)) as path:
        comparison = _compared(path, named, file, inputs, engine, samples, input_shapes or {})
        return comparison.report(named)


def _compared(
    path: Path,
    named: Place,
    file: Model,
    inputs: Mapping[str, ArrayLike] | None,
    engine: str | None,
    samples: int,
    shapes: Mapping[str, Sequence[int]],
) -> Comparison:
    """The comparison of a file with its source, which the user named so."""
    lowered: Lowered | None = None
    try:
        own = FileWitness(named, engine) if sniff(path).key == "qfb" else None
        if is_lowered(file) and not (own and is_lowered(own.model)):
            lowered = (
                Lowered(as_named_in(own.model.graph, file), own)
                if own
                else _before_lowering(path, file, engine, shapes)
            )
            exported = lowered.witness.model
            is_quantized = any(tensor.quantization for tensor in exported.tensors.values())
            if is_quantized and _form(file) != _form(exported) == (True, True):
                what = "the source is an export to ONNX, which may round at other places"
                lowered.notes.append(f"{what}: to be sure, give the .qfb or the source that FILE was made from")
        witness = lowered.witness if lowered else own or _witness(path, file, engine)
        if own and not lowered and _form(own.model) != _form(file) and own.model.content_id() != file.content_id():
            what = "is a .qfb file, whose nodes have another form than FILE"
            raise SourceError(what, hint="exchange the two, or give the file that both were made from")
    except QfmtError as error:
        error.hint = error.hint or "give the PyTorch file or ONNX model that FILE was made from or exported to"
        raise error.at(str(named)) from None
    if witness.model.no_graph:  # nothing will be run, so everything that is stored counts
        relation = Converted(_tensors_of(file, witness.model), witness)
        if file.nodes:
            relation.notes.append("the file has a graph, and the source has none: only what both store was compared")
        comparison = Comparison(relation)
        comparison.skipped = "the source has no graph"
        return comparison
    if not lowered and (inside := inputs_inside(witness.model.graph, file.graph)):
        what = f"computes {some(inside)}, which FILE takes as input"
        hint = "compare an integer-only .qfb with the source, and the integer-only ONNX model with that .qfb"
        raise RunError(what, where=str(named), hint=hint)
    comparison = Comparison(lowered or (Converted(file, witness) if own else _relation(path, file, witness, engine)))
    witness = comparison.witness
    try:
        comparison.version = witness.open()
        comparison.reread()
        if comparison.relation.has_same_inputs(comparison.weights):
            comparison.run(inputs, samples, shapes)
        else:
            comparison.skipped = "file and source do not have the same inputs"
    except MissingPackageError as error:
        if comparison.relation.foreign or lowered:  # what their nodes state is not that of the source
            raise
        comparison.skipped = f"{error}; constants were compared with a fresh conversion only"
    return comparison


def _relation(path: Path, file: Model, witness: Witness, engine: str | None) -> Converted:
    """Relate a file to its source, or to a source of another kind, as m.onnx to the m.pt that it was made from.

    If the engine follows rules other than those of the file, the source is converted with the engine's. Outputs that
    differ only by the rules count as stated.
    """
    foreign = _form(witness.model) != _form(file) or _are_exports_of_other_types(witness.model, file)
    engines, notes = _rules_of_engine(path, file, witness, engine)
    rules = (engines.model, witness.model) if engines else None
    witness = engines if engines is not None and foreign else witness
    if foreign and witness.name == "onnx":
        file = in_terms_of_onnx(file, witness.model)
    relation = Converted(file, witness, foreign=foreign, rules=rules)
    relation.notes.extend(notes)
    return relation


def _rules_of_engine(path: Path, file: Model, witness: Witness, engine: str | None) -> tuple[Witness | None, list[str]]:
    """The source, converted with the rules of the engine that runs it, and a note; None if the file states no other
    rules."""
    rules = engine_of(witness.engine)
    if file.engine not in ENGINES or file.engine == rules:
        return None, []
    told = f"the file states the rules of {file.engine}, but {witness.name} uses those of {rules}"
    note = f"{told}: outputs that differ only by these rules count as stated"
    return _witness(path, file.replace(engine=rules), engine), [note]


def _form(model: Model) -> tuple[bool, bool]:
    """Whether a model was made from ONNX, and from ONNX that qfmt wrote. Nodes of different forms are not compared."""
    is_onnx = model.source.get("format") == "onnx"
    return is_onnx, is_onnx and model.source.get("framework") == "qfmt"


def _are_exports_of_other_types(a: Model, b: Model) -> bool:
    """Whether qfmt wrote two ONNX models, one of them with `--same-types`."""
    return _form(a) == _form(b) == (True, True) and (has_same_types(a, b) or has_same_types(b, a))


def _witness(path: Path, file: Model, engine: str | None) -> Witness:
    if file.engine not in ENGINES:  # a file may state an engine that no source is converted with
        file = file.replace(engine="")
    kind = sniff(path)
    with limited(path.stat().st_size, str(path)):
        return kind.reader.witness(path, file, engine)


def _tensors_of(file: Model, source: Model) -> Model:
    """A file as an archive: its constants, and what it states of other tensors of the source, which has no graph."""
    if not file.nodes:
        return file
    held = {
        name: tensor if tensor.is_constant else replace(tensor, shape=source.tensors[name].shape)
        for name, tensor in file.tensors.items()
        if tensor.is_constant or name in source.tensors
    }
    dynamic = {key: value for key, value in source.source.items() if key == "dynamic_inputs"}  # the nodes tell it
    return file.replace(graph=Graph((), (), (), held), source={**file.source, **dynamic})


def _before_lowering(path: Path, file: Model, engine: str | None, shapes: Mapping[str, Sequence[int]]) -> Lowered:
    """A lowered file and its source, with the first conversion options that yield the file's inputs; rather with those
    that yield the file: a `.qfb` in between may not have stated the sizes of inputs, which rules may depend on."""
    found: Lowered | None = None
    converted: Witness | None = None
    refused: SourceError | None = None
    for likeness in likenesses(file, shapes):
        try:
            witness = _witness(path, likeness, engine)
        except SourceError as error:
            refused = refused or error
            continue
        named = as_named_in(witness.model.graph, file)
        if has_inputs_of(witness.model, named):
            rules, notes = _rules_of_engine(path, likeness, witness, engine)
            relation = Lowered(named, witness, rules.model if rules else None)
            relation.notes.extend(notes)
            if witness.model.no_graph or (not relation.unknown() and relation.is_lowered_anew):
                return relation
            found = found or relation
        converted = converted or witness
    if converted is None:
        assert refused is not None
        raise refused
    return found or Lowered(file, converted)


class FileWitness(Witness):
    """A `.qfb` as a source: qfmt itself reads and runs it, no other program."""

    name = "qfmt"

    def __init__(self, path: Place, engine: str | None = None) -> None:
        from ..file.reader import load

        if engine is not None:
            raise RunError(f"--engine {engine} does not apply to a .qfb, which states its rules", hint="drop --engine")
        self.model = load(path)
        self.engine = "reference"

    def open(self) -> str:
        from .. import __version__

        return f"qfmt {__version__}"

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Computed]:
        """Every computed tensor by name, and the inputs. RunError if they take more memory than a run may."""
        tensors = self.model.tensors
        values: dict[str, NDArray[Any]] = {}
        seen = {name: computed(array, tensors[name]) for name, array in inputs.items()}
        given = sum(data.nbytes for each in self.model.graph.constants() for _, data in each.stored())
        memory = Memory(limit_for(given + sum(array.nbytes for array in inputs.values())), "use a smaller input")
        for node in trace(self.model, inputs, values):
            made = {name: computed(values[name], tensors[name]) for name in node.outputs if name}
            memory.require(nbytes := sum(value.array.nbytes for value in made.values()))
            memory.held += nbytes
            seen.update(made)
        return seen
