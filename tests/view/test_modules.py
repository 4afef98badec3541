"""The modules that `qfmt inspect --tree` and Model Explorer show."""

from __future__ import annotations

from qfmt.model import Node
from qfmt.view.modules import module_paths


def paths(*nodes: tuple[str, str]) -> list[str]:
    """The modules of nodes with these scopes and names."""
    return ["/".join(each) for each in module_paths([Node("Op", (), ("",), scope=a, name=b) for a, b in nodes])]


def test_a_node_without_a_scope_is_in_the_module_around_it() -> None:
    """As in the MobileNetV2 of 2019, whose trace does not say in which module an addition is."""
    nodes = [("", "quantize"), ("features.0.0", ""), ("features.3.conv.2", ""), ("", "add"), ("", "add_1")]
    nodes += [("features.4.conv.0", ""), ("", "flatten"), ("classifier.1", ""), ("", "dequantize")]
    inside = ["features/0/0", "features/3/conv/2", "features", "features", "features/4/conv/0"]
    assert paths(*nodes) == ["", *inside, "", "classifier/1", ""]


def test_without_scopes_names_say_the_module() -> None:
    onnx = paths(("", "/layer1/layer1.0/conv1/Conv"), ("", "Add_7"), ("", "/layer1/layer1.1/Relu"), ("", "/fc/Gemm"))
    assert onnx == ["layer1/layer1.0/conv1", "layer1", "layer1/layer1.1", "fc"]
    assert paths(("", "conv1.0"), ("", "relu"), ("", "conv2")) == ["conv1", "", ""]
    assert module_paths([]) == []
