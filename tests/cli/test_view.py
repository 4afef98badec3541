"""`qfmt view`: what it writes, its exit status, and what it says when something is missing."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import webbrowser
from pathlib import Path

import numpy as np
import pytest

import qfmt
from qfmt.urls import Url
from qfmt.view.node_data import of_hazards
from support.command_line import invoke, tiny_model, trouble
from support.paths import DIGITS, ROOT


def test_a_page_is_written_and_no_browser_opened(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda address: pytest.fail(address))
    done = invoke("view", tiny, "--html", tmp_path / "m.html")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(str(tmp_path / "m.html"))
    assert (tmp_path / "m.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_without_a_name_the_page_is_opened(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path))
    monkeypatch.setattr(webbrowser, "open", lambda address: not opened.append(address))
    assert invoke("view", tiny).exit_code == 0
    assert opened == [(tmp_path / "tiny.html").as_uri()]
    assert (tmp_path / "tiny.html").is_file()


@pytest.mark.parametrize("option", ["--html", "--svg", "--node-data"])
def test_a_page_does_not_replace_a_model(option: str, tiny: Path, tmp_path: Path) -> None:
    for suffix in (".qfb", ".qfs", ".npy", ".jsonl"):
        other = tmp_path / f"new{suffix}"
        other.write_bytes(tiny.read_bytes())
        said = trouble("view", tiny, option, other)
        assert f"new{suffix}: qfmt view does not write {suffix}; end the name in .html, .svg, .png or .json" in said
        assert other.read_bytes() == tiny.read_bytes()


@pytest.mark.parametrize("is_named", [True, False])
def test_where_there_is_no_browser_it_says_so(
    is_named: bool, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(address: str) -> bool:
        if is_named:
            raise ValueError("No closing quotation")
        return False

    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path))
    monkeypatch.setattr(webbrowser, "open", fail)
    done = invoke("view", tiny)
    assert done.exit_code == 0
    assert "no browser was found" in done.stderr
    assert str(tmp_path / "tiny.html") in done.stdout
    copy = tmp_path / f"{'é' * 125}.qfb"
    copy.write_bytes(tiny.read_bytes())
    done = invoke("view", copy)
    assert done.exit_code == 0 and (tmp_path / f"{'é' * 100}.html").exists()


def test_the_status_says_whether_files_differ(tiny: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.qfb"
    tiny_model().replace_tensor("fc1.bias", np.array([0.5, 1.0], np.float32)).save(other)
    for second, status in ((tiny, 0), (other, 1)):
        assert invoke("view", tiny, second, "--html", tmp_path / "m.html").exit_code == status


def test_the_result_of_verify(tmp_path: Path) -> None:
    model = qfmt.convert(DIGITS)
    model.save(tmp_path / "m.qfb")
    node = model.nodes[1]
    model.replace_tensor(node.inputs[1], np.zeros(model.tensors[node.inputs[1]].shape, np.int8)).save(
        tmp_path / "w.qfb"
    )
    for name, status in (("m", 0), ("w", 1)):
        arguments = (tmp_path / f"{name}.qfb", "--verify", DIGITS)
        done = invoke("view", *arguments, "--html", tmp_path / "m.html", "--node-data", tmp_path / f"{name}.json")
        assert done.exit_code == status, done.output
    right, wrong = (json.loads((tmp_path / f"{name}.json").read_text())["results"] for name in ("m", "w"))
    assert {each["value"] for each in right.values()} == {0}
    assert wrong["1"]["value"] > 0
    assert next(key for key, each in wrong.items() if each["value"]) == "1"


def test_node_data_of_hazards(tmp_path: Path) -> None:
    assert invoke("view", DIGITS, "--node-data", tmp_path / "h.json").exit_code == 0
    found = json.loads((tmp_path / "h.json").read_text())
    listed = json.loads(invoke("inspect", DIGITS, "--hazards", "--json").stdout)
    expected = [max(each["channels"] for each in hazard["engines"].values()) for hazard in listed]
    assert [each["value"] for each in found["results"].values()] == expected
    model = qfmt.convert(DIGITS)
    nodes = model.nodes
    assert [nodes[int(key)].label for key in found["results"]] == [hazard["node"] for hazard in listed]
    alike = [dataclasses.replace(node, name="n") for node in nodes]
    assert of_hazards(model.replace(graph=dataclasses.replace(model.graph, nodes=alike))) == found


def test_pictures(tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("resvg_py", reason="resvg-py is in the test extra")
    done = invoke("view", tiny, "--svg", tmp_path / "m.svg", "--png", tmp_path / "m.png")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "m.svg").read_text().startswith("<svg ")
    assert (tmp_path / "m.png").read_bytes()[:4] == b"\x89PNG"
    assert not list(tmp_path.glob("*.html"))


def test_results_may_be_urls(tiny: Path, tmp_path: Path) -> None:
    for option, name in (("--html", "m.html"), ("--svg", "m.svg"), ("--node-data", "m.json")):
        local, remote = (tmp_path / name).as_uri(), f"memory://{tmp_path.name}/{name}"
        for dest in (local, remote):
            done = invoke("view", tiny, option, dest)
            assert done.exit_code == 0, done.output
        assert Url(remote).head(1 << 20) == (tmp_path / name).read_bytes() != b""
    assert "is a folder" in trouble("view", tiny, "--html", "memory://folder/")


def test_a_missing_package_is_named(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    monkeypatch.setitem(sys.modules, "netron", None)
    assert "pip install '.[view]'" in trouble("view", tiny, "--png", tmp_path / "m.png")
    assert "pip install netron" in trouble("view", tiny, "--netron")


def test_arguments_that_exclude_each_other(tiny: Path, tmp_path: Path) -> None:
    assert "exclude each other" in trouble("view", tiny, tiny, "--verify", DIGITS)
    assert "add --html" in trouble("view", tiny, tiny, "--svg", tmp_path / "m.svg")
    assert "is the source itself" in trouble("view", tiny, "--html", tiny)
    same = (tmp_path / "same", tmp_path / "." / "." / "same")
    assert "--html and --svg name the same file" in trouble("view", tiny, "--html", same[0], "--svg", same[1])
    assert "--svg and --node-data name" in trouble("view", tiny, "--node-data", same[0], "--svg", same[1])
    assert not same[0].exists()
    assert "cannot be written" in trouble("view", tiny, "--html", tmp_path / "missing" / "m.html")


def test_other_commands_do_not_import_the_view(tiny: Path) -> None:
    code = (
        "import sys; from qfmt.cli import main; main(sys.argv[1:], standalone_mode=False);"
        "print(*(name for name in sys.modules if name.startswith('qfmt.view')), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "inspect", tiny], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == ""
