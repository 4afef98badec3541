"""The offset of each buffer in the arena of its width: buffers that are live at the same time do not overlap."""

from __future__ import annotations

from collections.abc import Iterable

from .plan import Plan
from .views import Buffer

WIDTHS = (1, 2, 4, 8)


def place(plan: Plan) -> dict[int, int]:
    """Set the offset of every buffer; the result is how many elements the arena of each width has.

    The largest first, each at the lowest offset that is free during its lifetime. There is an arena for each
    width of elements, because C does not allow memory of one type to be used as another, except for bytes.
    """
    found = dict.fromkeys(operand.view.buffer for step in plan.steps for operand in (*step.operands, *step.scratch))
    buffers = [buffer for buffer in found if not buffer.external]
    sizes = {}
    for width in WIDTHS:
        own = sorted((each for each in buffers if each.width == width), key=lambda b: (-b.size, b.first, b.name))
        placed: list[Buffer] = []
        for buffer in own:
            buffer.offset = _lowest(buffer, placed, max(1, plan.alignment // width))
            placed.append(buffer)
        if placed:
            sizes[width] = max(each.offset + each.size for each in placed)
    return sizes


def _lowest(buffer: Buffer, placed: Iterable[Buffer], step: int) -> int:
    rivals = [each for each in placed if each.first <= buffer.last and buffer.first <= each.last]
    offset = 0
    for rival in sorted(rivals, key=lambda each: each.offset):
        if rival.offset >= offset + buffer.size:
            break
        offset = max(offset, -(-(rival.offset + rival.size) // step) * step)
    return offset
