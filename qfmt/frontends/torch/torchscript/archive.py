"""A TorchScript archive: its pickles, its tensors, its code, each read on demand."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, NamedTuple

from ....budget import Budget
from ....errors import SourceError, damaged
from ....threads import cached_property
from ...harmless import Inert
from ...pickles import unpickle
from ...stored import Storage
from ...zips import PytorchZip
from .code import Class, Function, Library


class Argument(NamedTuple):
    """An argument of `forward`: its TorchScript type, and whether a caller may omit it."""

    name: str
    annotation: str
    optional: bool


class Archive:
    """A TorchScript archive, on disk or as bytes, of PyTorch 1.3 to today: traced, scripted or frozen.

    Opening it executes nothing. Raises SourceError if the file is damaged.
    """

    def __init__(self, source: str | PathLike[str] | bytes, budget: Budget | None = None) -> None:
        self.zip = PytorchZip(source, budget)
        self.root, self.version, self.budget = self.zip.root, self.zip.version, self.zip.budget
        self.live: Any = None
        """The restored module tree, kept by the evaluator."""
        code = {
            name.removeprefix(self.root): name
            for name in self.zip.entries
            if name.startswith(f"{self.root}code/") and name.endswith(".py")
        }
        self.library = Library(code, self.zip.read, self.budget)

    @cached_property
    def data(self) -> Any:
        """The pickled module: an Inert tree, as stored."""
        return self._unpickle("data")

    @cached_property
    def constants(self) -> tuple[Any, ...]:
        """The stored constants CONSTANTS.c0, CONSTANTS.c1, … of the code."""
        if f"{self.root}constants.pkl" not in self.zip.entries:
            return ()
        constants = self._unpickle("constants")
        if not isinstance(constants, tuple | list):
            raise SourceError("does not hold a tuple of constants", where="constants.pkl")
        return tuple(constants)

    @cached_property
    def root_class(self) -> Class:
        """The class of the module that was saved."""
        if not isinstance(self.data, Inert):
            raise damaged("does not hold a module", where="data.pkl")
        return self.library.class_of(self.data.class_name)

    @cached_property
    def forward(self) -> Function:
        """The code of the network. SourceError if it is not all that a call of the module runs."""
        function = self.root_class.method("forward")
        if function is None:
            others = ", ".join(sorted(self.root_class.methods)) or "none"
            raise SourceError(f"the module has no `forward`, so there is nothing to convert (methods: {others})")
        if self.root_class.has_hooks:
            raise SourceError("the module has hooks, which run with its `forward`", hint="remove them before saving")
        return function

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """The arguments of `forward`, without `self`."""
        return tuple(Argument(*argument) for argument in self.forward.signature()[1:])

    def example_inputs(self) -> Sequence[Any]:
        """The example inputs of a traced module (PyTorch 2.x keeps them); tensors have a shape but no data.

        Empty if the archive does not have them.
        """
        if f"{self.root}traced_inputs.pkl" not in self.zip.entries:
            return ()
        traced = self._unpickle("traced_inputs", charged=False)
        inputs = traced.get("forward", ()) if isinstance(traced, dict) else ()
        return inputs if isinstance(inputs, list | tuple) else ()

    def _unpickle(self, name: str, *, charged: bool = True) -> Any:
        """`charged`: whether its tensors have bytes that count."""

        def storage(key: str, dtype: str) -> Storage:
            return self.zip.storage(f"{self.root}{name}/{key}", dtype, self.budget if charged else None)

        data = self.zip.read(f"{self.root}{name}.pkl")
        return unpickle(data, storage, where=f"{name}.pkl", budget=self.budget)
