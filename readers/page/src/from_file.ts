// The description of a `.qfb` that is in the page, or dropped onto it: read by the reader of readers/js.

import { DTYPES, open, toFloat32, type Level, type Quantization, type StoredArray, type Tensor } from "../../js/src/index.js";
import type { Description, Grid, NodeFacts, Numeric, Pairs, TensorFacts } from "./description.js";
import { extremes, numeric } from "./dom.js";
import { CHANNELS, channelAxes, statisticsOf } from "./statistics.js";

/** The most bytes of constants, and constants, that are counted when a file is opened; others when they are looked at. */
const [EAGER, CONSTANTS] = [64e6, 2000];
/** The most bytes of scales that are read: many quantizations may share them. */
const SCALES = 64e6;
/** The limits of qfmt/view/description.py: characters of a text, elements of an attribute, aliases. */
const [LONGEST, ELEMENTS, ALIASES] = [500, 64, 8];

/** Throws QfbError for a file that cannot be read. */
export async function describeFile(file: Blob, name: string): Promise<Description> {
  const model = await open(file, { verify: canVerify() });
  const made = new Map<Quantization, Grid>();
  const budget = { bytes: SCALES };
  const tensors: TensorFacts[] = [];
  const places = new Map<string, number>();
  for (const tensor of model.tensors) {
    places.set(tensor.name, tensors.length);
    tensors.push(await tensorOf(tensor, made, budget));
  }
  const at = (names: readonly string[]) => names.map((each) => places.get(each) ?? -1);
  const nodes = [...model.nodes].map((node): NodeFacts => ({
    operator: text(node.operator),
    version: node.version,
    name: text(node.name || node.outputs[0] || node.operator),
    scope: text(node.scope),
    from: text(node.sourceOperator),
    rule: text(node.rule),
    inputs: at(node.inputs),
    outputs: at(node.outputs),
    attributes: [...node.attributes].map(([key, { value }]) => [text(key), plain(value)] as const),
  }));
  const axes = channelAxes(nodes, tensors);
  [...model.tensors].forEach((tensor, place) => loadable(tensors[place]!, tensor, axes.get(place)));
  const isArchive = !(model.inputs.length || model.outputs.length || nodes.length);
  const constants = [...model.tensors].flatMap(({ data }) => data ?? []);
  if (constants.length <= CONSTANTS && constants.reduce((sum, { nbytes }) => sum + nbytes, 0) <= EAGER) {
    await Promise.all(tensors.map((tensor) => tensor.load?.()));
  }
  return {
    name,
    size: file.size,
    content: await model.contentId(),
    graph: text(model.name),
    producer: text(model.producer),
    engine: text(model.engine),
    source: pairs(model.source),
    metadata: pairs(model.metadata),
    noGraph: isArchive ? text(model.source.get("no_graph") ?? "there is no graph, only tensors") : "",
    vectors: model.vectors.length,
    inputs: at(model.inputs),
    outputs: at(model.outputs),
    tensors,
    nodes,
    faults: [],
    proofs: {},
  };
}

function pairs(map: ReadonlyMap<string, string>): Pairs<string> {
  return [...map].map(([key, value]) => [text(key), text(value)]);
}

/** A text of the file, or its two ends: it may have a megabyte, and be that of every node. */
function text(whole: string): string {
  const letters = whole.length > LONGEST ? [...whole] : [];
  const [half, count] = [LONGEST / 2, letters.length];
  return count > LONGEST ? `${letters.slice(0, half).join("")}… (${count.toLocaleString("en-US")} characters) …${letters.slice(-half).join("")}` : whole;
}

async function tensorOf(tensor: Tensor, made: Map<Quantization, Grid>, budget: { bytes: number }): Promise<TensorFacts> {
  const { dtype, quantization } = tensor;
  const [name, aliases] = [text(tensor.name), tensor.aliases.slice(0, ALIASES).map(text)];
  const shape = tensor.shape && tensor.shape.map((size, axis) => (size === null ? text(tensor.dims[axis] ?? "") || null : numeric(size)));
  let grid = quantization ? made.get(quantization) : undefined;
  if (quantization && !grid) {
    budget.bytes -= bytesOf(quantization);
    grid = await gridOf(quantization, budget.bytes >= 0);
    made.set(quantization, grid);
  }
  return { name, dtype, shape, ...(aliases.length ? { aliases } : {}), ...(grid ? { grid } : {}) };
}

/** Whether nothing but scales and zero points counts. */
function isPlain({ scale, offset, table, groupIndex }: Quantization): boolean {
  return !(scale.quantization ?? offset ?? table ?? groupIndex);
}

