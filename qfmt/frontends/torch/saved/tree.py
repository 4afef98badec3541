"""A pickled module as a tree of modules: the kind, attributes and path of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....budget import Budget
from ....errors import SourceError, damaged
from ....threads import cached_property
from ... import content
from ...harmless import Inert, plain
from ...stored import StoredTensor
from ..calls import Packed, PackedState
from ..torchscript import packing

DEPTH_LIMIT = 64

MODULE, MODULE_BYTES = 20, 1000
"""Operations and bytes of memory for a module, besides its attributes."""

CONV_STATE = (
    "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "transposed", "output_padding",
    "groups", "padding_mode", "weight", "bias", "scale", "zero_point", "training",
)  # fmt: skip
"""The fields of the tuple in the pickle of a quantized convolution: torch/ao/nn/quantized/modules/conv.py."""

HOLDERS = *content.HOLDERS, Packed, PackedState
"""The same of a module."""

_GROUPS = "_parameters", "_buffers", "_modules"

GRAPH_MODULES = ("torch.fx.graph_module.reduce_graph_module", "torch.fx.graph_module.deserialize_graphmodule")

_KINDS = (
    ("torch.ao.nn.intrinsic.quantized.dynamic.", "dynamic"),
    ("torch.ao.nn.quantized.dynamic.", "dynamic"),
    ("torch.ao.nn.quantized.reference.", "reference"),
    ("torch.nn.intrinsic.quantized.dynamic.", "dynamic"),
    ("torch.nn.quantized.dynamic.", "dynamic"),
    ("torch.ao.nn.intrinsic.quantized.", "quantized"),
    ("torch.ao.nn.quantized.", "quantized"),
    ("torch.nn.intrinsic.quantized.", "quantized"),
    ("torch.nn.quantized.", "quantized"),
    ("torch.ao.quantization.stubs.", "stubs"),
    ("torch.quantization.stubs.", "stubs"),
    ("torch.nn.modules.", "nn"),
)
"""The packages of PyTorch's modules, in every version, and our names for them."""


class Module:
    """One module. `kind` is "quantized.ConvReLU2d", "nn.MaxPool2d" or the like, "fx" for a module whose code is
    in the file, and "" for a class that is not PyTorch's. `path` is its place in the tree, "" for the root.

    `attributes` are parameters, buffers, packed parameters and everything else by name; `code` is that of a
    module of kind "fx", with the imports that its names come from; `source` is what its reader makes of them. `budget`
    is that of the conversion.
    """

    def __init__(
        self, class_name: str, path: str, attributes: dict[str, Any], children: dict[str, Module], budget: Budget
    ) -> None:
        self.budget = budget
        self.class_name = class_name
        self.path = path
        self.attributes = attributes
        self.children = children
        self.kind = _kind(class_name)
        self.code = ""
        self.imports = ""
        self.source: Any = None

    def __getitem__(self, name: str) -> Any:
        if name == "padding_mode" and name not in self.attributes:
            return "zeros"  # as torch supplies it to convolutions of PyTorch 1.0
        if name not in self.attributes:
            raise damaged(f"a {self.kind} has no `{name[:100]}`", where=self.path)
        return self.attributes[name]

    def below(self) -> Iterator[Module]:
        """This module and all those in it."""
        yield self
        for child in self.children.values():
            yield from child.below()

    @cached_property
    def packed(self) -> Packed | PackedState:
        """The packed parameters of a quantized convolution, linear or embedding."""
        if "transposed" in self.attributes:
            return self._packed_convolution()
        inner = self.children.get("_packed_params")
        for name in ("_packed_params", "_packed_weight"):
            if inner is not None and isinstance(value := inner.attributes.get(name), Packed | PackedState):
                return value
        raise damaged("has no packed parameters", where=self.path)

    def _packed_convolution(self) -> Packed:
        rank = len(self["stride"])
        geometry = [self["stride"], self._padding(rank)]
        if self["transposed"]:
            target = f"quantized::conv_transpose{rank}d_prepack"
            geometry += [self["output_padding"], self["dilation"]]
        else:
            target = f"quantized::conv{rank}d_prepack"
            geometry.append(self["dilation"])
        result = packing.apply(target, [self["weight"], self["bias"], *geometry, self["groups"]])
        if not isinstance(result, Packed):
            raise damaged("is a convolution with invalid parameters", where=self.path)
        result.path = _joined(self.path, "_packed_params")
        return result

    def _padding(self, rank: int) -> Any:
        """Padding other than by zeros is applied before the convolution."""
        return self["padding"] if self["padding_mode"] == "zeros" else (0,) * rank


