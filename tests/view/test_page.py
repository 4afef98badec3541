"""The page in headless Chromium and Firefox: what it shows, keys, search, dropped files, comparison, themes, malicious
names."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import qfmt
from qfmt.model import Graph, Model, Node, Quantization, Tensor
from qfmt.view import page
from qfmt.view.description import text
from support.browser import PROGRAMS, Browser, opened
from support.command_line import tiny_model
from support.counts import tell
from support.crafted import crafted
from support.page_package import PagePackage
from support.paths import DIGITS, GOLDEN

MOBILENET = "torchscript/ios_mobilenet_quantized.pt"

in_both = pytest.mark.parametrize("browser", PROGRAMS, indirect=True)
"""A test that runs in both browsers, also without `-m slow`."""


def _digits() -> Model:
    return qfmt.convert(DIGITS)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("digits") / "digits.html"
    page(_digits(), name="digits.qfb").save(path)
    return path


def _names(shown: Any) -> list[str]:
    """The rows of the table that are nodes, by their names."""
    cells = shown.locator(".body .row:not(.group) .node")
    return [cell.get_attribute("title") for cell in cells.all()]


def test_the_page_is_complete_when_it_is_loaded(browser: Browser, digits: Path) -> None:
    """As `firefox --screenshot` and printing need it."""
    shown = browser.new_page("light")
    shown.add_init_script("addEventListener('load', () => { window.atLoad = document.body.className; });")
    shown.goto(digits.as_uri())
    assert shown.evaluate("window.atLoad") == "ready"
    shown.close()


def test_errors_and_requests_of_a_page_are_noticed(browser: Browser, tmp_path: Path) -> None:
    """The checks of every other test."""
    for index, (content, kind) in enumerate(
        (
            ("<script>throw new Error('broken')</script>", "broken"),
            ("<script>console.error('bad')</script>", "bad"),
            ("<img src='http://127.0.0.1:48999/seen.png'>", "seen.png"),
        )
    ):
        path = tmp_path / f"{index}.html"
        path.write_text(f"<!doctype html><title>t</title><body class=ready>shown{content}", "utf-8")
        with pytest.raises(AssertionError, match=kind), opened(browser, path) as shown:
            shown.wait_for_timeout(500)


@in_both
def test_every_node_has_a_row_with_its_scales(browser: Browser, digits: Path) -> None:
    model = _digits()
    with opened(browser, digits) as shown:
        assert shown.title() == "digits.qfb · qfmt view"
        assert _names(shown) == [node.label for node in model.nodes]
        for node, row in zip(model.nodes, shown.locator(".body .row:not(.group)").all(), strict=True):
            made = model.tensors[node.outputs[0]].quantization
            cell = row.locator(".result")
            if made is None:
                assert cell.locator(".scale").inner_text() == ""
            else:
                assert float(cell.locator(".scale").inner_text()) == pytest.approx(made.scale[0], rel=1e-4)
                assert cell.locator(".zero").inner_text() == str(made.zero_point[0])
        assert shown.locator(".graph .box").count() == len(model.nodes)


def test_a_node_shows_its_arithmetic_and_its_integers(browser: Browser, digits: Path) -> None:
    model = _digits()
    node = next(node for node in model.nodes if node.operator == "Conv")
    weight, made = model.tensors[node.inputs[1]], model.tensors[node.outputs[0]]
    assert weight.quantization is not None and made.quantization is not None
    with opened(browser, digits) as shown:
        _row(shown, node.label).click()
        details = shown.locator(".details")
        assert details.locator("h2").inner_text() == node.label
        assert details.locator(".formula strong").inner_text() == node.rule
        symbols = {
            row.locator("th").inner_text(): row.locator("td").first.inner_text()
            for row in details.locator(".symbols tr").all()
        }
        assert float(symbols["s, z"].split(",")[0]) == pytest.approx(made.quantization.scale[0], rel=1e-4)
        told = details.inner_text()
        ends = [int((weight.array == end).sum()) for end in (-128, 127)]
        assert f"{ends[0]} at −128, {ends[1]} at 127" in told
        unused = 256 - len(np.unique(weight.array))
        assert f"{unused} of 256" in told
        assert shown.locator(".box.selected").count() == 1


def test_scales_that_a_page_does_not_list_are_in_no_formula(browser: Browser, tmp_path: Path) -> None:
    """It has the extremes of many scales only: none of them is that of a channel."""
    model, count = tiny_model(), 5000
    grid = Quantization.of(np.linspace(0.5, 2, count, dtype=np.float32), 0, -128, 127, axis=0)
    changed = {
        "fc1.weight": Tensor.constant("fc1.weight", np.ones((count, 3), np.int8), grid),
        "fc1.bias": Tensor.constant("fc1.bias", np.zeros(count, np.float32)),
        **{name: replace(model.tensors[name], shape=("N", count)) for name in ("fc1", "y", "z")},
    }
    graph = replace(model.graph, tensors={**model.tensors, **changed})
    for each, shows_weight in ((model.replace(graph=graph), False), (model, True)):
        page(each, name="m").save(tmp_path / "m.html")
        with opened(browser, tmp_path / "m.html") as shown:
            _row(shown, "fc1").click()
            symbols = {row.inner_text() for row in shown.locator(".details .symbols th").all()}
        assert "sx, zx" in symbols and ("sw, zw" in symbols) == shows_weight


def test_keys_walk_through_the_table(browser: Browser, digits: Path) -> None:
    names = [node.label for node in _digits().nodes]
    with opened(browser, digits) as shown:
        shown.locator(".nodes").focus()
        seen = []
        for _ in range(40):
            shown.keyboard.press("ArrowDown")
            active = shown.locator(".nodes").get_attribute("aria-activedescendant")
            title = shown.locator(f"#{active} .node").get_attribute("title")
            if shown.locator(f"#{active}").get_attribute("aria-expanded") is None and title not in seen:
                seen.append(title)
        assert seen == names
        shown.keyboard.press("Home")
        shown.keyboard.press("Escape")
        assert shown.locator(".details h2").inner_text() == "digits.qfb"


def test_search_and_filters(browser: Browser, digits: Path) -> None:
    model = _digits()
    with opened(browser, digits) as shown:
        shown.keyboard.press("/")
        shown.keyboard.type("conv")
        found = [node.label for node in model.nodes if _mentions(model, node, "conv")]
        assert 0 < len(found) < len(model.nodes)
        assert _names(shown) == found
        assert shown.locator(".said").inner_text() == f"{len(found)} of {len(model.nodes)} nodes"
        shown.keyboard.press("Escape")
        assert len(_names(shown)) == len(model.nodes)
        shown.select_option("select[aria-label=Operator]", "Conv")
        assert _names(shown) == [node.label for node in model.nodes if node.operator == "Conv"]


def _mentions(model: Model, node: Node, word: str) -> bool:
    tensors = [model.tensors[name] for name in (*node.inputs, *node.outputs) if name]
    names = [text for tensor in tensors for text in (tensor.name, *tensor.aliases)]
    return any(word in text.lower() for text in (node.label, node.operator, node.scope, node.source_operator, *names))


def test_modules_fold(browser: Browser, shared_data: Path, tmp_path: Path) -> None:
    model = qfmt.convert(shared_data / MOBILENET)
    page(model).save(tmp_path / "m.html")
    with opened(browser, tmp_path / "m.html") as shown:
        shown.click("text=Fold >> nth=0")
        outside = [node.label for node in model.nodes if not node.scope.startswith(("features", "classifier"))]
        assert set(_names(shown)) < {*outside, *(node.label for node in model.nodes)}
        group = shown.locator(".row.group").first
        assert group.get_attribute("aria-expanded") == "false"
        group.click()
        assert shown.locator(".row.group").first.get_attribute("aria-expanded") == "true"


def _dropped(shown: Any, path: Path) -> None:
    """Drop a file onto the page, as a user does."""
    content = base64.b64encode(path.read_bytes()).decode()
    transfer = shown.evaluate_handle(
        """([content, name]) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0))], name));
            return transfer;
        }""",
        [content, path.name],
    )
    shown.dispatch_event("body", "drop", {"dataTransfer": transfer})
    shown.wait_for_selector(f"h1:text-is('{path.name}'), .alert:not(:empty)")


def _row(shown: Any, name: str) -> Any:
    return shown.locator(f".body .row:not(.group) [title='{name}']")


@in_both
def test_a_dropped_file_is_shown_as_python_shows_it(browser: Browser, tmp_path: Path) -> None:
    """The same rows and the same details, but for overflows, which only Python computes."""
    page(_digits(), name="digits.qfb", arrays=True).save(tmp_path / "digits.html")
    path = tmp_path / "dropped.qfb"
    _digits().save(path)
    nodes = [node.label for node in _digits().nodes]
    with opened(browser, tmp_path / "digits.html") as shown:
        before = [row.inner_text() for row in shown.locator(".body .row").all()]
        told = [_told(shown, name) for name in nodes]
        assert shown.title() == "digits.qfb · qfmt view"
        _dropped(shown, path)
        assert shown.locator(".alert").inner_text() == ""
        assert [row.inner_text() for row in shown.locator(".body .row").all()] == before
        for name, text in zip(nodes, told, strict=True):
            assert _told(shown, name).splitlines() == text.splitlines()


def _told(shown: Any, name: str) -> str:
    _row(shown, name).click()
    text: str = shown.locator(".details").inner_text()
    return re.sub(r"ON PROCESSORS WITHOUT VNNI.*?(?=ATTRIBUTES)", "", text, flags=re.DOTALL)


def test_every_golden_file_can_be_dropped_into_the_empty_page(browser: Browser) -> None:
    """page.html of the package alone is a viewer, too."""
    empty = Path(qfmt.__file__).parent / "view" / "page.html"
    files = sorted(path for path in GOLDEN.rglob("*.qfb") if path.parent.name != "refused")[:60]
    with opened(browser, empty) as shown:
        for path in files:
            _dropped(shown, path)
            assert shown.locator(".alert").inner_text() == "", path.name
    tell(f"page: {len(files)} golden files are shown when they are dropped")


def test_the_file_that_was_opened_last_is_shown(browser: Browser, digits: Path, tmp_path: Path) -> None:
    """Though another one takes longer to read."""
    for name in "slow.qfb", "fast.qfb":
        _digits().save(tmp_path / name)
    slow = """() => {
        const read = Blob.prototype.arrayBuffer;
        Blob.prototype.arrayBuffer = async function () {
            if (!window.go) await new Promise((done) => window.go = done);
            return read.call(this);
        }
    }"""
    with opened(browser, digits) as shown:
        shown.evaluate(slow)
        shown.set_input_files("#file", tmp_path / "slow.qfb")
        shown.wait_for_function("() => window.go")
        _dropped(shown, tmp_path / "fast.qfb")
        shown.evaluate("async () => { window.go(); await new Promise((done) => setTimeout(done, 300)); }")
        assert shown.title() == "fast.qfb · qfmt view"


def test_a_damaged_file_is_refused_in_words(browser: Browser, digits: Path, tmp_path: Path) -> None:
    path = tmp_path / "broken.qfb"
    path.write_bytes(b"\0\0\0\0QFB1" + b"\0" * 100)
    with opened(browser, digits) as shown:
        _dropped(shown, path)
        assert shown.locator(".alert").inner_text().startswith("broken.qfb: ")
        assert shown.title() == "digits.qfb · qfmt view"


def _changed(model: Model) -> tuple[Model, str]:
    """Another weight in the second convolution, and its name."""
    node = [node for node in model.nodes if node.operator == "Conv"][1]
    values = model.tensors[node.inputs[1]].array.copy()
    values.flat[0] = values.flat[0] // 2 + 1
    return model.replace_tensor(node.inputs[1], values), node.label


def test_two_files_are_compared(browser: Browser, tmp_path: Path) -> None:
    model = _digits()
    other, name = _changed(model)
    page(model, other, name="a.qfb", other_name="b.qfb").save(tmp_path / "d.html")
    with opened(browser, tmp_path / "d.html") as shown:
        assert shown.locator(".body .row.differs").count() == 1
        assert shown.locator(".body .row.same").count() == len(model.nodes) - 1
        assert shown.locator(".box.differs").count() == 1
        assert f"1 node of {len(model.nodes)} differ" in shown.locator(".details").inner_text()
        shown.keyboard.press("n")
        assert shown.locator(".details h2").inner_text() == name
        assert "1 of " in shown.locator(".comparison .words").inner_text()
        shown.select_option("select[aria-label='Which nodes']", "differs")
        assert [title.partition(":")[0] for title in _names(shown)] == [name]


def test_nodes_of_one_file_only(browser: Browser, tmp_path: Path) -> None:
    model = tiny_model()
    shorter = model.subgraph(outputs=["y"])
    for first, second, status in ((model, shorter, "removed"), (shorter, model, "added")):
        page(first, second).save(tmp_path / f"{status}.html")
        with opened(browser, tmp_path / f"{status}.html") as shown:
            assert shown.locator(f".body .row.{status}").count() == 1
            assert shown.locator(".body .row").count() == 4
            shown.locator(f".body .row.{status}").click()
            assert shown.locator(".details h2").inner_text() == "z"


def test_the_first_wrong_node_of_verify_is_painted(browser: Browser, tmp_path: Path) -> None:
    other, name = _changed(_digits())
    report = qfmt.verify(DIGITS, other, samples=1)
    page(other, report=report, name="digits.qfb").save(tmp_path / "v.html")
    with opened(browser, tmp_path / "v.html") as shown:
        assert f"First wrong: {name} (Conv)" in shown.locator(".details").inner_text()
        assert shown.locator(".body .row.wrong").first.locator(".node").get_attribute("title") == f"{name}: wrong"
        shown.click("text=Next difference")
        assert shown.locator(".comparison .share.wrong").count() == any(node.wrong for node in report.nodes)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_themes_and_accessibility(browser: Browser, package: PagePackage, tmp_path: Path, scheme: str) -> None:
    """axe-core finds nothing serious: contrast, names, roles; in both themes, with a node and with a difference."""
    model = _digits()
    page(model, _changed(model)[0], arrays=True).save(tmp_path / "m.html")
    with opened(browser, tmp_path / "m.html", color_scheme=scheme) as shown:
        assert shown.evaluate("getComputedStyle(document.documentElement).backgroundColor") == (
            "rgb(255, 255, 255)" if scheme == "light" else "rgb(18, 21, 26)"
        )
        shown.evaluate(package.axe())
        for key in ("Escape", "n"):
            shown.keyboard.press(key)
            assert _violations(shown) == []
        shown.keyboard.press("t")
        assert shown.evaluate("getComputedStyle(document.documentElement).backgroundColor") == (
            "rgb(18, 21, 26)" if scheme == "light" else "rgb(255, 255, 255)"
        )


def _violations(shown: Any) -> list[str]:
    found = shown.evaluate("axe.run().then(({ violations }) => violations)")
    return [
        f"{each['id']}: {node['html'][:120]}: {node['failureSummary']}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


def test_a_small_window(browser: Browser, digits: Path) -> None:
    with opened(browser, digits, width=420, height=860) as shown:
        assert shown.evaluate("document.documentElement.scrollWidth") == 420
        shown.locator(".body .row").nth(1).click()
        assert shown.locator(".details").bounding_box()["width"] == 420
        for visible in (True, False):
            shown.click("text=Graph")
            assert shown.locator(".graph").is_visible() == visible


def test_embedded_arrays_are_shown(browser: Browser, tmp_path: Path) -> None:
    model = _digits()
    node = next(node for node in model.nodes if node.operator == "Conv")
    page(model, name="digits.qfb", arrays=True).save(tmp_path / "m.html")
    with opened(browser, tmp_path / "m.html") as shown:
        _row(shown, node.label).click()
        shown.click("text=Values of channel 0")
        shown.wait_for_selector(".values span")
        told = [
            int(each.replace("−", "-")) for each in shown.locator(".values").first.locator("span").all_inner_texts()
        ]
        assert told == model.tensors[node.inputs[1]].array[0].reshape(-1)[:144].tolist()
        assert shown.get_attribute("text=Save .qfb", "download") == "digits.qfb"
        shown.click("text=Save .qfb")
        model.save(tmp_path / "m.qfb")
        content = (tmp_path / "m.qfb").read_bytes()
        while not any(path.read_bytes() == content for path in browser.downloads.iterdir()):
            shown.wait_for_timeout(100)  # the timeout of the test ends it


def test_an_integer_only_network_shows_its_proofs(browser: Browser, tmp_path: Path) -> None:
    model = _digits().to_integers(input_shapes={"x": ("N", 1, 8, 8)})
    at, node = next((at, node) for at, node in enumerate(model.nodes) if node.operator == "qfmt.Requantize")
    page(model).save(tmp_path / "m.html")
    with opened(browser, tmp_path / "m.html") as shown:
        shown.locator(".body .row:not(.group)").nth(at).click()
        multiplier = int(model.tensors[node.inputs[1]].array.reshape(-1)[0])
        assert f"{multiplier:,}" in shown.locator(".formula .numbers").inner_text()
        assert node.proof is not None
        assert node.proof.compared in shown.locator(".part", has_text="Requantization: proof").inner_text()


HOSTILE = (
    "</script><img src=x onerror=\"document.title='owned'\">",
    "<svg onload=document.title='owned'>",
    "'\"><b id=owned>",
    "{{script}}<!--model-->",
    "\u202egnp.exe\x1b[31m\u2028",
    "__proto__",
    "constructor",
    "$&$1",
)


def _hostile() -> Model:
    grid = Quantization.per_tensor(0.5, 0, "int8")
    names = [f"{name}#{index}" for index, name in enumerate(HOSTILE)]
    tensors = [Tensor("x", "int8", ("<i>N", 3), quantization=grid)]
    nodes = []
    for name in names:
        tensors.append(Tensor(name, "int8", ("<i>N", 3), quantization=grid, aliases=(f"{name}'s alias",)))
        nodes.append(Node("Relu", (tensors[-2].name,), (name,), name=f"{name}.n", version=14, scope=name))
    tensors.append(Tensor("z", "int8", None, quantization=grid))
    nodes.append(
        Node(
            "vendor.<u>Thing",
            (names[-1],),
            ("z",),
            {"<s>k": "<img src=x onerror=alert(1)>"},
            source_operator=HOSTILE[0],
        )
    )
    pairs = dict.fromkeys(HOSTILE, HOSTILE[0])
    graph = Graph(("x",), ("z",), tuple(nodes), {tensor.name: tensor for tensor in tensors}, HOSTILE[0])
    return Model(graph, HOSTILE[0], HOSTILE[0], pairs, pairs)


def test_names_cannot_become_markup(browser: Browser, tmp_path: Path) -> None:
    """Neither from the page nor from a dropped file: as text they are all there."""
    model = _hostile()
    made = page(model, replace(model, engine="x"), name=HOSTILE[0], other_name=HOSTILE[1], arrays=True)
    assert "owned" not in made.html and "onerror" not in made.html
    made.save(tmp_path / "h.html")
    model.save(tmp_path / "h.qfb")
    with opened(browser, tmp_path / "h.html") as shown:
        _is_harmless(shown)
        _dropped(shown, tmp_path / "h.qfb")
        _is_harmless(shown)


TURNED = "[...document.querySelectorAll('#page *')].some((each) => /[\\p{Cf}\\x1b]/u.test(each.title ?? ''))"


def _is_harmless(shown: Any) -> None:
    for row in range(shown.locator(".body .row").count()):
        shown.locator(".body .row").nth(row).click()
        assert shown.locator("#page").locator("img, b#owned, script, i, s, u, iframe").count() == 0
    assert shown.title() != "owned"
    assert "\u202e" not in shown.locator("body").inner_text()
    assert not shown.evaluate(TURNED)
    assert "<svg onload" in shown.locator("body").inner_html().replace("&lt;", "<")


WEIGHT = f"{'w' * 300}a{'w' * 300}"


def _long_names() -> Model:
    """Two nodes with weights that differ, under names that a page shortens alike."""
    grid = Quantization.per_tensor(0.5, 0, "int8")
    weights = {WEIGHT: 1, f"{'w' * 300}b{'w' * 300}": 2}
    assert len({text(each) for each in weights}) == 1
    tensors = [Tensor("x", "int8", (1, 4), quantization=grid)]
    nodes = []
    for index, (weight, value) in enumerate(weights.items()):
        aliases = tuple(f"alias {at:02}" for at in range(30))
        tensors.append(replace(Tensor.constant(weight, np.full((4, 4), value, np.int8), grid), aliases=aliases))
        tensors.append(Tensor(f"y{index}", "int8", (1, 4), quantization=grid))
        attributes = {"many": tuple(range(100)), "long": "a" * 1000}
        nodes.append(Node("vendor.Product", ("x", weight), (f"y{index}",), attributes, f"n{index}"))
    graph = Graph(("x",), ("y0", "y1"), tuple(nodes), {tensor.name: tensor for tensor in tensors})
    return Model(graph, metadata={"note": "m" * 1000})


def test_long_names_are_shortened_alike_and_stay_apart(browser: Browser, tmp_path: Path) -> None:
    """In a dropped file as in a page; each weight has its own values, and a difference of one is painted."""
    model = _long_names()
    page(model, name="m.qfb", arrays=True).save(tmp_path / "m.html")
    model.save(tmp_path / "m.qfb")
    with opened(browser, tmp_path / "m.html") as shown:
        for index in (0, 1):
            _row(shown, f"n{index}").click()
            shown.click("summary >> text=Values of channel 0")
            shown.wait_for_selector(".values span")
            assert shown.locator(".values span").all_inner_texts() == [str(index + 1)] * 4
        told = [_told(shown, f"n{index}") for index in (0, 1)]
        _dropped(shown, tmp_path / "m.qfb")
        assert [_told(shown, f"n{index}") for index in (0, 1)] == told
        assert "alias 07" in told[0] and "alias 08" not in told[0] and "(1,000 characters)" in told[0]
    changed = model.replace_tensor(WEIGHT, np.zeros((4, 4), np.int8))
    page(model, changed).save(tmp_path / "d.html")
    with opened(browser, tmp_path / "d.html") as shown:
        shown.keyboard.press("n")
        assert shown.locator(".details h2").inner_text() == "n0"
        assert shown.locator(".body .row.differs").count() == 1


def test_values_of_short_floats_and_long_integers(browser: Browser, tmp_path: Path) -> None:
    """Numbers, not their codes; and all digits."""
    arrays = {
        "float8": np.array([0.75, 448], ml_dtypes.float8_e4m3fn),
        "bfloat16": np.array([-1.5, -np.inf], ml_dtypes.bfloat16),
        "int64": np.array([2**63 - 1, 5]),
    }
    expected = {"float8": ["0.75", "448"], "bfloat16": ["−1.5", "−Infinity"], "int64": ["9223372036854775807", "5"]}
    nodes = [Node("vendor.Take", ("x", name), (f"y {name}",), name=name) for name in arrays]
    tensors = [Tensor.constant(name, array) for name, array in arrays.items()]
    tensors += [Tensor(name, "float32", (2**59 + 1,)) for name in ("x", *(f"y {name}" for name in arrays))]
    graph = Graph(("x",), ("y int64",), nodes, {tensor.name: tensor for tensor in tensors})
    page(Model(graph), name="m.qfb", arrays=True).save(tmp_path / "m.html")
    Model(graph).save(tmp_path / "m.qfb")
    with opened(browser, tmp_path / "m.html") as shown:
        for _ in range(2):
            for name, values in expected.items():
                _row(shown, name).click()
                assert "576460752303423489" in shown.locator(".details").inner_text()
                shown.click("summary >> text=Values")
                shown.wait_for_selector(".values span")
                assert shown.locator(".values span").all_inner_texts() == values
            assert "5…9223372036854775807" in shown.locator(".details").inner_text()
            _dropped(shown, tmp_path / "m.qfb")


MANY = 150_000
"""More than the arguments of a call, which some engines limit to 65,536 or 125,000."""


def test_large_lists_are_shown_in_part(browser: Browser, tmp_path: Path) -> None:
    """Inputs of one node, pairs, operators: a page shows the first of them."""
    model = tiny_model()
    inputs = {"inputs": [0] * MANY, "outputs": [1], "operator": "vendor.Many"}
    tensors = [{"name": name, "dtype": 2, "shape": [4]} for name in "ab"]
    metadata = [{"key": f"{index:06}", "value": "v"} for index in range(MANY)]
    path = crafted(tmp_path, graph={"tensors": tensors, "nodes": [inputs]}, metadata=metadata, buffers=[], data=b"")
    page(model).save(tmp_path / "m.html")
    with opened(browser, tmp_path / "m.html") as shown:
        _dropped(shown, path)
        assert shown.locator(".alert").inner_text() == ""
        assert "and 149,800 more" in shown.locator(".details").inner_text()
        _row(shown, "b").click()
        assert "and 149,800 more" in shown.locator(".details").inner_text()


def test_a_search_finds_names_of_tensors(browser: Browser, tmp_path: Path) -> None:
    model = _long_names()
    page(model).save(tmp_path / "m.html")
    with opened(browser, tmp_path / "m.html") as shown:
        for words, found in (("ALIAS", ["n0", "n1"]), ("y1 vendor", ["n1"]), ("y1 y0", []), ("n0", ["n0"])):
            shown.fill("input[type=search]", words)
            assert _names(shown) == found


def test_numbers_that_underflow_have_no_parts(browser: Browser, tmp_path: Path) -> None:
    """The multiplier of tiny scales is 0 in float32."""
    grid = Quantization.per_tensor(1e-38, 0, "int8")
    weight = Tensor.constant("w", np.ones((2, 2), np.int8), grid)
    tensors = {"x": Tensor("x", "int8", (1, 2), quantization=grid), "w": weight}
    tensors["y"] = Tensor("y", "int8", (1, 2), quantization=Quantization.per_tensor(1.0, 0, "int8"))
    nodes = (Node("qfmt.Linear", ("x", "w"), ("y",), rule="float_bias"),)
    page(Model(Graph(("x",), ("y",), nodes, tensors), engine="fbgemm")).save(tmp_path / "m.html")
    with opened(browser, tmp_path / "m.html") as shown:
        _row(shown, "y").click()
        details = shown.locator(".details").inner_text()
        assert "effective multiplier" in details and "undefined" not in details and "NaN" not in details


def _deep(count: int) -> Model:
    """Residual blocks with weights of 64 channels: `count` nodes."""
    rng = np.random.default_rng(5)
    grid = Quantization.per_tensor(0.02, 128, "uint8")
    tensors, nodes, last = [Tensor("x", "uint8", (1, 64, 14, 14), quantization=grid)], [], "x"
    sizes = {"dilations": (1, 1), "group": 64, "kernel_shape": (1, 1), "pads": (0, 0, 0, 0), "strides": (1, 1)}
    for block in range(count // 4):
        read = last
        for index in range(3):
            name = f"layers.{block // 50}.block.{block % 50}.conv{index}"
            weight = rng.normal(0, 30, (64, 1, 1, 1)).clip(-127, 127).astype(np.int8)
            scales = rng.uniform(0.001, 0.01, 64).astype(np.float32)
            per_channel = Quantization.of(scales, np.zeros(64, np.int8), -128, 127, axis=0)
            made = Quantization.per_tensor(float(rng.uniform(0.01, 0.05)), 128, "uint8")
            tensors += [
                Tensor.constant(f"{name}.weight", weight, per_channel),
                Tensor.constant(f"{name}.bias", rng.normal(size=64).astype(np.float32)),
                Tensor(name, "uint8", (1, 64, 14, 14), quantization=made),
            ]
            ends = (read, f"{name}.weight", f"{name}.bias"), (name,)
            nodes.append(Node("Conv", *ends, sizes, name=name, scope=name, version=22, rule="float_bias"))
            read = name
        tensors.append(Tensor(f"add{block}", "uint8", (1, 64, 14, 14), quantization=grid))
        nodes.append(Node("Add", (last, read), (f"add{block}",), version=14, rule="premultiplied"))
        last = f"add{block}"
    return Model(Graph(("x",), (last,), tuple(nodes), {tensor.name: tensor for tensor in tensors}), engine="fbgemm")


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deep") / "deep.html"
    page(_deep(5000), name="deep.qfb").save(path)
    return path


def test_five_thousand_nodes(browser: Browser, deep: Path) -> None:
    """Under 3 MB; the table has only the rows in sight as elements, the graph only what surrounds the node."""
    tell(f"page: 5,000 nodes, {deep.stat().st_size / 1e6:.1f} MB")
    assert deep.stat().st_size < 3_000_000
    with opened(browser, deep) as shown:
        shown.fill("input[type=search]", "layers.20.block.40.conv1")
        assert [name for name in _names(shown) if name.endswith("conv1")] == ["layers.20.block.40.conv1"]
        shown.keyboard.press("Escape")
        shown.click("text=Unfold")
        shown.focus(".nodes")
        shown.keyboard.press("End")
        assert shown.locator(".details h2").inner_text() == "add1249"
        assert shown.locator(".body .row").count() < 100
        shown.locator(".box.selected .name", has_text="add1249").wait_for()
        assert shown.locator(".box").count() < 100


@pytest.mark.parametrize("compared", [False, True])
def test_a_network_of_many_edges_is_shown_in_part(browser: Browser, tmp_path: Path, compared: bool) -> None:
    """Layout makes a node for each rank that an edge crosses: of 160 nodes that read all before them, 680,000."""
    names = [f"y{number}" for number in range(160)]
    tensors = {name: Tensor(name, "float32", (2,)) for name in ("x", *names)}
    nodes = [Node("Max", ("x", *names[:at]), (name,), name=name, version=13) for at, name in enumerate(names)]
    model = Model(Graph(("x",), ("y159",), tuple(nodes), tensors))
    simple = tuple(Node("Relu", ("x",), (name,), name=name, version=14) for name in reversed(names))
    other = replace(model, graph=replace(model.graph, nodes=simple)) if compared else None
    page(model, other, name="m.qfb").save(tmp_path / "m.html")
    with opened(browser, tmp_path / "m.html") as shown:
        said = shown.locator(".graph .bar .dim").inner_text()
        assert re.fullmatch(r"(\d+) of 160 nodes", said), said
        assert 10 < shown.locator(".graph .box").count() == int(said.split()[0]) < 40


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><title>n</title><body class=ready>{tiny_model().view()._repr_html_()}", "utf-8")
    yield path


def test_a_notebook_shows_the_page_in_a_frame(browser: Browser, notebook: Path) -> None:
    with opened(browser, notebook) as shown:
        frame = shown.frame_locator("iframe")
        frame.locator("body.ready").wait_for()
        assert frame.locator(".body .row").count() == 4
