// The graph beside the table: the whole of a small network, of a large one what surrounds the selected node.

import { graphlib, layout } from "@dagrejs/dagre";
import { differs, family, type Entry } from "./entries.js";
import { el, number, numbersOf, svg } from "./dom.js";

const [WIDTH, HEIGHT] = [148, 34];
/** A network of more nodes is shown in part, so that layout takes no time that one would notice. */
const WHOLE = 160;
/** The most edges of what is shown, and the most ranks that they cross: layout makes a node for each. */
const [EDGES, CROSSED] = [400, 1500];
/** Milliseconds: a key that is held down selects many nodes, of which only the last is drawn. */
const PATIENCE = 40;
const AROUND = 36;

interface Placed {
  readonly nodes: ReadonlyMap<Entry, { readonly x: number; readonly y: number }>;
  readonly edges: readonly { readonly from: Entry; readonly to: Entry; readonly points: readonly { readonly x: number; readonly y: number }[] }[];
  readonly width: number;
  readonly height: number;
  /** Nodes with neighbours that are left out. */
  readonly open: ReadonlySet<Entry>;
}

interface Neighbours {
  readonly before: Set<Entry>;
  readonly after: Set<Entry>;
}

export class GraphView {
  readonly element: HTMLElement;
  readonly #canvas = svg("svg", { class: "canvas", "aria-hidden": "true" });
  readonly #world = svg("g");
  readonly #caption = el("span", { class: "dim" });
  readonly #choose: (entry: Entry) => void;
  #neighbours: ReadonlyMap<Entry, Neighbours> = new Map();
  #entries: readonly Entry[] = [];
  #placed: Placed | null = null;
  #whole = true;
  #boxes = new Map<Entry, SVGElement>();
  #lines: { readonly from: Entry; readonly to: Entry; readonly line: SVGElement }[] = [];
  #waiting: ReturnType<typeof setTimeout> | undefined;
  #zoom = 1;
  #centre = { x: 0, y: 0 };

  constructor(choose: (entry: Entry) => void) {
    this.#choose = choose;
    this.#canvas.append(
      svg("defs", {}, svg("marker", { id: "arrow", viewBox: "0 0 6 6", refX: 5, refY: 3, markerWidth: 6, markerHeight: 6, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { d: "M0 0L6 3L0 6z", class: "tip" }))),
      this.#world,
    );
    const button = (label: string, text: string, work: () => void) => el("button", { type: "button", "aria-label": label, title: label, click: work }, text);
    this.element = el(
      "section",
      { class: "graph", "aria-label": "Graph" },
      el("div", { class: "bar" }, this.#caption, el("span", { class: "push" }), button("Zoom out", "−", () => this.#scale(1 / 1.25)), button("Zoom in", "+", () => this.#scale(1.25)), button("Fit the graph", "⤢", () => this.#fit())),
      this.#canvas,
    );
    this.#listen();
    new ResizeObserver(() => this.#move()).observe(this.#canvas);
  }

  show(entries: readonly Entry[]): void {
    this.#entries = entries;
    this.#neighbours = neighbours(entries);
    this.#whole = entries.length <= WHOLE && isClear(entries, this.#neighbours);
    this.#placed = null;
    this.#zoom = 1;
    this.select(null);
    this.#top();
  }

  select(entry: Entry | null): void {
    const whole = this.#whole;
    if (!this.#entries.length) {
      this.#world.replaceChildren();
      return;
    }
    if (!this.#placed || !(whole || (entry && this.#placed.nodes.has(entry) && !this.#placed.open.has(entry)))) {
      clearTimeout(this.#waiting);
      if (whole || !this.#placed) {
        this.#place(whole ? this.#entries : this.#around(entry ?? this.#entries[0]!));
      } else {
        this.#waiting = setTimeout(() => {
          this.#place(this.#around(entry ?? this.#entries[0]!));
          this.#mark(entry);
        }, PATIENCE);
        return;
      }
    }
    this.#mark(entry);
  }

