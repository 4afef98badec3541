"""Make the pictures of `qfmt view` in docs/images, from the real MobileNetV2 of ../shared/data.

    python tools/screenshots.py [FOLDER]

Needs torch, playwright and Chromium. Look at the pictures before you commit them.
"""

from __future__ import annotations

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
WIDE, SMALL = (1440, 900), (420, 860)


def main() -> None:
    if not SOURCE.is_file() or not chromium():
        sys.exit(f"needs Chromium and {SOURCE}")
    from playwright.sync_api import sync_playwright

    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    folder.mkdir(exist_ok=True)
    model = qfmt.convert(SOURCE, input_shapes={"X": (1, 3, 224, 224)})
    changed = damaged(model)
    report = qfmt.verify(SOURCE, changed, samples=1)
    pages = {
        "plain": page(model, name=NAME),
        "verify": page(changed, report=report, name=NAME),
        "integer": page(model.to_integers(), name="mobilenet_v2_int.qfb"),
    }
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=[*QUIET])
        for name, each in pages.items():
            each.save(Path(made) / f"{name}.html")
        for name, source, scheme, size, node in (
            ("view-light", "plain", "light", WIDE, "features.2.conv.1.0"),
            ("view-dark", "plain", "dark", WIDE, "features.1.conv.0.0"),
            ("view-verify", "verify", "light", WIDE, "features.4.conv.2"),
            ("view-proof", "integer", "dark", WIDE, "features.1.conv.1"),
            ("view-small", "plain", "dark", SMALL, "features.1.conv.0.0"),
        ):
            path = Path(made) / f"{source}.html"
            with opened(browser, path, width=size[0], height=size[1], color_scheme=scheme) as shown:
                show(shown, node)
                shown.screenshot(path=folder / f"{name}.png")
            print(folder / f"{name}.png")
        browser.close()


def damaged(model: Model) -> Model:
    """The model with another scale of one tensor, as a wrong conversion would have it."""
    name = "features.4.conv.2"
    tensor = model.tensors[name]
    assert tensor.quantization is not None
    other = replace(tensor, quantization=tensor.quantization.with_values(scale=tensor.quantization.scale[0] * 1.02))
    return model.replace(graph=replace(model.graph, tensors={**model.graph.tensors, name: other}))


def show(shown: Any, node: str) -> None:
    """Select a node, with its weights in sight."""
    exact = f".node[title='{node}'], .node[title^='{node}: ']"  # with how it compares
    shown.locator(".body .row:not(.group)").locator(exact).first.click()
    shown.wait_for_timeout(300)


if __name__ == "__main__":
    main()
