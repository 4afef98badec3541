"""The arguments of `forward`. Tensors become inputs of the graph, and so does each tensor of a tuple, list or dict.

The type determines the tensors of a tuple (`hidden: Tuple[Tensor, Tensor]` becomes `hidden.0` and `hidden.1`); for
lists and dicts, only an example does, which a trace keeps.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ....errors import ControlFlowError
from ...stored import PerTensor, StoredTensor
from ..network import own_names
from ..values import RANK_NAMES, InputSpec
from .archive import Archive, Argument
from .code import syntax_of_expression

DEPTH_LIMIT = 8
"""The deepest nesting of tuples."""


class Leaf(NamedTuple):
    """One tensor of an argument: its name in the graph, and the example of the trace, if any."""

    name: str
    example: StoredTensor | None


Form = Leaf | Sequence["Form"] | Mapping[str, "Form"]
"""An argument with a leaf for each tensor."""


class Arguments:
    """The arguments of an archive's `forward` that become inputs; those with a default keep it.

    Raises ControlFlowError for arguments of other types.
    """

    def __init__(self, archive: Archive) -> None:
        examples = [*archive.example_inputs(), *[None] * len(archive.inputs)]
        pairs = zip(archive.inputs, examples, strict=False)
        self.forms = {each.name: _form(each, example) for each, example in pairs if not each.optional}
        self.leaves = [leaf for form in self.forms.values() for leaf in _leaves(form)]

    def specs(self) -> list[InputSpec]:
        """The inputs, with the ranks and dtypes of a trace; its sizes are an example, so they stay open."""
        return [self._spec(leaf) for leaf in self.leaves]

    def _spec(self, leaf: Leaf) -> InputSpec:
        if leaf.example is None:
            return InputSpec(leaf.name)
        example = tuple(leaf.example.shape)
        names = RANK_NAMES.get(len(example), (None,) * len(example))
        shape = own_names(leaf.name, names, len(self.leaves))
        dtype = leaf.example.dtype if leaf.example.quantizer is None else "float32"
        return InputSpec(leaf.name, shape, dtype, example=example)

    def example_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes that the network was traced with, by input; empty for a scripted one."""
        return {leaf.name: tuple(leaf.example.shape) for leaf in self.leaves if leaf.example is not None}

    def example_quantization(self) -> dict[str, tuple[float, int, str]]:
        """Scale, zero point and dtype of the quantized tensors that the network was traced with."""
        return {
            leaf.name: (leaf.example.quantizer.scale, leaf.example.quantizer.zero_point, leaf.example.dtype)
            for leaf in self.leaves
            if leaf.example is not None and isinstance(leaf.example.quantizer, PerTensor)
        }

    def filled(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, with the values of the inputs."""
        return {name: _filled(form, values) for name, form in self.forms.items()}


def _form(argument: Argument, example: Any) -> Form:
    try:
        written = syntax_of_expression(argument.annotation)
        return _of_type(argument.name, written, example, 0)
    except (LookupError, SyntaxError, RecursionError):
        what = f"`forward` has the argument {argument.name}: {argument.annotation}"
        only = "only tensors, and tuples of them, can be inputs; lists and dicts only in a trace, which has an example"
        hint = "wrap the model in a module whose inputs are tensors, and save that"
        raise ControlFlowError(f"{what}; {only}", hint=hint) from None


def _of_type(name: str, written: ast.expr, example: Any, depth: int) -> Form:
    """LookupError if it is not a type of only tensors."""
    if isinstance(written, ast.Name) and written.id == "Tensor":
        return Leaf(name, example if isinstance(example, StoredTensor) else None)
    if not isinstance(written, ast.Subscript) or not isinstance(written.value, ast.Name) or depth == DEPTH_LIMIT:
        raise LookupError
    parts = written.slice.elts if isinstance(written.slice, ast.Tuple) else [written.slice]
    match written.value.id, parts:
        case "Optional", [inner]:
            return _of_type(name, inner, example, depth + 1)
        case "Tuple", _:
            given = example if isinstance(example, tuple) and len(example) == len(parts) else [None] * len(parts)
            return tuple(
                _of_type(f"{name}.{i}", part, each, depth + 1)
                for i, (part, each) in enumerate(zip(parts, given, strict=True))
            )
        case "List", [inner] if isinstance(example, list):
            return [_of_type(f"{name}.{i}", inner, each, depth + 1) for i, each in enumerate(example)]
        case "Dict", [_, inner] if isinstance(example, dict) and all(isinstance(key, str) for key in example):
            return {key: _of_type(f"{name}.{key}", inner, each, depth + 1) for key, each in example.items()}
    raise LookupError


def _leaves(form: Form) -> Iterator[Leaf]:
    if isinstance(form, Leaf):
        yield form
        return
    for part in form.values() if isinstance(form, Mapping) else form:
        yield from _leaves(part)


def _filled(form: Form, values: Mapping[str, Any]) -> Any:
    if isinstance(form, Leaf):
        return values[form.name]
    if isinstance(form, Mapping):
        return {key: _filled(part, values) for key, part in form.items()}
    return type(form)(_filled(part, values) for part in form)  # type: ignore[call-arg]
