"""Files in which one field is missing that FlatBuffers requires (F6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from qfmt.file.schema import TABLES

from ..altered import Base, Record, grid, numbers, tensor
from .case import FLOAT32, Bases, Refused

ALIKE = ("Model.graph", "Observed.observer", "Observed.minimum", "Graph.nodes", "Graph.outputs", "Node.inputs",
         "KeyValue.key", "TestVector.inputs", "Proof.low")  # fmt: skip
"""Required fields without a file here: `no-graph` is one, the others stand beside a field of the same kind."""


def cases(bases: Bases) -> Iterator[Refused]:
    """One field is missing that FlatBuffers requires; `no-graph` is another."""
    level = {"scale": {"dtype": FLOAT32, "bytes": b"\0\0\0?"}}
    observed = {"observer": "MinMaxObserver", "minimum": [0.0], "maximum": [1.0]}
    codes = numbers("g", "scale", new=True, dtype=3, shape=[3, 2], bytes=b"123456", quantization=level)
    wide = grid("x", observed=observed)

    def unchanged(record: Record) -> None:
        pass

    def holder(record: Record, table: str) -> Record:
        """The first table of a kind, in depth-first order."""
        graph = record["graph"]
        found: Record = {
            "Model": record,
            "Graph": graph,
            "Buffer": record["buffers"][-1],
            "Tensor": graph["tensors"][-1],
            "Node": graph["nodes"][-1],
            "Attribute": (graph["nodes"][-1]["attributes"] or [{}])[0],
            "KeyValue": (record["metadata"] or [{}])[0],
            "TestVector": record["vectors"][0],
            "TestValue": record["vectors"][0]["outputs"][0],
            "Quantization": tensor(record, "x")["quantization"],
            "Observed": tensor(record, "x")["quantization"].get("observed") or {},
            "Proof": graph["nodes"][1].get("proof") or {},
            "Shard": (record["shards"] or [{}])[-1],
        }[table]
        return found

    def without(of: Base, table: str, field: str, before: Callable[[Record], object]) -> Refused:
        def change(record: Record) -> None:
            before(record)
            holder(record, table)[field] = None

        return Refused(f"no-{table}-{field}".lower(), "F6", f"A {table} without {field}", of.changed(change))

    special = {"Proof": bases.integers, "Shard": bases.sharded}
    for table, fields in TABLES.items():
        for field in fields:
            if field.required and table != "SecondLevel" and f"{table}.{field.name}" not in ALIKE:
                of, before = special.get(table, bases.sound), wide if table == "Observed" else unchanged
                yield without(of, table, field.name, before)
    level["scale"] = None
    yield Refused("no-secondlevel-scale", "F6", "A SecondLevel without scale", bases.sound.changed(codes))