  #mark(entry: Entry | null): void {
    for (const [each, box] of this.#boxes) {
      box.classList.toggle("selected", each === entry);
    }
    for (const { from, to, line } of this.#lines) {
      line.classList.toggle("selected", from === entry || to === entry);
    }
    const place = entry && this.#placed?.nodes.get(entry);
    if (place) {
      this.#centre = { ...place };
      this.#move();
    }
  }

  /** The nearest nodes, by the number of edges between; fewer if these have many edges. */
  #around(entry: Entry): Entry[] {
    for (let most = AROUND; ; most = Math.ceil(most / 2)) {
      const found = this.#nearest(entry, most).sort((a, b) => a.at - b.at);
      if (most === 1 || isClear(found, this.#neighbours)) {
        return found;
      }
    }
  }

  #nearest(entry: Entry, most: number): Entry[] {
    const found = new Set([entry]);
    for (const each of found) {
      const { before, after } = this.#neighbours.get(each)!;
      for (const next of [...before, ...after]) {
        if (found.size >= most) {
          break;
        }
        found.add(next);
      }
    }
    return [...found];
  }

  #place(entries: readonly Entry[]): void {
    this.#placed = placed(entries, this.#neighbours);
    const { nodes, edges, open } = this.#placed;
    this.#caption.textContent = entries.length === this.#entries.length ? `${number(entries.length)} nodes` : `${entries.length} of ${number(this.#entries.length)} nodes`;
    this.#lines = edges.map(({ from, to, points }) => ({ from, to, line: svg("path", { class: "edge", d: curve(points), "marker-end": "url(#arrow)" }) }));
    this.#boxes = new Map([...nodes].map(([entry, { x, y }]) => [entry, this.#box(entry, x, y, open.has(entry))]));
    this.#world.replaceChildren(...this.#lines.map(({ line }) => line), ...this.#boxes.values());
  }

  #box(entry: Entry, x: number, y: number, isOpen: boolean): SVGElement {
    const { node, made, status } = entry;
    const scale = numbersOf(made?.grid?.scale ?? []);
    const operator = node.operator.replace(/^qfmt\./, "");
    const unit = scale.length === 1 ? number(Number(scale[0]!.toPrecision(3))) : "";
    return svg(
      "g",
      { class: `box ${family(node.operator)} ${status}${differs(status) ? " differs" : ""}${isOpen ? " open" : ""}`, transform: `translate(${x - WIDTH / 2},${y - HEIGHT / 2})`, click: () => this.#choose(entry) },
      svg("title", {}, `${node.name} (${node.operator})`),
      svg("rect", { width: WIDTH, height: HEIGHT, rx: 5 }),
      svg("rect", { class: "stripe", width: 4, height: HEIGHT, rx: 2 }),
      svg("text", { x: 11, y: 14, class: "operator" }, cut(operator, Math.floor((126 - 6 * unit.length) / 6.9))),
      unit && svg("text", { x: WIDTH - 7, y: 14, class: "unit" }, unit),
      svg("text", { x: 11, y: 27, class: "name" }, tail(node.name, 22)),
    );
  }

  #listen(): void {
    let held: { x: number; y: number } | null = null;
    const canvas = this.#canvas;
    canvas.addEventListener("pointerdown", ({ clientX, clientY }) => (held = { x: clientX, y: clientY }));
    canvas.addEventListener("pointermove", (event) => {
      if (held && event.buttons) {
        this.#centre = { x: this.#centre.x - (event.clientX - held.x) / this.#zoom, y: this.#centre.y - (event.clientY - held.y) / this.#zoom };
        held = { x: event.clientX, y: event.clientY };
        this.#move();
      }
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) {
        this.#scale(Math.exp(-event.deltaY / 300));
      } else {
        this.#centre = { x: this.#centre.x + event.deltaX / this.#zoom, y: this.#centre.y + event.deltaY / this.#zoom };
        this.#move();
      }
    }, { passive: false });
  }

  #scale(by: number): void {
    this.#zoom = Math.max(0.05, Math.min(3, this.#zoom * by));
    this.#move();
  }

  /** The beginning of the network, at the top. */
  #top(): void {
    this.#centre = { x: (this.#placed?.width ?? 0) / 2, y: this.#canvas.clientHeight / 2 };
    this.#move();
  }

  #fit(): void {
    if (this.#placed) {
      const { width, height } = this.#placed;
      const { clientWidth, clientHeight } = this.#canvas;
      this.#zoom = Math.max(0.05, Math.min(1.5, clientWidth / (width + 24), clientHeight / (height + 24)));
      this.#centre = { x: width / 2, y: height / 2 };
      this.#move();
    }
  }

  #placedHeight(): number {
    return this.#placed?.height ?? 0;
  }

  #move(): void {
    const { clientWidth, clientHeight } = this.#canvas;
    const width = this.#placed?.width ?? 0;
    const x = width * this.#zoom <= clientWidth ? width / 2 : this.#centre.x; // what fits stays in the middle
    const [least, most] = [(clientHeight / 2) / this.#zoom, this.#placedHeight() - clientHeight / 2 / this.#zoom];
    const y = least > most ? this.#placedHeight() / 2 : Math.max(least, Math.min(most, this.#centre.y)); // no empty ends
    this.#world.setAttribute("transform", `translate(${clientWidth / 2 - x * this.#zoom},${clientHeight / 2 - y * this.#zoom}) scale(${this.#zoom})`);
  }
}

