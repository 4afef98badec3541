"""An integer-only Model as a C program for that network: C99, static memory, only integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...errors import DestinationError, RunError
from ...interpreter import check_versions
from ...regular import resolved
from ...rules import require_sound
from ...urls import Named, Url, place

if TYPE_CHECKING:
    from ...model import Model


def write_c(
    model: Model,
    folder: Named,
    *,
    name: str = "",
    shapes: Mapping[str, Sequence[int]] | None = None,
    compact: bool = False,
) -> list[str]:
    """Write `NAME.h`, `NAME.c`, `NAME_weights.c`, `main.c` and a Makefile into a new folder; the result lists them.

    `NAME_run(inputs…, outputs…)` computes what `model.run` computes, on every integer. `name` is the folder's if not
    given. `shapes` are those of inputs whose sizes are not all known; a first dimension that has only a name is 1.
    `compact` does not pad rows of weights with zeros, which needs less memory and more time. Test vectors of the
    model become `NAME_check.c`, whose `NAME_check()` counts the outputs that differ.
    A folder that this function wrote for the same name is replaced, with all that was compiled or changed in it. Raises
    DestinationError for any other folder that is not empty, for inputs without a fixed shape and for float tensors,
    InexpressibleNodesError with every node that has no form in C.
    """
    if model.no_graph:
        raise RunError(model.no_graph)
    check_versions(model)
    require_sound(model)
    from ...passes.proofs import require_proven
    from .folder import check, write
    from .names import program_name

    if isinstance(path := place(folder), Url):
        raise DestinationError("a C program consists of multiple files", where=str(path), hint="name a local folder")
    require_proven(model, ("P2",))  # the stated ranges of sums determine what fits in int32 in C
    name = name or resolved(path).name
    check(path, program_name(name))
    texts = program(model, name, shapes, compact=compact)
    write(path, program_name(name), texts)
    return list(texts)


def program(
    model: Model, name: str, shapes: Mapping[str, Sequence[int]] | None = None, *, compact: bool = False
) -> dict[str, str]:
    """The texts of the files, by name."""
    from .emit import files
    from .layers import write_nodes
    from .names import Names, program_name
    from .plan import Plan
    from .static import fixed

    plan = Plan(fixed(model, shapes or {}), Names(program_name(name)), compact)
    write_nodes(plan)
    return files(plan)
