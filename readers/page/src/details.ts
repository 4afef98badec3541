// What is beside the table: of a node its arithmetic, its tensors and what stands out; of the model where it came from.

import { histogram, scalePlot } from "./charts.js";
import type { Description, NodeFacts, Numeric, Statistics, TensorFacts } from "./description.js";
import { bytes, el, MOST, number, numbersOf, percent, plural, shape, short, span } from "./dom.js";
import { differs, family, findingsOf, granularity, STATUSES, tensorsOf, type Entry, type Finding } from "./entries.js";
import { arithmeticOf, type Arithmetic, type Symbol } from "./formulas.js";

type Choose = (entry: Entry) => void;
const FINDINGS = 60;
/** The most constants of a node that are drawn. */
const CONSTANTS = 16;

export class Details {
  readonly element = el("section", { class: "details", "aria-label": "Details", tabindex: 0 });
  readonly #choose: Choose;
  #channel = 0;
  #log = false;
  #shown: Entry | null = null;

  constructor(choose: Choose) {
    this.#choose = choose;
  }

  overview(model: Description, entries: readonly Entry[]): void {
    this.#shown = null;
    this.element.replaceChildren(...overview(model, entries, this.#choose));
    this.element.scrollTop = 0;
  }

  async node(entry: Entry): Promise<void> {
    if (this.#shown !== entry) {
      this.#channel = 0;
      this.element.scrollTop = 0;
    }
    this.#shown = entry;
    const pending = tensorsOf(entry.node.inputs.slice(0, MOST), entry.model).filter((tensor) => tensor?.load);
    if (pending.length) {
      this.element.replaceChildren(heading(entry), el("p", { class: "dim" }, "Reading …"));
      await Promise.all(pending.map((tensor) => tensor!.load?.()));
      entry.findings = findingsOf(entry.node, entry.weight);
    }
    if (this.#shown === entry) {
      this.#draw(entry);
    }
  }

  #draw(entry: Entry): void {
    const { node, model } = entry;
    const found = arithmeticOf(entry, this.#channel);
    const again = (work: () => void) => {
      work();
      this.#draw(entry);
    };
    const { scrollTop } = this.element;
    this.element.replaceChildren(
      heading(entry),
      ...difference(entry),
      ...findings(entry.findings),
      ...arithmetic(found, this.#channel, (channel) => again(() => (this.#channel = channel))),
      ...proof(entry),
      ...constants(entry).slice(0, 1).flatMap((tensor) => this.#constant(entry, tensor, again)),
      ...tensors(entry),
      ...constants(entry).slice(1).flatMap((tensor) => this.#constant(entry, tensor, again)),
      ...hazard(entry),
      ...attributes(node),
      ...origin(node, model),
    );
    this.element.scrollTop = scrollTop;
  }

  #constant(entry: Entry, tensor: TensorFacts, again: (work: () => void) => void): HTMLElement[] {
    const { stats, grid } = tensor;
    if (!stats) {
      return [];
    }
    const role = tensor === entry.weight ? "Weight" : tensor === entry.bias ? "Bias" : "Constant";
    const toggle = el("button", { type: "button", class: "small", "aria-pressed": String(this.#log), click: () => again(() => (this.#log = !this.#log)) }, "log");
    const scales = numbersOf(grid?.scale ?? []);
    const plot = grid && grid.axis !== undefined && scales.length === grid.count && scales.length > 1
      ? scalePlot(scales, stats.peaks, this.#channel, (channel) => again(() => (this.#channel = channel)))
      : null;
    const chart = histogram(stats, grid, this.#log);
    return section(
      role,
      el("div", { class: "line mono" }, tensor.name, el("span", { class: "push" }), chart ? toggle : null),
      stats.error ? el("p", { class: "fault" }, stats.error) : null,
      chart,
      numbers(stats, tensor),
      plot && el("h4", {}, "Scales per channel"),
      plot,
      tensor.array && (tensor.shape?.length ?? 0) > 0 ? values(tensor, this.#channel) : null,
    );
  }
}

const section = (title: string, ...children: (Node | string | null | undefined | false)[]): HTMLElement[] => [el("section", { class: "part" }, el("h3", {}, title), ...children)];

function heading({ node }: Entry): HTMLElement {
  return el("header", {}, el("h2", { class: "mono" }, node.name), el("div", { class: "line" }, el("span", { class: `family ${family(node.operator)}` }), node.operator, el("span", { class: "dim" }, node.from && node.from !== node.operator ? `from ${node.from}` : "")));
}

function findings(found: readonly Finding[]): HTMLElement[] {
  return found.length ? [el("ul", { class: "findings" }, ...found.map(({ kind, label, text }) => el("li", {}, el("span", { class: `badge ${kind}` }, label), text)))] : [];
}

function difference({ status, words, counts, other, node, model }: Entry): HTMLElement[] {
  if (!status) {
    return [];
  }
  const kinds = ["equal", "tie", "close", "saturated", "overflow", "stated", "wrong"] as const;
  const shares = counts?.outputs
    ? el("div", { class: "shares" }, ...kinds.filter((kind) => counts[kind]).map((kind) => {
        const part = el("span", { class: `share ${kind}`, title: `${kind}: ${number(counts[kind])}` });
        part.style.flexGrow = String(counts[kind]);
        return part;
      }))
    : null;
  const listed = counts?.outputs
    ? facts(kinds.filter((kind) => counts[kind]).map((kind) => [kind, `${number(counts[kind])} of ${number(counts.outputs)} (${percent(counts[kind], counts.outputs)})`]), counts.largest ? [["off by at most", number(counts.largest)]] : [])
    : null;
  const pair = other && differs(status) ? sideBySide(node, model, other.node, other.model) : null;
  return [el("section", { class: `part comparison ${differs(status) ? "differs" : ""}` }, el("h3", {}, "Comparison"), el("div", { class: "line" }, el("span", { class: `mark ${status}` }), STATUSES[status]), shares, listed, list(words), pair)];
}

function sideBySide(a: NodeFacts, first: Description, b: NodeFacts, second: Description): HTMLElement {
  const rows: (readonly [string, string, string])[] = [["operator", a.operator, b.operator], ["rule", a.rule, b.rule]];
  const told = (tensor: TensorFacts | null) => (tensor ? `${short(tensor.dtype)} ${shape(tensor.shape)}${tensor.grid ? ` · ${span(tensor.grid.scale)} · ${span(tensor.grid.zero)}` : ""}` : "–");
  const each = (name: string, mine: readonly number[], theirs: readonly number[]) => {
    const [left, right] = [tensorsOf(mine.slice(0, MOST), first), tensorsOf(theirs.slice(0, MOST), second)];
    for (let at = 0; at < Math.max(left.length, right.length); at++) {
      rows.push([`${name} ${at + 1}`, told(left[at] ?? null), told(right[at] ?? null)]);
    }
  };
  each("input", a.inputs, b.inputs);
  each("output", a.outputs, b.outputs);
  return table(["", first.name, second.name], rows.map(([name, left, right]) => [name, left, right]), rows.map(([, left, right]) => left !== right));
}

function arithmetic(found: Arithmetic, channel: number, choose: (channel: number) => void): HTMLElement[] {
  const { meaning, integers, way, rule, by, formula, filled, symbols, channels } = found;
  const chooser = channels > 1
    ? el("label", { class: "line" }, "Channel", el("input", { type: "number", min: 0, max: channels - 1, value: channel, change: ({ target }: Event & { target: HTMLInputElement }) => choose(Math.max(0, Math.min(channels - 1, Math.trunc(Number(target.value)) || 0))) }), el("span", { class: "dim" }, `of ${number(channels)}`))
    : null;
  const withNumbers = filled.some((part) => typeof part !== "string");
  return section(
    "Arithmetic",
    meaning ? el("p", { class: "mono" }, meaning) : el("p", { class: "dim" }, "The operator is not one of qfmt's: what it computes is not known."),
    integers && rule ? el("p", { class: "mono dim" }, integers) : null,
    chooser,
    rule && el("div", { class: "formula" },
      el("div", { class: "line" }, el("strong", { class: "mono" }, rule), el("span", { class: "dim" }, by)),
      formula && el("code", {}, formula),
      withNumbers && el("code", { class: "numbers" }, ...filled.map((part) => (typeof part === "string" ? part : el("b", { title: part.symbol }, part.value)))),
    ),
    !rule && meaning ? el("p", { class: "dim" }, way.startsWith("moves") ? "It moves integers unchanged: nothing is rounded." : way.startsWith("float") ? "It computes with real numbers." : "No rule is stated: nothing is rounded to integers here.") : null,
    symbols.length ? table(["", "", ""], paired(symbols).map(({ name, value, meaning: what }) => [name, number(value), what]), [], "symbols") : null,
  );
}

/** Scale and zero point of one tensor in one row. */
function paired(symbols: readonly Symbol[]): Symbol[] {
  return symbols.flatMap((symbol, at) => {
    const [before, after] = [symbols[at - 1], symbols[at + 1]];
    const isZero = (zero: Symbol | undefined, scale: Symbol | undefined) => !!zero && /^z/.test(zero.name) && scale?.name === zero.name.replace("z", "s");
    if (isZero(after, symbol)) {
      return [{ name: `${symbol.name}, ${after!.name}`, value: `${number(symbol.value)}, ${number(after!.value)}`, meaning: symbol.meaning.replace("scale", "scale, zero point") }];
    }
    return isZero(symbol, before) ? [] : [symbol];
  });
}

function proof({ node, model }: Entry): HTMLElement[] {
  if (!node.proof) {
    return [];
  }
  const { low, high, compared, differs: count, largest } = node.proof;
  const verdict = !compared ? "It was not compared with another rule."
    : count ? `It differs from ${compared} in ${plural(count, "case")}, by at most ${number(largest)}.`
    : `The file states that it gives the integers of ${compared} for every sum that can occur. qfmt verify compares it with the source.`;
  const broken = model.proofs.broken?.filter((each) => Number(/^P\d node (\d+) /.exec(each)?.[1]) === model.nodes.indexOf(node));
  const ends = (values: readonly Numeric[]) => span(values);
  return section("Requantization: proof", el("p", {}, verdict), facts([["least sum", ends(low)], ["greatest sum", ends(high)], ["channels", number(low.length)]]), list(broken, "words fault"));
}

function hazard({ node }: Entry): HTMLElement[] {
  if (!node.hazard) {
    return [];
  }
  const { channels, everywhere, overflow } = node.hazard;
  const rows = Object.entries(overflow).map(([engine, count]) => [engine, `in ${number(count)} of ${plural(channels, "channel")}`] as const);
  const also = everywhere ? [el("p", {}, "In fbgemm, whose kernel for depthwise convolutions has 16 bits, on processors with VNNI, too.")] : [];
  return section("On processors without VNNI", el("p", {}, "Kernels that sum two products in 16 bits can overflow:"), facts(rows), ...also);
}

function tensors({ node, model, weight, bias, data }: Entry): HTMLElement[] {
  const role = (tensor: TensorFacts | null, index: number) => (tensor === weight ? "weight" : tensor === bias ? "bias" : tensor === data ? "input" : `input ${index + 1}`);
  const rows = [
    ...tensorsOf(node.inputs.slice(0, MOST), model).map((tensor, index) => [role(tensor, index), tensor] as const),
    ...tensorsOf(node.outputs.slice(0, MOST), model).map((tensor, index) => [node.outputs.length > 1 ? `output ${index + 1}` : "output", tensor] as const),
  ];
  const cells = rows.filter(([, tensor]) => tensor).map(([name, tensor]) => [name, ...tensorCells(tensor!)]);
  const left = node.inputs.length + node.outputs.length - rows.length;
  return section("Tensors", table(["", "name", "type", "shape", "scale", "zero", "codes", "real range"], cells, [], "wide"), left ? el("p", { class: "dim" }, `and ${number(left)} more`) : null);
}

function tensorCells({ name, dtype, shape: sizes, grid }: TensorFacts): string[] {
  return [name, short(dtype), shape(sizes), ...(grid ? [span(grid.scale) + (grid.count > 1 ? ` ×${number(grid.count)}` : ""), span(grid.zero), `${number(grid.min)}…${number(grid.max)}`, realRange(grid)] : ["", "", "", ""])];
}

/** What the codes stand for, with the largest scale. */
function realRange({ scale, zero, min, max, extras }: NonNullable<TensorFacts["grid"]>): string {
  const [scales, points] = [numbersOf(scale), numbersOf(zero)];
  if (extras || !scales.length || points.length !== 1) {
    return "";
  }
  const largest = scales.reduce((a, b) => Math.max(a, b), 0);
  return [min, max].map((code) => number(Number(((code - points[0]!) * largest).toPrecision(3)))).join("…");
}

function constants(entry: Entry): TensorFacts[] {
  const read = tensorsOf(entry.node.inputs.slice(0, MOST), entry.model).filter((tensor): tensor is TensorFacts => !!tensor?.stats && tensor.stats.elements !== 1);
  return [...new Set([...(entry.weight ? [entry.weight] : []), ...read])].slice(0, CONSTANTS);
}

function numbers(stats: Statistics, { grid, dtype, shape: sizes }: TensorFacts): HTMLElement {
  const { elements = 0, min, max, used, codes, low, high, dead, peaks } = stats;
  const rows: [string, string][] = [["type", `${dtype} ${shape(sizes)}, ${plural(elements, "value")}`]];
  if (min !== undefined && max !== undefined) {
    rows.push(["stored range", `${number(min)}…${number(max)}`]);
  }
  if (grid) {
    const per = granularity(grid);
    rows.push(["scale", `${grid.error ?? span(grid.scale)}, ${grid.type}${per ? `, ${per}` : ""}`], ["zero point", span(grid.zero)]);
    if (grid.extras) {
      rows.push(["also", grid.extras.join(", ")]);
    }
  }
  if (grid && low !== undefined && high !== undefined && elements) {
    rows.push(["saturation", `${number(low)} at ${number(grid.min)}, ${number(high)} at ${number(grid.max)}: ${percent(low + high, elements)}`]);
  }
  if (used !== undefined && codes !== undefined) {
    rows.push(["unused codes", `${number(codes - used)} of ${number(codes)}`]);
  }
  if (dead !== undefined) {
    const which = peaks && dead ? `: ${peaks.flatMap((peak, at) => (peak ? [] : [at])).slice(0, 24).join(", ")}${dead > 24 ? ", …" : ""}` : "";
    rows.push(["dead channels", `${number(dead)}${which}`]);
  }
  if (grid?.observed) {
    const { observer, min: least, max: most } = grid.observed;
    rows.push(["observed", `${span([...least, ...most])}, ${observer}`]);
  }
  return facts(rows);
}

/** The stored values of a channel, when they are asked for. */
function values(tensor: TensorFacts, channel: number): HTMLElement {
  const MOST = 144;
  const listed = el("div", { class: "values mono" });
  const sizes = (tensor.shape ?? []) as number[];
  const axis = tensor.grid?.axis ?? 0;
  const many = sizes.length > 1;
  const inner = sizes.slice(axis + 1).reduce((a, b) => a * b, 1);
  const show = async () => {
    const array = await tensor.array!().catch((error: Error) => void listed.replaceChildren(error.message));
    if (!array) {
      return;
    }
    const of = (index: number) => !many || Math.floor(index / inner) % sizes[axis]! === channel;
    const found: string[] = [];
    for (let index = 0; index < array.length && found.length < MOST; index++) {
      if (of(index)) {
        found.push(number(typeof array[index] === "bigint" ? String(array[index]) : (array[index] as number)));
      }
    }
    listed.replaceChildren(...found.map((each) => el("span", {}, each)));
  };
  return el("details", { toggle: ({ target }: Event & { target: HTMLDetailsElement }) => void (target.open && show()) }, el("summary", {}, many ? `Values of channel ${channel}` : "Values"), listed);
}

function attributes({ attributes: found, version }: NodeFacts): HTMLElement[] {
  const rows = found.map(([key, value]) => [key, Array.isArray(value) ? `[${value.join(", ")}]` : String(value)] as const);
  return section("Attributes", facts([...rows, ["operator version", String(version)]]));
}

function origin({ scope, from, inputs, outputs }: NodeFacts, model: Description): HTMLElement[] {
  const named = tensorsOf([...inputs.slice(0, MOST), ...outputs.slice(0, MOST)], model).filter((tensor) => tensor?.aliases?.length);
  return section("Original names", facts([["module", scope || "–"], ["operator", from || "–"], ...named.map((tensor) => [tensor!.name, tensor!.aliases!.join(", ")] as [string, string])]));
}

function facts(...rows: (readonly (readonly [string, string])[])[]): HTMLElement {
  const all = rows.flat();
  const shown = all.length > MOST ? [...all.slice(0, MOST), ["", `and ${number(all.length - MOST)} more`] as const] : all;
  return el("dl", {}, ...shown.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

/** Sentences; null without any. */
function list(words: readonly string[] = [], kind = "words"): HTMLElement | null {
  const shown = words.length > MOST ? [...words.slice(0, MOST), `and ${number(words.length - MOST)} more`] : words;
  return words.length ? el("ul", { class: kind }, ...shown.map((word) => el("li", {}, word))) : null;
}

function table(head: readonly string[], rows: readonly (readonly string[])[], marked: readonly boolean[] = [], kind = ""): HTMLElement {
  const titles = head.some(Boolean) ? el("thead", {}, el("tr", {}, ...head.map((title) => (title ? el("th", { scope: "col" }, title) : el("td"))))) : null;
  const body = rows.map((cells, at) => el("tr", { class: marked[at] ? "differs" : null }, ...cells.map((cell, index) => (index ? el("td", { title: cell }, cell) : el("th", { scope: "row" }, cell)))));
  return el("div", { class: "scroll", tabindex: kind === "wide" ? 0 : null, role: kind === "wide" ? "group" : null, "aria-label": kind === "wide" ? "Tensors" : null }, el("table", { class: kind || null }, titles, el("tbody", {}, ...body)));
}

// The model

function overview(model: Description, entries: readonly Entry[], choose: Choose): HTMLElement[] {
  const operators = new Map<string, number>();
  entries.forEach(({ node }) => operators.set(node.operator, (operators.get(node.operator) ?? 0) + 1));
  const constants = model.tensors.filter(({ stats }) => stats);
  const types = new Map<string, number>();
  constants.forEach(({ dtype, stats }) => types.set(dtype, (types.get(dtype) ?? 0) + (stats?.elements ?? 0)));
  const total = [...types.values()].reduce((a, b) => a + b, 0);
  const ends = (places: readonly number[]) => tensorsOf(places.slice(0, MOST), model).map((tensor) => (tensor ? `${tensor.name} ${short(tensor.dtype)} ${shape(tensor.shape)}` : "?")).join(", ") + (places.length > MOST ? ", …" : "");
  const sorted = (counts: Map<string, number>) => [...counts].sort((a, b) => b[1] - a[1]);
  const source = new Map(model.source);
  const from = [source.get("format"), source.get("framework")].filter(Boolean).join(", ");
  return [
    el("header", {}, el("h2", { class: "mono" }, model.name), el("div", { class: "line dim" }, [plural(entries.length, "node"), plural(model.tensors.length, "tensor"), model.size === null ? "" : bytes(model.size)].filter(Boolean).join(" · "))),
    ...(model.faults.length ? section("Faults", list(model.faults, "words fault")) : []),
    ...compared(model, entries, choose),
    ...section("Model", facts(
      [["from", from || "–"], ["rounding", model.engine ? `as in ${model.engine}` : "–"], ["inputs", ends(model.inputs) || "–"], ["outputs", ends(model.outputs) || "–"], ["producer", model.producer || "–"]],
      model.vectors ? [["test vectors", number(model.vectors)]] : [],
      model.noGraph ? [["graph", model.noGraph]] : [],
      model.content ? [["content id", model.content]] : [],
    )),
    ...(operators.size ? section("Operators", bars(sorted(operators).map(([name, count]) => [name, count, family(name)]))) : []),
    ...(total ? section("Parameters", bars(sorted(types).map(([name, count]) => [name, count, "grid"]))) : []),
    ...proven(model),
    ...hazards(entries),
    ...standingOut(entries, choose),
    ...(model.source.length ? section("Source", facts(model.source)) : []),
    ...(model.metadata.length ? section("Metadata", facts(model.metadata)) : []),
  ];
}

function bars(rows: readonly (readonly [string, number, string])[]): HTMLElement {
  const total = rows.reduce((sum, [, count]) => sum + count, 0);
  const most = rows.reduce((top, [, count]) => Math.max(top, count), 1);
  return el("ul", { class: "bars" }, ...rows.slice(0, 12).map(([name, count, kind]) => {
    const bar = el("span", { class: `fill ${kind}` });
    bar.style.width = `${Math.max(1, (count / most) * 100)}%`;
    return el("li", {}, el("span", { class: "mono" }, name), el("span", { class: "rail" }, bar), el("span", { class: "count", title: percent(count, total) }, number(count)));
  }));
}

function proven({ proofs }: Description): HTMLElement[] {
  if (proofs.sums === undefined) {
    return [];
  }
  const wrong = [...(proofs.broken ?? []), ...(proofs.unknown ?? [])];
  return section("Sums, recomputed", el("p", {}, `${plural(proofs.sums, "node")} keep their sums inside int32, ${plural(proofs.reaches ?? 0, "requantization")} cover every sum that can occur.`), list(wrong, "words fault"));
}

function hazards(entries: readonly Entry[]): HTMLElement[] {
  const count = entries.filter(({ node }) => node.hazard).length;
  return count ? section("On processors without VNNI", el("p", {}, `${plural(count, "product")} can overflow 16 bits in kernels of other engines. Select a node to see which.`)) : [];
}

function compared(model: Description, entries: readonly Entry[], choose: Choose): HTMLElement[] {
  const { comparison } = model;
  if (!comparison) {
    return [];
  }
  const first = entries.find(({ status }) => differs(status));
  const link = first && el("button", { type: "button", class: "link mono", click: () => choose(first) }, `${first.node.name} (${first.node.operator})`);
  if (comparison.kind === "diff") {
    const count = entries.filter(({ status }) => differs(status)).length;
    const verdict = comparison.equal ? "The files are equal." : comparison.sameContent ? "The same network: only descriptions differ." : `${plural(count, "node")} of ${number(entries.length)} differ.`;
    return section(`Compared with ${comparison.other.name}`, el("p", {}, verdict), first && el("p", {}, "The first difference: ", link!), list(comparison.words));
  }
  const { source, engine, version, ok, exact, first: said, skipped, inputs, outputs, words } = comparison;
  const verdict = skipped ? `Constants were compared; nodes were not run: ${skipped}` : exact ? "Every output of every node is equal." : ok ? "Nothing is wrong: every difference is explained." : `First wrong: ${said}`;
  return section(
    "Verified with its source",
    el("p", { class: ok ? null : "fault" }, verdict),
    first && el("p", {}, "The first difference: ", link!),
    facts([["source", source], ["engine", [engine, version].filter(Boolean).join(" ")], ["inputs", inputs || "–"]], outputs.map(({ name, outputs: all, equal, argmax_equal: same, argmax_total: samples }) => [name, `${number(equal)} of ${number(all)} equal${samples ? `, argmax agrees in ${same} of ${samples}` : ""}`] as const)),
    list(words),
  );
}

function standingOut(entries: readonly Entry[], choose: Choose): HTMLElement[] {
  const found = entries.flatMap((entry) => entry.findings.map((finding) => ({ entry, finding })));
  const order = { fault: 0, warning: 1, note: 2 };
  found.sort((a, b) => order[a.finding.kind] - order[b.finding.kind] || a.entry.at - b.entry.at);
  return found.length
    ? section(`Worth a look: ${number(found.length)}`, el("ul", { class: "findings" }, ...found.slice(0, FINDINGS).map(({ entry, finding }) => el("li", {}, el("span", { class: `badge ${finding.kind}` }, finding.label), el("button", { type: "button", class: "link mono", title: finding.text, click: () => choose(entry) }, entry.node.name)))), found.length > FINDINGS ? el("p", { class: "dim" }, `and ${number(found.length - FINDINGS)} more`) : null)
    : [];
}