function neighbours(entries: readonly Entry[]): ReadonlyMap<Entry, Neighbours> {
  const found = new Map(entries.map((entry): [Entry, Neighbours] => [entry, { before: new Set(), after: new Set() }]));
  const makers = new Map<string, Entry>();
  const key = ({ model }: Entry, place: number) => `${model === entries[0]?.model ? 0 : 1}:${place}`;
  for (const entry of entries) {
    entry.node.outputs.forEach((place) => makers.set(key(entry, place), entry));
    if (entry.other) {
      const other = { ...entry, model: entry.other.model };
      entry.other.node.outputs.forEach((place) => makers.set(key(other, place), entry));
    }
  }
  for (const entry of entries) {
    for (const place of new Set(entry.node.inputs)) {
      const maker = makers.get(key(entry, place));
      if (maker && maker !== entry) {
        found.get(entry)!.before.add(maker);
        found.get(maker)!.after.add(entry);
      }
    }
  }
  return found;
}

/** Whether layout is quick. Each entry ranks below all that it reads; in a circle, which two files may have together, any
 * edge may cross all ranks. */
function isClear(entries: readonly Entry[], known: ReadonlyMap<Entry, Neighbours>): boolean {
  const inside = new Set(entries);
  const before = new Map(entries.map((entry) => [entry, [...known.get(entry)!.before].filter((each) => inside.has(each))]));
  const open = new Map(entries.map((entry) => [entry, before.get(entry)!.length]));
  const ranks = new Map<Entry, number>();
  const next = entries.filter((entry) => !open.get(entry));
  for (const entry of next) {
    ranks.set(entry, Math.max(-1, ...before.get(entry)!.map((each) => ranks.get(each)!)) + 1);
    for (const each of known.get(entry)!.after) {
      if (inside.has(each)) {
        open.set(each, open.get(each)! - 1);
        if (!open.get(each)) {
          next.push(each);
        }
      }
    }
  }
  const spans = entries.flatMap((entry) => before.get(entry)!.map((each) => (ranks.has(entry) ? ranks.get(entry)! - ranks.get(each)! : entries.length)));
  return spans.length <= EDGES && spans.reduce((sum, span) => sum + span, 0) <= CROSSED;
}

function placed(entries: readonly Entry[], known: ReadonlyMap<Entry, Neighbours>): Placed {
  const graph = new graphlib.Graph().setGraph({ rankdir: "TB", nodesep: 12, ranksep: 18, edgesep: 8, marginx: 6, marginy: 6 }).setDefaultEdgeLabel(() => ({}));
  const inside = new Set(entries);
  const open = new Set<Entry>();
  entries.forEach((entry) => graph.setNode(String(entry.at), { width: WIDTH, height: HEIGHT }));
  for (const entry of entries) {
    const { before, after } = known.get(entry)!;
    [...before].filter((each) => inside.has(each)).forEach((each) => graph.setEdge(String(each.at), String(entry.at)));
    if ([...before, ...after].some((each) => !inside.has(each))) {
      open.add(entry);
    }
  }
  layout(graph);
  const byPlace = new Map(entries.map((entry) => [String(entry.at), entry]));
  const { width = 0, height = 0 } = graph.graph() as { width?: number; height?: number };
  return {
    nodes: new Map(entries.map((entry) => [entry, graph.node(String(entry.at)) as { x: number; y: number }])),
    edges: graph.edges().map((edge) => ({ from: byPlace.get(edge.v)!, to: byPlace.get(edge.w)!, points: (graph.edge(edge) as { points: { x: number; y: number }[] }).points })),
    width,
    height,
    open,
  };
}

/** Through the middles of the parts between points, which gives smooth corners. */
function curve(points: readonly { readonly x: number; readonly y: number }[]): string {
  const [first, ...rest] = points.map(({ x, y }) => ({ x: Math.round(x * 10) / 10, y: Math.round(y * 10) / 10 }));
  const inner = rest.slice(0, -1).map((point, at) => {
    const next = rest[at + 1]!;
    const end = at + 2 === rest.length ? next : { x: (point.x + next.x) / 2, y: (point.y + next.y) / 2 };
    return `Q${point.x} ${point.y} ${end.x} ${end.y}`;
  });
  const last = rest.at(-1)!;
  return `M${first!.x} ${first!.y}${inner.length ? inner.join("") : `L${last.x} ${last.y}`}`;
}

const cut = (text: string, most: number) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const tail = (text: string, most: number) => (text.length > most ? `…${text.slice(1 - most)}` : text);
