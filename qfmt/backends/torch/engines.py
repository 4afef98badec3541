"""The engines by name, and which of them `auto` takes."""

from __future__ import annotations

from ...model import Model
from .emit import Engine
from .native import native_engine
from .reference import LOOK_UP, NUMPY, REFERENCE

REFERENCE_ENGINE = Engine((REFERENCE, LOOK_UP, NUMPY), own=2)


def choose(model: Model, engine: str) -> tuple[str, Engine]:
    """The name of the engine that computes, and its tables."""
    name, _, kernels = engine.partition(":")
    if name == "native":
        made = native_engine(model.arithmetic, kernels)
        return f"native:{made.kernels}", made
    return "reference", REFERENCE_ENGINE
