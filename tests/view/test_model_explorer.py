"""Google's Model Explorer, in a separate environment (CONTRIBUTING.md), opens a `.qfb` through the adapter."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import qfmt
from support.command_line import invoke
from support.paths import DIGITS, ROOT

PYTHON = os.environ.get("MODEL_EXPLORER_PYTHON", "")
PROGRAM = """
import json, sys
from model_explorer.extension_manager import ExtensionManager
manager = ExtensionManager(["qfmt.view.model_explorer"])
manager.load_extensions()
known = [each for each in manager.get_extensions_metadata() if each["id"] == "qfmt"]
command = {"cmdId": "convert", "extensionId": "qfmt", "modelPath": sys.argv[1], "settings": {}}
command["deleteAfterConversion"] = False
json.dump([known, manager.run_cmd(command)], open(sys.argv[2], "w"))
from model_explorer.node_data_builder import GraphNodeData, NodeDataResult
data = json.load(open(sys.argv[3]))
GraphNodeData(results={key: NodeDataResult(**value) for key, value in data["results"].items()}, name=data["name"])
"""


@pytest.mark.slow
def test_model_explorer_opens_a_file(tmp_path: Path) -> None:
    if not PYTHON:
        pytest.skip("needs MODEL_EXPLORER_PYTHON, a Python with ai-edge-model-explorer")
    model = qfmt.convert(DIGITS)
    model.save(tmp_path / "m.qfb")
    assert invoke("view", tmp_path / "m.qfb", "--node-data", tmp_path / "data.json").exit_code == 0
    arguments = [tmp_path / "m.qfb", tmp_path / "out.json", tmp_path / "data.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([PYTHON, "-c", PROGRAM, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (known,), answer = json.loads((tmp_path / "out.json").read_text())
    assert known["fileExts"] == ["qfb"]
    (graph,) = answer["graphs"] if "graphs" in answer else answer["graphCollections"][0]["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert len(nodes) == len(model.nodes) + 2
    for place, node in enumerate(model.nodes):
        shown = nodes[str(place)]
        assert shown["label"] == node.operator.removeprefix("qfmt.")
        assert shown["namespace"] == node.scope.replace(".", "/")
        made = {pair["key"]: pair["value"] for pair in shown["outputsMetadata"][0]["attrs"]}
        assert made["tensor_name"] == node.outputs[0]
    edges = {(edge["sourceNodeId"], node["id"]) for node in graph["nodes"] for edge in node.get("incomingEdges", ())}
    makers = {name: str(place) for place, node in enumerate(model.nodes) for name in node.outputs} | {"x": "inputs"}
    expected = {
        (makers[name], str(place)) for place, node in enumerate(model.nodes) for name in node.inputs if name in makers
    }
    assert edges == expected | {(makers[name], "outputs") for name in model.graph.outputs}
