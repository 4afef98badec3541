"""Make the pictures of `qfmt view` in docs/images, from the real MobileNetV2 of ../shared/data.

    python tools/screenshots.py [FOLDER]

Needs torch, playwright and Chromium. Look at the pictures before you commit them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import qfmt  # noqa: E402
from qfmt.model import Model  # noqa: E402
from qfmt.view import page  # noqa: E402
from support.browser import Browser, installed, opened  # noqa: E402

SOURCE = ROOT.parent / "shared" / "data" / "torchscript" / "ios_mobilenet_quantized.pt"
NAME = "mobilenet_v2.qfb"
SIZE = 1360, 850
SHARP = 1.5  # pixels of the picture for each of the page: screens show it with more than one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "docs" / "images", help="[default: docs/images]")
    folder = parser.parse_args().folder
    if not SOURCE.is_file() or not installed("chromium"):
        sys.exit(f"needs Chromium and {SOURCE}")
    from playwright.sync_api import sync_playwright

    folder.mkdir(exist_ok=True)
    model = qfmt.convert(SOURCE, input_shapes={"X": (1, 3, 224, 224)})
    wrong = rescaled(model, "features.4.conv.2")
    report = qfmt.verify(SOURCE, wrong, samples=1)
    pages = {
        "plain": page(model, name=NAME),
        "verify": page(wrong, report=report, name=NAME),
        "compare": page(model, trained_again(model), name="monday.qfb", other_name="friday.qfb"),
        "integer": page(model.to_integers(exact=True), name="mobilenet_v2_int.qfb"),
    }
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        browser = Browser(playwright, "chromium")
        for name, each in pages.items():
            each.save(Path(made) / f"{name}.html")
        for name, source, scheme, node in (
            ("view-light", "plain", "light", "features.2.conv.1.0"),
            ("view-dark", "plain", "dark", "features.2.conv.1.0"),
            ("view-verify", "verify", "light", "features.4.conv.2"),
            ("view-compare", "compare", "light", "features.5.conv.1.0"),
            ("view-proof", "integer", "dark", "features.1.conv.1"),
        ):
            path = Path(made) / f"{source}.html"
            width, height = SIZE
            with opened(
                browser, path, width=width, height=height, color_scheme=scheme, device_scale_factor=SHARP
            ) as shown:
                show(shown, node)
                shown.screenshot(path=folder / f"{name}.png")
            print(folder / f"{name}.png")
        browser.close()


def rescaled(model: Model, name: str) -> Model:
    """The model with another scale of one tensor, as a wrong conversion would have it."""
    tensor = model.tensors[name]
    assert tensor.quantization is not None
    grid = tensor.quantization.with_values(scale=tensor.quantization.scale[0] * 1.02)
    tensors = {**model.graph.tensors, name: replace(tensor, quantization=grid)}
    return model.replace(graph=replace(model.graph, tensors=tensors))


def trained_again(model: Model) -> Model:
    """The model with other weights of two layers, and other scales of their outputs."""
    for name in ("features.5.conv.1.0", "features.6.conv.2"):
        values = model.tensors[f"{name}.weight"].array.copy()
        values.reshape(-1)[::7] //= 2
        model = rescaled(model.replace_tensor(f"{name}.weight", values), name)
    return model


def show(shown: Any, node: str) -> None:
    """Select a node, with its weights in sight."""
    exact = f".node[title='{node}'], .node[title^='{node}: ']"  # with how it compares
    shown.locator(".body .row:not(.group)").locator(exact).first.click()
    shown.wait_for_timeout(300)


if __name__ == "__main__":
    main()
