// The rows of the table: nodes of one model, or of two that are compared, with what stands out in each.

import type { Changes, Counts, Description, Grid, NodeFacts, TensorFacts } from "./description.js";
import { extremes, numbersOf, percent, plural } from "./dom.js";

/** How a node compares: "" without a comparison, or if it was not run. */
export type Status = "" | "same" | "explained" | "changed" | "wrong" | "added" | "removed";

export interface Finding {
  readonly kind: "fault" | "warning" | "note";
  readonly label: string;
  readonly text: string;
}

export interface Entry {
  /** The place among all entries, which is that of the row in the order of the graph. */
  readonly at: number;
  readonly node: NodeFacts;
  readonly model: Description;
  /** The same node of the other file. */
  readonly other: { readonly node: NodeFacts; readonly model: Description } | null;
  readonly status: Status;
  /** What differs, in words. */
  readonly words: readonly string[];
  readonly counts: Counts | null;
  readonly data: TensorFacts | null;
  readonly weight: TensorFacts | null;
  readonly bias: TensorFacts | null;
  readonly made: TensorFacts | null;
  findings: readonly Finding[];
  readonly path: readonly string[];
}

export const STATUSES: Readonly<Record<Exclude<Status, "">, string>> = {
  same: "equal",
  explained: "differs, explained",
  changed: "changed",
  wrong: "wrong",
  added: "only in the second file",
  removed: "only in the first file",
};

export const differs = (status: Status): boolean => status !== "" && status !== "same" && status !== "explained";

export function entriesOf(model: Description): Entry[] {
  const { comparison } = model;
  if (comparison?.kind !== "diff") {
    return model.nodes.map((node, at) => {
      const counts = comparison?.nodes[at] ?? null;
      const constants = comparison ? tensorWords(comparison.tensors, node, model) : [];
      return entry(at, node, model, null, statusOf(counts, constants), [...(counts?.differences ?? []), ...constants], counts);
    });
  }
  const { other, rows, tensors, otherTensors } = comparison;
  return rows.map(([mine, theirs, said], at) => {
    const [first, second] = [model.nodes[mine], other.nodes[theirs]];
    const constants = first ? tensorWords(tensors, first, model) : second ? tensorWords(otherTensors, second, other) : [];
    const words = [...said, ...constants];
    const status = !second ? "removed" : !first ? "added" : words.length ? "changed" : "same";
    return first
      ? entry(at, first, model, second ? { node: second, model: other } : null, status, words, null)
      : entry(at, second!, other, null, status, words, null);
  });
}

function statusOf(counts: Counts | null, constants: readonly string[]): Status {
  if (constants.length || counts?.wrong || counts?.differences.length) {
    return "wrong";
  }
  return !counts?.outputs ? "" : counts.equal === counts.outputs ? "same" : "explained";
}

/** Differences of the constants that a node reads. */
function tensorWords(changes: Changes, node: NodeFacts, model: Description): string[] {
  return [...new Set(node.inputs)].filter((place) => place in changes).map((place) => `${model.tensors[place]!.name}: ${changes[place]}`);
}

export function tensorsOf(places: readonly number[], model: Description): (TensorFacts | null)[] {
  return places.map((place) => model.tensors[place] ?? null);
}

function entry(
  at: number, node: NodeFacts, model: Description, other: Entry["other"], status: Status, words: readonly string[],
  counts: Counts | null,
): Entry {
  const read = tensorsOf(node.inputs, model);
  const data = read.find((tensor) => tensor && !tensor.stats && !tensor.load) ?? read[0] ?? null;
  const isConstant = (tensor: TensorFacts | null) => tensor !== null && tensor !== data && !!(tensor.stats ?? tensor.load);
  const constants = read.filter(isConstant) as TensorFacts[];
  const weight = constants.find(({ grid, shape }) => grid && (shape?.length ?? 0) > 1) ?? constants.find(({ grid }) => grid) ?? null;
  const bias = weight ? (constants.find((tensor) => tensor !== weight && tensor.shape?.length === 1) ?? null) : null;
  const made = tensorsOf(node.outputs, model)[0] ?? null;
  const found = { at, node, model, other, status, words, counts, data, weight, bias, made, path: pathOf(node) };
  return { ...found, findings: findingsOf(node, weight) };
}

/**
 * What a search accepts: entries that have every word in names of their own or of their tensors. The tensors are asked
 * once for each word, and nothing is kept: a hostile file may refer to a long name from every node.
 */
