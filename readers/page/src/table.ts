// The table of nodes. Only the rows in sight are elements, so that networks of any size scroll.

import type { Grid, TensorFacts } from "./description.js";
import { sparkline } from "./charts.js";
import { el, number, numbersOf, percent, shape, short, span } from "./dom.js";
import { differs, family, STATUSES, type Entry } from "./entries.js";
import { groups, hasDifference, treeOf, visible, type Row } from "./tree.js";

const HEIGHT = 24;
const MARGIN = 12;
/** Networks with more nodes open folded. */
const FOLDED = 400;

const COLUMNS = ["node", "operator", "output", "input", "weight", "codes", "result", "rule", "notes"] as const;
const TITLES: Readonly<Record<(typeof COLUMNS)[number], string>> = {
  node: "Node", operator: "Operator", output: "Shape", input: "Input scale · zp", weight: "Weight scale", codes: "Weights",
  result: "Output scale · zp", rule: "Rounding rule", notes: "Notes",
};

export class Table {
  readonly element: HTMLElement;
  readonly #body = el("div", { class: "body", role: "presentation" });
  readonly #grid: HTMLElement;
  readonly #choose: (entry: Entry | null) => void;
  #entries: readonly Entry[] = [];
  #tree: Row[] = [];
  #rows: Row[] = [];
  #folded = new Set<string>();
  #cursor = -1;
  #accepts: ((entry: Entry) => boolean) | null = null;

  constructor(choose: (entry: Entry | null) => void) {
    this.#choose = choose;
    const head = COLUMNS.map((name) => el("div", { role: "columnheader", class: name }, TITLES[name]));
    this.#grid = el(
      "div",
      { class: "nodes", role: "treegrid", "aria-label": "Nodes", tabindex: 0, keydown: (event: KeyboardEvent) => this.#key(event), scroll: () => this.#draw() },
      el("div", { class: "row head", role: "row" }, ...head),
      this.#body,
    );
    this.element = el("section", { class: "table", "aria-label": "Table of nodes" }, this.#grid);
    new ResizeObserver(() => this.#draw()).observe(this.#grid);
    this.#body.addEventListener("click", (event) => {
      const row = (event.target as Element).closest<HTMLElement>("[data-at]");
      if (row) {
        this.#at(Number(row.dataset["at"]), true);
      }
    });
  }

  show(entries: readonly Entry[]): void {
    this.#entries = entries;
    this.#tree = treeOf(entries);
    this.#folded = new Set(entries.length > FOLDED ? [...groups(this.#tree)].filter(({ depth, entries: inside }) => depth > 0 || inside.length > FOLDED / 4).map(({ key }) => key) : []);
    this.#grid.classList.toggle("compared", entries.some(({ status }) => status));
    this.#grid.scrollTop = 0;
    this.#cursor = -1;
    this.filter(null);
  }

  /** Only the entries that are accepted, without modules; null shows all. Returns how many there are. */
  filter(accepts: ((entry: Entry) => boolean) | null): number {
    const chosen = this.#rows[this.#cursor];
    this.#accepts = accepts;
    this.#lay();
    this.#cursor = chosen?.kind === "node" ? this.#rows.findIndex((row) => row.kind === "node" && row.entry === chosen.entry) : -1;
    this.#draw();
    return this.#accepts ? this.#rows.length : this.#entries.length;
  }

  #lay(): void {
    const accepts = this.#accepts;
    this.#rows = accepts
      ? this.#entries.filter(accepts).map((entry) => ({ kind: "node", label: entry.node.name, depth: 0, entry }))
      : visible(this.#tree, this.#folded);
    this.#body.style.height = `${this.#rows.length * HEIGHT}px`;
    this.#grid.classList.toggle("flat", accepts !== null);
    this.#grid.setAttribute("aria-rowcount", String(this.#rows.length + 1));
  }

