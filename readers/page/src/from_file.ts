// The description of a `.qfb` that is in the page, or dropped onto it: read by the reader of readers/js.

import { open, type Level, type Quantization, type StoredArray, type Tensor } from "../../js/src/index.js";
import type { Description, Grid, NodeFacts, Numeric, TensorFacts } from "./description.js";
import { extremes } from "./dom.js";
import { CHANNELS, channelAxes, statisticsOf } from "./statistics.js";

/** Bytes of constants that are counted when a file is opened; those of larger files when they are looked at. */
const EAGER = 64e6;

/** Throws QfbError for a file that cannot be read. */
export async function describeFile(file: Blob, name: string): Promise<Description> {
  const model = await open(file, { verify: canVerify() });
  const made = new Map<Quantization, Grid>();
  const tensors: TensorFacts[] = [];
  const places = new Map<string, number>();
  for (const tensor of model.tensors) {
    places.set(tensor.name, tensors.length);
    tensors.push(await tensorOf(tensor, made));
  }
  const nodes = [...model.nodes].map((node): NodeFacts => ({
    operator: node.operator,
    version: node.version,
    name: node.name || node.outputs[0] || node.operator,
    scope: node.scope,
    from: node.sourceOperator,
    rule: node.rule,
    inputs: node.inputs.map((each) => places.get(each) ?? -1),
    outputs: node.outputs.map((each) => places.get(each) ?? -1),
    attributes: Object.fromEntries([...node.attributes].map(([key, { value }]) => [key, plain(value)])),
  }));
  const axes = channelAxes(nodes, tensors);
  [...model.tensors].forEach((tensor, place) => loadable(tensors[place]!, tensor, axes.get(place)));
  const total = [...model.tensors].reduce((sum, { data }) => sum + (data?.nbytes ?? 0), 0);
  if (total <= EAGER) {
    await Promise.all(tensors.map((tensor) => tensor.load?.()));
  }
  const at = (names: readonly string[]) => names.map((each) => places.get(each) ?? -1);
  return {
    name,
    size: file.size,
    content: await model.contentId(),
    graph: model.name,
    producer: model.producer,
    engine: model.engine,
    source: Object.fromEntries(model.source),
    metadata: Object.fromEntries(model.metadata),
    noGraph: model.source.get("no_graph") ?? "",
    vectors: model.vectors.length,
    inputs: at(model.inputs),
    outputs: at(model.outputs),
    tensors,
    nodes,
    faults: [],
    proofs: {},
  };
}

async function tensorOf(tensor: Tensor, made: Map<Quantization, Grid>): Promise<TensorFacts> {
  const { name, dtype, quantization, aliases } = tensor;
  const shape = tensor.shape && tensor.shape.map((size, axis) => (size === null ? tensor.dims[axis] || null : Number(size)));
  let grid = quantization ? made.get(quantization) : undefined;
  if (quantization && !grid) {
    grid = await gridOf(quantization);
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
      const points = quantization && isPlain(quantization) ? await numbers(quantization.zeroPoint) : [];
      facts.stats = statisticsOf(array, dtype, sizes, axis, facts.grid, points);
      if (sizes.length < 2 && 0 < array.length && array.length <= CHANNELS) {
        facts.values = await numbers(data);
      }
    } catch (error) {
      facts.stats = { error: (error as Error).message };
    }
  };
  facts.stats = {};
  facts.array = () => data.array();
}

async function gridOf(quantization: Quantization): Promise<Grid> {
  const { quantMin, quantMax, block, observed } = quantization;
  const axis = block.length && block.at(-1) === 1 && block.slice(0, -1).every((size) => !size) ? block.length - 1 : undefined;
  const kept = axis !== undefined || !block.length;
  const [scale, zero] = await Promise.all([numbers(quantization.scale), numbers(quantization.zeroPoint)]);
  const extras = (["offset", "table", "groupIndex"] as const satisfies readonly (keyof Level)[]).filter((each) => quantization[each]);
  return {
    min: quantMin,
    max: quantMax,
    count: quantization.scale.length as number,
    type: quantization.scale.dtype,
    scale: kept && scale.length <= CHANNELS ? scale : ends(scale),
    zero: kept && zero.length <= CHANNELS ? zero : [...new Set(ends(zero))],
    ...(block.length ? { block: block.map(Number) } : {}),
    ...(axis === undefined ? {} : { axis }),
    ...(extras.length ? { extras: extras.map((each) => (each === "groupIndex" ? "group index" : each)) } : {}),
    ...(observed ? { observed: { observer: observed.observer, min: [...observed.minimum], max: [...observed.maximum] } } : {}),
  };
}

function ends(values: readonly Numeric[]): Numeric[] {
  return extremes(values.filter((value): value is number => typeof value === "number"));
}

/** Real numbers, exactly where a number of JavaScript can be: scales in float64 are not rounded. */
async function numbers(stored: StoredArray): Promise<Numeric[]> {
  const exact = /^(u?int(8|16|32|64)|float(32|64))$/.test(stored.dtype) && !stored.quantization;
  const values: ArrayLike<number | bigint> = exact ? ((await stored.array()) as ArrayLike<number | bigint>) : await stored.dequantize();
  return Array.from(values, (value) =>
    typeof value === "bigint" ? (Number.isSafeInteger(Number(value)) ? Number(value) : String(value)) : Number.isFinite(value) ? value : String(value));
}

function plain(value: unknown): unknown {
  if (typeof value === "object" && value !== null) {
    return Array.from(value as ArrayLike<unknown>, plain);
  }
  return typeof value === "bigint" ? String(value) : value;
}

/** Gives the constants of a description their arrays, from the file that is embedded in the page. */
export async function attach(description: Description, file: Blob): Promise<void> {
  const model = await open(file, { verify: canVerify() });
  for (const facts of description.tensors) {
    const data = model.tensors.get(facts.name)?.data;
    if (data) {
      facts.array = () => data.array();
    }
  }
}

/** Digests need WebCrypto, which old browsers do not have for pages from the disk. */
function canVerify(): boolean {
  return typeof crypto !== "undefined" && crypto.subtle !== undefined;
}
