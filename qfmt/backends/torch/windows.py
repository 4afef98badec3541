"""Windows in torch's form: those of convolutions, and those of pools."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .emit import Lacks, Site


class Geometry(NamedTuple):
    """The windows of a convolution in generated code; a transposed one has `output_padding`."""

    strides: list[int]
    pads: list[int]
    dilations: list[int]
    group: int
    output_padding: list[int] | None = None

    @classmethod
    def of(cls, s: Site) -> Geometry:
        """The windows of a node; Lacks if torch has no such windows: it pads both sides of a transposed one equally."""
        transposed = "output_padding" in s.node.attributes
        made = cls(*(s.attribute(name) for name in cls._fields[: 4 + transposed]))
        if len(made.strides) > 3:
            raise Lacks("torch supports windows of at most three dimensions")
        added = zip(made.output_padding or (), made.strides, made.dilations, strict=False)
        if any(width >= max(stride, dilation) for width, stride, dilation in added):
            raise Lacks("torch adds less to an output than a stride or a dilation")
        return made.even() if transposed else made

    def even(self) -> Geometry:
        """The same, if both sides are padded equally; Lacks if they are not, or by less than 0."""
        rank = len(self.strides)
        if self.pads[:rank] != self.pads[rank:] or min(self.pads, default=0) < 0:
            raise Lacks("torch pads both sides equally, by 0 or more")
        return self

    @property
    def name(self) -> str:
        """Torch's name of the convolution."""
        return f"conv{'' if self.output_padding is None else '_transpose'}{len(self.strides)}d"

    def packing(self) -> tuple[Any, ...]:
        """The arguments of torch's packing functions, for windows that are padded equally."""
        padding = () if self.output_padding is None else (self.output_padding,)
        return self.strides, self.pads[: len(self.strides)], *padding, self.dilations, self.group

    def arguments(self, parts: int = 1) -> tuple[Any, ...]:
        """Torch's convolution of windows that are padded equally, each group in that many parts."""
        pads, group = self.pads[: len(self.strides)], self.group * parts
        if self.output_padding is None:
            return self.strides, pads, self.dilations, group
        return self.strides, pads, self.output_padding, group, self.dilations


def window(s: Site) -> tuple[list[int], list[int], list[int], list[int], bool]:
    """Kernel, strides, pads, dilations and ceil_mode of a pool in torch's form; Lacks if there is none."""
    kernel, pads = s.attribute("kernel_shape"), s.attribute("pads")
    rank = len(kernel)
    halves = all(2 * pad <= size for pad, size in zip(pads, kernel, strict=False))
    if pads[:rank] != pads[rank:] or not halves or rank > 3:
        raise Lacks("torch does not support this window")
    return kernel, s.attribute("strides"), pads[:rank], s.attribute("dilations"), bool(s.attribute("ceil_mode"))


def plain_window(s: Site) -> tuple[list[int], list[int], list[int], bool]:
    """The same for an average pool, which torch supports without dilations."""
    kernel, strides, pads, dilations, ceil = window(s)
    if any(step != 1 for step in dilations):
        raise Lacks("torch does not support this window")
    return kernel, strides, pads, ceil


def of_rank(name: str, rank: int) -> Any:
    """`aten::avg_pool2d` and its like, for one to three spatial dimensions."""
    if not 1 <= rank <= 3:
        raise Lacks("torch pools 1 to 3 dimensions")
    return getattr(torch.ops.aten, f"{name}{rank}d").default
