"""DEST of `qfmt convert`: what its name says, and how it is written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import qfmt

from ..errors import DestinationError, InexpressibleNodesError
from ..notation import in_shell, size
from ..urls import Place, place, size_of

if TYPE_CHECKING:
    from ..model import Model


class Destination(NamedTuple):
    """The path and the kind of the result; the name determines the kind. `place` is the folder of a C program."""

    kind: str
    place: Place
    program: str = ""

    @classmethod
    def named(cls, text: str) -> Destination:
        path, is_folder = place(text), text.endswith(("/", os.sep))
        suffix = path.suffix.lower()
        if path.name.lower() in (".qfb", ".onnx", ".c"):
            raise DestinationError("has no name before the suffix", where=text, hint=f"add one, as in model{path.name}")
        if suffix in (".qfb", ".onnx") and not is_folder:
            return cls(suffix[1:], path)
        if suffix == ".c" and not is_folder:
            if not path.stem.isidentifier():
                raise DestinationError(
                    f"{path.stem!r} is not a valid C identifier", where=text, hint="use letters, digits and _"
                )
            if path.parent == Path():
                hint = f"name a folder for them, as in {path.stem}/{path}"
                raise DestinationError("a C program consists of multiple files", where=text, hint=hint)
            return cls("c", path.parent, path.stem)
        if is_folder or not path.suffix or (isinstance(path, Path) and path.is_dir()):
            return cls("c", path)
        hint = "end the name in .qfb, .onnx or .c, or in / for a folder of C files"
        raise DestinationError(f"qfmt does not write {path.suffix} files", where=text, hint=hint)

    @property
    def bytes(self) -> int:
        parts = self.place.iterdir() if isinstance(self.place, Path) and self.kind == "c" else [self.place]
        return sum(size_of(part) or 0 for part in parts)

    @property
    def next(self) -> str:
        """A command for the user's next step."""
        return in_shell("make -C" if self.kind == "c" else "qfmt inspect", str(self.place))

    def write(
        self,
        model: Model,
        *,
        shard_size: int | None,
        for_onnx: dict[str, Any],
        sizes: dict[str, tuple[int, ...]],
        compact: bool,
    ) -> str:
        """Write the model, and say how. `sizes` are shapes of the inputs of a C program that the model leaves open."""
        if self.kind == "qfb":
            return self._write_qfb(model, shard_size)
        return self._write_onnx(model, for_onnx) if self.kind == "onnx" else self._write_c(model, sizes, compact)

    def _write_qfb(self, model: Model, shard_size: int | None) -> str:
        from ..rules import RULES

        shards = qfmt.save(model, self.place, shard_size=shard_size)
        written = f"{len(shards)} shards of {size(sum(shards))}, " if shards else ""
        return f"{written}checked against {len(RULES)} rules"

    def _write_onnx(self, model: Model, options: dict[str, Any]) -> str:
        from ..backends.onnx import write_onnx

        try:
            return f"opset {write_onnx(model, self.place, **options)}"
        except InexpressibleNodesError as error:
            raise error.at(str(self.place)) from None

    def _write_c(self, model: Model, sizes: dict[str, tuple[int, ...]], compact: bool) -> str:
        from ..backends.c import write_c

        try:
            return f"{len(write_c(model, self.place, name=self.program, shapes=sizes, compact=compact))} files"
        except DestinationError as error:
            name = str(self.place)
            if model.engine != "integer" and not self.program and Path(name).name.strip("."):  # not . and ..
                name += "NAME.qfb" if name.endswith("/") else ".qfb"  # of a folder by URL
                error.hint = f"for a .qfb file use the name {name}; for a C program {error.hint}"
            raise
