"""Names and uses of the values of an exported program: the cost is in proportion to its calls."""

from __future__ import annotations

import tracemalloc

import pytest

from qfmt.budget import Budget
from qfmt.errors import BudgetError
from qfmt.frontends.torch.exported.document import Call, Graph, Program, Ref, StoredInput
from qfmt.frontends.torch.exported.memory import Aliases, live, written
from qfmt.frontends.torch.exported.names import recovered


def program(calls: list[Call], **stored: str) -> Program:
    held = {value: StoredInput("weights", name) for value, name in stored.items()}
    return Program(Graph((), (), tuple(calls), {}), ("x",), held, {}, (Ref("out"),), ())


def test_views_that_are_written_to() -> None:
    """Every writer was listed for every view: 72 MB for 6000 calls."""
    views = [Call("aten::view", (Ref("w"),), {}, Ref(f"v{at}"), "") for at in range(3000)]
    writers = [Call("aten::add_", (Ref(f"v{at}"), Ref(f"s{at}")), {}, Ref(f"a{at}"), "") for at in range(3000)]
    made = program([*views, *writers, Call("aten::relu", (Ref("v0"),), {}, Ref("out"), "")], w="weight")
    tracemalloc.start()
    try:
        aliases = Aliases(made.graph)
        reached, changed = live(made, aliases).values, list(written(made, aliases))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reached == {"w", "v0", "out", *(f"{letter}{at}" for letter in "vs" for at in range(3000))}
    assert changed == ["w"]
    assert peak < 8 << 20


def test_names_of_anonymous_tensors() -> None:
    """By module and shape; without a module of its own, by a shape that no other has."""
    calls = [
        Call("aten::linear", (Ref("x"), Ref(f"w{at}"), Ref(f"b{at}")), {}, Ref(f"y{at}"), f"m{at}") for at in range(3)
    ]
    stored = {
        f"{letter}{at}": f"_frozen_param{at + offset}" for letter, offset in (("w", 0), ("b", 10)) for at in range(3)
    }
    sizes: dict[str, tuple[int, ...]] = {"m0.weight": (4, 4), "m0.bias": (4,), "m1.kernel": (4, 4), "other": (5,)}
    sizes |= {stored[value]: (4, 4) if value[0] == "w" else (4,) for value in stored}
    sizes[stored["b2"]] = (5,)
    unread = ["m0.weight", "m0.bias", "m1.kernel", "other"]
    names = recovered(program(calls, **stored), unread, sizes.get, Budget(None))
    assert names == {
        "w0": "m0.weight", "b0": "m0.bias", "w1": "m1.kernel", "b1": "m1.bias", "w2": "m2.weight", "b2": "other"
    }  # fmt: skip


def test_a_long_chain_behind_many_tensors() -> None:
    held = {f"w{at}": f"_frozen_param{at}" for at in range(1000)}
    first = Call("aten::view", ([Ref(value) for value in held],), {}, Ref("v0"), "")
    chain = [Call("aten::view", (Ref(f"v{at}"),), {}, Ref(f"v{at + 1}"), "") for at in range(1000)]
    with pytest.raises(BudgetError, match="operations"):
        recovered(program([first, *chain], **held), [], {}.get, Budget(100_000))