def tree(pickled: Inert, budget: Budget) -> Module:
    """The tree of a pickled module; its tensors get their names."""
    return _Builder(budget).module(pickled, "", 0)


def state(root: Module) -> dict[str, Any]:
    """The `state_dict()` of a module, with the same names, and plain attributes that are tensors or may hold some."""
    entries: dict[str, Any] = {}
    for module in root.below():
        quantized = module.kind.startswith(("quantized.", "dynamic."))
        for name, value in module.attributes.items():
            number = quantized and name in ("scale", "zero_point") and type(value) in (int, float)
            if number or isinstance(value, HOLDERS):
                entries[_joined(module.path, name)] = value
    return entries


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _kind(class_name: str) -> str:
    if class_name in GRAPH_MODULES:
        return "fx"
    if ":" in class_name:  # of a part of a module, which may be a class of another module
        return ""
    for prefix, place in _KINDS:
        if class_name.startswith(prefix):
            return f"{place}.{class_name.rpartition('.')[2]}"
    return ""


class _Builder:
    """Makes Modules from Inert objects; counts them, because a pickle may refer to one many times."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def module(self, pickled: Inert, path: str, depth: int) -> Module:
        if depth > DEPTH_LIMIT:
            raise SourceError("the nesting of its modules is infinite", hint="the file is malicious or damaged")
        self._budget.spend(MODULE)
        self._budget.allocate(MODULE_BYTES + len(path))
        self._budget.path(path)
        body = self._body(pickled, path)
        made = Module(pickled.class_name, path, *self._parts(body, path, depth), self._budget)
        if made.kind == "fx":
            code = _text(body, "_code", "code")
            self._budget.allocate(len(code))
            made.code = code.strip()
            made.imports = next((text for text in pickled.arguments[1:] if isinstance(text, str)), "import torch")
        for name, value in made.attributes.items():
            if isinstance(value, HOLDERS):
                self._budget.allocate(2 * (len(path) + len(name)))  # its name, which `state` makes again
            if isinstance(value, StoredTensor):
                value.add_name(_joined(path, name))
            elif isinstance(value, Inert) and value.class_name in packing.PICKLED:
                made.attributes[name] = packed = packing.unpacked(value, self._budget)
                packed.path = _joined(path, name)
        return made

    def _body(self, pickled: Inert, path: str) -> dict[Any, Any]:
        """The `__dict__` of a module."""
        if isinstance(pickled.state, tuple) and len(pickled.state) == len(CONV_STATE):
            return dict(zip(CONV_STATE, pickled.state, strict=True))
        is_graph = pickled.class_name in GRAPH_MODULES
        body = pickled.arguments[0] if is_graph and pickled.arguments else pickled.state
        other = pickled.state is not None if is_graph else pickled.arguments and _kind(pickled.class_name)
        other = other or pickled.items is not None
        if not isinstance(body, dict) or other:  # PyTorch's modules have one or the other
            name = pickled.class_name[:100]
            what = f"an object of {name} has a state that modules do not have"
            raise SourceError(what, where=path, hint="save the state_dict")
        return body

    def _parts(self, body: dict[Any, Any], path: str, depth: int) -> tuple[dict[str, Any], dict[str, Module]]:
        own = {key: value for key, value in body.items() if key not in _GROUPS}
        parameters, buffers, modules = (plain(body.get(key, {})) for key in _GROUPS)
        groups = own, parameters, buffers, modules
        if not all(isinstance(group, dict) for group in groups):
            raise damaged("the parameters, buffers and modules of a module are not dicts", where=path)
        self._budget.hold(8 * sum(map(len, groups)))
        names = {name for group in groups for name in group if isinstance(name, str)}
        if len(names) < sum(map(len, groups)):
            raise damaged("a module has two attributes of one name, or one without", where=path)
        attributes = own | parameters | buffers
        inner = {name: value for name, value in modules.items() if value is not None}
        if wrong := [name for name, value in inner.items() if not isinstance(value, Inert)]:
            raise damaged("is not a module", where=_joined(path, wrong[0]))
        return attributes, {name: self.module(value, _joined(path, name), depth + 1) for name, value in inner.items()}


def _text(attributes: dict[Any, Any], *names: str) -> str:
    return next((attributes[name] for name in names if isinstance(attributes.get(name), str)), "")
