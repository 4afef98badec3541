"""Draw docs/performance.json, which `tools/bench.py --record` writes, as docs/images/performance.svg, and write the
tables of docs/performance.md.

    python tools/plot.py            # rewrite both
    python tools/plot.py --check
"""

from __future__ import annotations

import argparse
import json
import math
import re
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE, PLOT = ROOT / "docs" / "performance.md", ROOT / "docs" / "images" / "performance.svg"
MARKS = re.compile(r"(<!-- (\w+): tools/plot.py -->\n).*?(<!-- end -->)", re.DOTALL)

LABELS, WIDTH, RIGHT, LINE = 260, 480, 60, 19
"""Pixels: of the labels, of the axis, of the figures, and of the height of a line."""
LEAST, MOST = 1 / 16, 16
"""The ends of the axis, which is logarithmic."""
STYLE = """
text { font: 12px sans-serif; fill: #222 } .head { font-weight: bold } .grid { stroke: #bbb } .one { stroke: #222 }
.less { fill: #2a78b8 } .more { fill: #c9722b } .back { fill: #fff }
"""

Record = dict[str, dict[str, Any]]


def recorded() -> Record:
    """What was measured, by section."""
    record: Record = json.loads((ROOT / "docs" / "performance.json").read_text(encoding="utf-8"))
    return record


def position(ratio: float) -> float:
    """Where a ratio lies on the axis."""
    inside = min(max(ratio, LEAST), MOST)
    return LABELS + WIDTH * math.log(inside / LEAST) / math.log(MOST / LEAST)


def drawing(record: Record) -> str:
    """A bar for each ratio, from 1 to the left where qfmt takes less, to the right where it takes more."""
    body, y = [], 2 * LINE
    for section in record.values():
        body.append(f'<text class="head" x="6" y="{y}">{escape(section["about"])}</text>')
        for row in section["rows"]:
            y += LINE
            start, end = sorted((position(1), position(row["ratio"])))
            kind = "less" if row["ratio"] < 1 else "more"
            body += [
                f'<text x="16" y="{y}">{escape(row["what"])}</text>',
                f'<rect class="{kind}" x="{start:.1f}" y="{y - 10}" width="{max(end - start, 1):.1f}" height="12"/>',
                f'<text x="{LABELS + WIDTH + 8}" y="{y}">{row["ratio"]:.2f} ×</text>',
            ]
        y += int(1.5 * LINE)
    grid, power = [], math.log2(LEAST)
    while 2**power <= MOST:
        at, label = position(2**power), f"{2**power:g}" if power >= 0 else f"1/{2**-power:g}"
        kind = "grid" if power else "one"
        grid.append(f'<line class="{kind}" x1="{at}" x2="{at}" y1="{LINE}" y2="{y - LINE}"/>')
        grid.append(f'<text text-anchor="middle" x="{at}" y="{LINE - 6}">{label}</text>')
        power += 1
    size = f'viewBox="0 0 {LABELS + WIDTH + RIGHT} {y}" width="{LABELS + WIDTH + RIGHT}" height="{y}"'
    lines, back = "\n".join(grid + body), '<rect class="back" width="100%" height="100%"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<style>{STYLE}</style>\n{back}\n{lines}\n</svg>\n'
    )


def table(section: dict[str, Any]) -> str:
    """A section as Markdown: what is compared, on what, and each ratio."""
    rows = "".join(
        f"| {row['what']} | {row['ratio']:.2f} | {'' if row['limit'] is None else format(row['limit'], '.3g')} |\n"
        for row in section["rows"]
    )
    head = "| | time of qfmt / time of the other | at most |\n|---|---|---|\n"
    return f"{section['about']}\n\n{head}{rows}\n{section['machine']}\n"


def filled(page: str, record: Record) -> str:
    """The page with current tables between its marks."""
    return MARKS.sub(lambda mark: f"{mark[1]}{table(record[mark[2]])}{mark[3]}", page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not current")
    check = parser.parse_args().check
    record, page = recorded(), PAGE.read_text(encoding="utf-8")
    wanted = {PAGE: filled(page, record), PLOT: drawing(record)}
    if check:
        return int(any(not path.is_file() or path.read_text(encoding="utf-8") != text for path, text in wanted.items()))
    PLOT.parent.mkdir(exist_ok=True)
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