  /** Put the cursor on an entry, and open the modules that it is in. */
  select(entry: Entry): void {
    if (!this.#accepts) {
      for (const group of groups(this.#tree)) {
        if (group.entries.includes(entry)) {
          this.#folded.delete(group.key);
        }
      }
      this.#lay();
    }
    this.#cursor = this.#rows.findIndex((row) => row.kind === "node" && row.entry === entry);
    this.#reveal();
  }

  focus(): void {
    this.#grid.focus();
  }

  fold(all: boolean): void {
    this.#folded = new Set(all ? [...groups(this.#tree)].map(({ key }) => key) : []);
    this.#cursor = -1;
    this.#lay();
    this.#draw();
  }

  #key(event: KeyboardEvent): void {
    const page = Math.max(1, Math.floor(this.#grid.clientHeight / HEIGHT) - 2);
    const steps: Readonly<Record<string, number>> = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const row = this.#rows[this.#cursor];
    const step = steps[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    if (step !== undefined) {
      this.#at(Math.max(0, Math.min(this.#rows.length - 1, this.#cursor + step)), false);
    } else if (row?.kind === "group" && (event.key === "Enter" || event.key === " " || (event.key === "ArrowRight") === this.#folded.has(row.key) && /Arrow(Left|Right)/.test(event.key))) {
      this.#at(this.#cursor, true);
    } else if (event.key === "ArrowLeft" && row) {
      const above = this.#rows.slice(0, this.#cursor).findLastIndex(({ depth }) => depth < row.depth);
      if (above >= 0) {
        this.#at(above, false);
      }
    } else {
      return;
    }
    event.preventDefault();
  }

  #at(place: number, toggles: boolean): void {
    const row = this.#rows[place];
    this.#cursor = place;
    if (row?.kind === "group" && toggles) {
      this.#folded[this.#folded.has(row.key) ? "delete" : "add"](row.key);
      this.#lay();
    }
    this.#reveal();
    if (row?.kind === "node") {
      this.#choose(row.entry);
    }
  }

  #reveal(): void {
    const [top, height] = [this.#cursor * HEIGHT, this.#grid.clientHeight - 2 * HEIGHT];
    const { scrollTop } = this.#grid;
    if (this.#cursor >= 0 && (top < scrollTop || top > scrollTop + height)) {
      this.#grid.scrollTop = top < scrollTop && top > scrollTop - 3 * HEIGHT ? top : top > scrollTop + height && top < scrollTop + height + 3 * HEIGHT ? top - height : top - height / 2;
    }
    this.#draw();
  }

  #draw(): void {
    const first = Math.max(0, Math.floor(this.#grid.scrollTop / HEIGHT) - MARGIN);
    const last = Math.min(this.#rows.length, Math.ceil((this.#grid.scrollTop + this.#grid.clientHeight) / HEIGHT) + MARGIN);
    this.#body.replaceChildren(...this.#rows.slice(first, last).map((row, index) => this.#row(row, first + index)));
    const active = this.#cursor >= first && this.#cursor < last ? `row-${this.#cursor}` : null;
    active ? this.#grid.setAttribute("aria-activedescendant", active) : this.#grid.removeAttribute("aria-activedescendant");
  }

  #row(row: Row, at: number): HTMLElement {
    const isChosen = at === this.#cursor;
    const isFolded = row.kind === "group" && this.#folded.has(row.key);
    const common = { role: "row", id: `row-${at}`, "data-at": at, "aria-rowindex": at + 2, "aria-level": row.depth + 1, "aria-selected": String(isChosen) };
    const made =
      row.kind === "group"
        ? el("div", { ...common, class: `row group${isFolded && hasDifference(row) ? " differs" : ""}`, "aria-expanded": String(!isFolded) }, ...groupCells(row.label, row.entries, isFolded))
        : el("div", { ...common, class: `row ${row.entry.status}${differs(row.entry.status) ? " differs" : ""}` }, ...nodeCells(row.entry, row.label));
    made.style.transform = `translateY(${at * HEIGHT}px)`;
    made.style.setProperty("--depth", String(Math.min(row.depth, 8)));
    return made;
  }
}

function groupCells(label: string, entries: readonly Entry[], isFolded: boolean): HTMLElement[] {
  const counts = new Map<string, number>();
  entries.forEach(({ node }) => counts.set(node.operator, (counts.get(node.operator) ?? 0) + 1));
  const most = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 4).map(([operator, count]) => `${count} ${operator.replace(/^qfmt\./, "")}`);
  const summary = isFolded ? [...most, ...(counts.size > 4 ? ["…"] : [])].join(", ") : "";
  return [
    el("div", { role: "gridcell", class: "node", title: label }, el("span", { class: "fold", "aria-hidden": "true" }, isFolded ? "▸" : "▾"), label, el("span", { class: "dim" }, ` ${entries.length}`)),
    el("div", { role: "gridcell", class: "summary dim" }, summary),
  ];
}

function nodeCells(entry: Entry, label: string): HTMLElement[] {
  const { node, data, weight, made, status, findings, counts } = entry;
  const cell = (name: string, ...children: (Node | string | null | false)[]) => el("div", { role: "gridcell", class: name }, ...children);
  const said = status ? STATUSES[status] : "";
  const spark = weight?.stats && sparkline(weight.stats);
  const wrong = counts?.wrong ? el("span", { class: "badge fault", title: `${number(counts.wrong)} of ${number(counts.outputs)} outputs are wrong` }, `${percent(counts.wrong, counts.outputs)} off`) : null;
  const word = !wrong && differs(status) ? el("span", { class: "badge fault", title: entry.words.join("; ") }, status) : null;
  return [
    el("div", { role: "gridcell", class: "node", title: `${node.name}${said ? `: ${said}` : ""}` }, el("span", { class: `mark ${status}`, ...(said ? { role: "img", "aria-label": said } : {}) }), el("span", { class: "label" }, el("bdi", {}, label))),
    cell("operator", el("span", { class: `family ${family(node.operator)}` }), node.operator.replace(/^qfmt\./, "")),
    cell("output", made ? shape(made.shape) : ""),
    cell("input", ...quantized(data)),
    cell("weight", ...quantized(weight)),
    cell("codes", spark ?? null),
    cell("result", ...quantized(made)),
    cell("rule", node.rule),
    cell("notes", wrong, word, ...findings.slice(0, 3).map(({ kind, label: short, text }) => el("span", { class: `badge ${kind}`, title: text }, short))),
  ];
}

/** Type, scale and zero point, in three columns of one cell. */
function quantized(tensor: TensorFacts | null): HTMLElement[] {
  if (!tensor) {
    return [];
  }
  const { grid, dtype } = tensor;
  return [el("span", { class: "type" }, short(dtype)), el("span", { class: "scale", title: grid ? title(grid) : "" }, grid ? scale(grid) : ""), el("span", { class: "zero" }, grid ? zero(grid) : "")];
}

function scale({ scale: scales, count }: Grid): string {
  const many = count > 1 ? ` ×${number(count)}` : "";
  const largest = numbersOf(scales).reduce((a, b) => Math.max(a, b), 0);
  return many ? number(Number(largest.toPrecision(3))) + many : span(scales);
}

const title = ({ scale: scales, count }: Grid) => (count > 1 ? `${number(count)} scales, ${span(scales)}; the largest is shown` : `scale ${span(scales)}`);
const zero = ({ zero: points }: Grid) => (points.length > 1 ? "±" : span(points));
