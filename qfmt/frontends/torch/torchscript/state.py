"""The contents of a TorchScript archive besides its code: the tensors and packed parameters of its modules, by name."""

from __future__ import annotations

from typing import Any

from ...stored import StoredTensor
from ..calls import Packed, PackedState
from .archive import Archive
from .evaluator import restored
from .objects import ScriptObject


def state(archive: Archive) -> dict[str, Any]:
    """Tensors and packed parameters by their place in the module tree, each once; and the constants of the code.

    For quantized modules also their scale and zero point, as in a state_dict.
    """
    root, constants, _ = restored(archive)
    found: dict[str, Any] = {}
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        path, value = waiting.pop()
        archive.budget.spend()
        if isinstance(value, StoredTensor | Packed | PackedState | list | tuple | dict):
            if id(value) not in seen:
                found[path] = value
        elif isinstance(value, ScriptObject) and id(value) not in seen:
            waiting += [(f"{path}.{name}" if path else str(name), each) for name, each in value.attributes.items()]
        elif type(value) in (int, float) and path.endswith((".scale", ".zero_point")):
            found[path] = value
        seen.add(id(value))
    found |= {
        f"CONSTANTS.c{index}": value
        for index, value in enumerate(constants)
        if isinstance(value, StoredTensor | Packed | PackedState) and id(value) not in seen
    }
    return dict(sorted(found.items()))