/** Gives a constant its array, and statistics when they are asked for; `axis` is that of its channels. */
function loadable(facts: TensorFacts, { dtype, quantization, data }: Tensor, axis: number | undefined): void {
  if (!data) {
    return;
  }
  facts.load = async () => {
    delete facts.load;
    try {
      const array = await data.array();
      const sizes = (facts.shape ?? []) as number[];
      const isUsed = quantization && isPlain(quantization) && [1, sizes[axis ?? -1]].includes(quantization.zeroPoint.length as number);
      const points = isUsed ? await numbers(quantization.zeroPoint) : [];
      facts.stats = statisticsOf(array, dtype, sizes, axis, facts.grid, points);
      if (sizes.length < 2 && 0 < array.length && array.length <= CHANNELS) {
        facts.values = Array.from(await stored(data), numeric);
      }
    } catch (error) {
      facts.stats = { error: (error as Error).message };
    }
  };
  facts.stats = {};
  facts.array = () => stored(data);
}

/** How many bytes a quantization has. */
function bytesOf(level: Level): number {
  const arrays = [level.scale, level.zeroPoint, level.offset, level.table, level.groupIndex];
  return arrays.reduce((sum, array) => sum + (array?.nbytes ?? 0) + (array?.quantization ? bytesOf(array.quantization) : 0), 0);
}

/** Unless it `isRead`, only the form. */
async function gridOf(quantization: Quantization, isRead: boolean): Promise<Grid> {
  const { quantMin, quantMax, block, observed } = quantization;
  const axis = block.length && block.at(-1) === 1 && block.slice(0, -1).every((size) => !size) ? block.length - 1 : undefined;
  const kept = axis !== undefined || !block.length;
  const [scale, zero] = isRead ? await Promise.all([numbers(quantization.scale), numbers(quantization.zeroPoint)]) : [[], []];
  const extras = (["offset", "table", "groupIndex"] as const satisfies readonly (keyof Level)[]).filter((each) => quantization[each]);
  return {
    min: quantMin,
    max: quantMax,
    count: quantization.scale.length as number,
    type: quantization.scale.dtype,
    scale: kept && scale.length <= CHANNELS ? scale : ends(scale),
    zero: kept && zero.length <= CHANNELS ? zero : [...new Set(ends(zero))],
    ...(isRead ? {} : { error: "not read: the scales of this file are too many for the page" }),
    ...(block.length ? { block: block.map(Number) } : {}),
    ...(axis === undefined ? {} : { axis }),
    ...(extras.length ? { extras: extras.map((each) => (each === "groupIndex" ? "group index" : each)) } : {}),
    ...(observed ? { observed: { observer: text(observed.observer), min: [...observed.minimum.subarray(0, CHANNELS)], max: [...observed.maximum.subarray(0, CHANNELS)] } } : {}),
  };
}

function ends(values: readonly Numeric[]): Numeric[] {
  return extremes(values.filter((value): value is number => typeof value === "number"));
}

/** Real numbers, exactly where a number of JavaScript can be: scales in float64 are not rounded. */
async function numbers(stored: StoredArray): Promise<Numeric[]> {
  const exact = /^(u?int(8|16|32|64)|float(32|64))$/.test(stored.dtype) && !stored.quantization;
  const values: ArrayLike<number | bigint> = exact ? ((await stored.array()) as ArrayLike<number | bigint>) : await stored.dequantize();
  return Array.from(values, numeric);
}

/** The stored elements; those of short floats as numbers, not as their codes. */
async function stored(data: StoredArray): Promise<ArrayLike<number | bigint>> {
  const { kind, bits } = DTYPES[data.dtype];
  const array = await data.array();
  return kind === "f" && bits <= 16 ? toFloat32(array, data.dtype) : array;
}

function plain(value: unknown): unknown {
  if (typeof value === "object" && value !== null) {
    const { length } = value as ArrayLike<unknown>;
    return [...Array.from({ length: Math.min(length, ELEMENTS) }, (_, at) => plain((value as ArrayLike<unknown>)[at])), ...(length > ELEMENTS ? ["…"] : [])];
  }
  return typeof value === "bigint" || typeof value === "number" ? numeric(value) : typeof value === "string" ? text(value) : value;
}

/** Gives the constants of a description their arrays, from the file that is embedded in the page. */
export async function attach(description: Description, file: Blob): Promise<void> {
  const model = await open(file, { verify: canVerify() });
  for (const [index, { data }] of [...model.tensors].entries()) { // both in the order of names, which a page shortens
    if (data) {
      description.tensors[index]!.array = () => stored(data);
    }
  }
}

/** Digests need WebCrypto, which old browsers do not have for pages from the disk. */
function canVerify(): boolean {
  return typeof crypto !== "undefined" && crypto.subtle !== undefined;
}