export function having(words: readonly string[], model: Description): (entry: Entry) => boolean {
  const models = model.comparison?.kind === "diff" ? [model, model.comparison.other] : [model];
  const wanted = words.map((word) => ({ word, tensors: new Set(models.flatMap(({ tensors }) => tensors.filter(({ name, aliases = [] }) => has([name, ...aliases], word)))) }));
  return ({ node, other, model: own }) =>
    wanted.every(({ word, tensors }) =>
      has([node.name, node.operator, node.scope, node.from, node.rule, other?.node.name ?? ""], word)
      || [node.inputs, node.outputs].some((places) => places.some((place) => tensors.has(own.tensors[place]!))));
}

const has = (names: readonly string[], word: string): boolean => names.some((name) => name.toLowerCase().includes(word));

/** The module that a node is in, and its own name there. */
function pathOf({ scope, name }: NodeFacts): string[] {
  const split = (text: string) => text.split(/[./]/).filter(Boolean).slice(0, 32);
  const [module, own] = [split(scope), split(name)];
  if (!module.length) {
    return own;
  }
  const inside = module.every((part, index) => own[index] === part);
  return inside ? (own.length > module.length ? own : module) : [...module, name];
}

/** What deserves a look. The limits decide only what is mentioned. */
export function findingsOf(node: NodeFacts, weight: TensorFacts | null): Finding[] {
  const found: Finding[] = [];
  const stats = weight?.stats;
  if (stats?.error) {
    found.push({ kind: "fault", label: "unreadable", text: stats.error });
  }
  if (stats?.dead) {
    found.push({ kind: "warning", label: `${stats.dead} dead`, text: `${plural(stats.dead, "channel")} of the weight ${stats.dead === 1 ? "is" : "are"} zero everywhere` });
  }
  const ends = (stats?.low ?? 0) + (stats?.high ?? 0);
  const expected = 2 * (weight?.grid?.count ?? 1); // scales are chosen so that the largest value of each channel is there
  if (stats?.elements && ends > expected && ends / stats.elements >= 0.01 && (stats.codes ?? 0) > 16) {
    const share = percent(ends, stats.elements);
    found.push({ kind: "warning", label: `sat ${share}`, text: `${share} of the weights are at quant_min or quant_max` });
  }
  if (stats?.codes && stats.used !== undefined && (stats.elements ?? 0) >= 8 * stats.codes && stats.used <= stats.codes / 2) {
    found.push({ kind: "note", label: `${stats.used}/${stats.codes}`, text: `the weight uses ${stats.used} of ${stats.codes} codes` });
  }
  const scales = numbersOf(weight?.grid?.scale ?? []).filter((scale) => scale > 0);
  const [low, high] = extremes(scales);
  if (scales.length > 1 && high / low >= 100) {
    const times = Math.round(high / low).toLocaleString("en-US");
    found.push({ kind: "note", label: `×${times}`, text: `the scales of the weight differ by a factor of ${times}` });
  }
  if (node.proof?.differs) {
    found.push({ kind: "note", label: "differs", text: `the requantization differs from ${node.proof.compared} in ${plural(node.proof.differs, "case")}` });
  }
  return found;
}

/** Per what there is a scale: in words, or "" for the whole tensor. */
export function granularity(grid: Grid): string {
  if (grid.axis !== undefined) {
    return `per channel (axis ${grid.axis}), ${plural(grid.count, "scale")}`;
  }
  return grid.block?.length ? `blocks of ${grid.block.map((size) => size || "all").join(" × ")}, ${plural(grid.count, "scale")}` : "";
}

const KINDS: readonly (readonly [string, RegExp])[] = [
  ["grid", /quantize|Requant|Table|Cast|WeightedSum/i],
  ["product", /^(Conv|.*Linear|Gemm|MatMul|QLinear|.*Conv|.*MatMul|Attention|.*Attention|LSTM|GRU|RNN|.*LSTM|.*GRU|.*Embedding.*)/],
  ["activation", /Relu|Sigmoid|Swish|Softmax|Tanh|Clip|Gelu|Elu|Mish|Erf|Softplus/i],
  ["pool", /Pool|Reduce|Mean|Norm|Resize/],
  ["element", /^(Add|Sub|Mul|Div|Pow|Sqrt|Neg|Abs|Exp|Log|Min|Max|Sum|Concat|.*Add.*)$/],
];

/** The family of an operator, which colours it. */
export function family(operator: string): string {
  return KINDS.find(([, pattern]) => pattern.test(operator.replace(/^qfmt\./, "")))?.[0] ?? "move";
}
