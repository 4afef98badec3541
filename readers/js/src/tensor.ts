// Tensors as users see them, and how they come from the records of a file.

import { dequantize } from "./dequantize.js";
import { elements, type DTypeName, type TypedArray } from "./dtypes.js";
import { inMemory, QfbError, placed, quoted } from "./errors.js";
import { toFloat32 } from "./floats.js";
import type { Reader, Stored } from "./reader.js";
import { checkTensor, summarize, type QuantizationFacts, type Size, type Summary, type TensorFacts } from "./rules.js";
import type { BlocksRecord, Records } from "./schema.js";

/** An integer of 64 bits: a number, or a bigint where a number could not hold it (beyond ±(2⁵³ - 1)). */
export type Integer = number | bigint;

/** A stored array: an element type, a shape, and the bytes in the file, which are read when they are asked for. */
export class StoredArray {
  readonly dtype: DTypeName;
  readonly shape: readonly Integer[];
  /** How many elements there are. */
  readonly length: number;
  /** How many bytes are stored. */
  readonly nbytes: number;
  /** The sha256 of the bytes that the file states. */
  readonly sha256: Uint8Array;
  readonly #stored: Stored;

  /** @internal The stored bytes are as many as type and shape need. */
  constructor(dtype: DTypeName, shape: readonly bigint[], stored: Stored) {
    this.dtype = dtype;
    this.shape = shape.map(integer);
    this.length = Number(shape.reduce((product, size) => product * size, 1n));
    this.nbytes = Number(stored.nbytes);
    this.sha256 = stored.digest;
    this.#stored = stored;
  }

  /** The stored bytes (types of less than 8 bits packed): verified, and a view where they are in memory. */
  bytes(): Promise<Uint8Array> {
    return this.#stored.bytes();
  }

  /**
   * One element each, in row-major order: a view where the bytes are in memory and aligned. Integers, float32 and
   * float64 are themselves, also those of 4 and 2 bits; bools are 0 or 1; other floats are their codes, in a Uint16Array
   * or Uint8Array, which `toFloat32` turns into numbers.
   */
  async array(): Promise<TypedArray> {
    const bytes = await this.bytes();
    return inMemory(() => elements(bytes, this.dtype, this.length));
  }
}

/** real = (q - zeroPoint) · scale, with quantMin ≤ q ≤ quantMax. */
export interface Quantization {
  /** One for the tensor, or one for each slice along `axis`; none if there are `blocks`. */
  readonly scale: Float64Array;
  /** As many as `scale`; of `blocks` one for all, or none if they have their own. */
  readonly zeroPoint: Int32Array | Float64Array;
  readonly quantMin: number;
  readonly quantMax: number;
  /** The dimension that `scale` runs along, from 0; null: there is one scale, or blocks. */
  readonly axis: number | null;
  /** The type of the scale in the source. */
  readonly scaleDtype: DTypeName;
  readonly observed: Observed | null;
  readonly blocks: Blocks | null;
  /** The names that scale and zero point had in the source, where they were tensors; "" elsewhere. */
  readonly scaleName: string;
  readonly zeroPointName: string;
}

/** What a calibration observer had seen. */
export interface Observed {
  readonly observer: string;
  readonly minimum: Float64Array;
  readonly maximum: Float64Array;
  readonly quantMin: Integer | null;
  readonly quantMax: Integer | null;
  readonly qscheme: string;
}

/** One scale for every block of `shape` elements; zero points likewise, or null if one is that of all. */
export interface Blocks {
  readonly shape: readonly Integer[];
  readonly scale: StoredArray;
  readonly zeroPoint: StoredArray | null;
}

/** A named value of the graph. It is a constant if and only if it has data. */
export interface Tensor {
  readonly name: string;
  readonly dtype: DTypeName;
  /** Sizes; null where one is not fixed; null as a whole if not even the number of dimensions is known. */
  readonly shape: readonly (Integer | null)[] | null;
  /** The names of sizes that are not fixed, one per dimension; "" where there is none. */
  readonly dims: readonly string[];
  readonly quantization: Quantization | null;
  /** Every name that it had in its source. */
  readonly aliases: readonly string[];
  readonly isConstant: boolean;
  /** The stored array of a constant, else null. */
  readonly data: StoredArray | null;
  /** `data.bytes()`; QfbError if the tensor is not a constant. */
  bytes(): Promise<Uint8Array>;
  /** `data.array()`; QfbError if the tensor is not a constant. */
  array(): Promise<TypedArray>;
  /** The real values in float32: `f32(q - zeroPoint) · f32(scale)`, as spec.md has it; a float tensor as it is. */
  dequantize(): Promise<Float32Array<ArrayBuffer>>;
}

/** The tensor of a record, after a check of the rules V1 to V29. */
export function tensorOf(reader: Reader, record: Records["Tensor"]): Tensor {
  const { name } = record;
  const shape = shapeOf(record);
  const dtype = reader.dtype(record.dtype);
  const stored = record.buffer === null ? null : reader.buffer(record.buffer, `tensor ${quoted(name)}`);
  const { quantization: own } = record;
  const quantization = own && placed(`tensor ${quoted(name)}`, () => quantizationOf(reader, own, shape, name));
  const aliases = record.aliases ?? [];
  const nbytes = stored?.nbytes ?? null;
  const facts = { name, dtype, shape, nbytes, aliases, quantization: quantization?.facts ?? null };
  checkTensor(facts, reader.text);
  const data = stored && new StoredArray(dtype, shape as readonly bigint[], stored);
  const tensor = makeTensor(name, dtype, shape, data, quantization?.make() ?? null, aliases);
  factsOf.set(tensor, facts);
  return tensor;
}

/** What the file says about a tensor. */
export const factsOf = new WeakMap<Tensor, TensorFacts>();

function makeTensor(
  name: string,
  dtype: DTypeName,
  shape: readonly Size[] | null,
  data: StoredArray | null,
  quantization: Quantization | null,
  aliases: readonly string[],
): Tensor {
  const constant = () => {
    if (data === null) {
      throw new QfbError("is computed, not stored: it has no array", { where: `tensor ${quoted(name)}` });
    }
    return data;
  };
  return {
    name,
    dtype,
    shape: shape && shape.map((size) => (typeof size === "bigint" ? integer(size) : null)),
    dims: shape ? shape.map((size) => (typeof size === "string" ? size : "")) : [],
    quantization,
    aliases,
    isConstant: data !== null,
    data,
    bytes: async () => constant().bytes(),
    array: async () => constant().array(),
    dequantize: async () => {
      const stored = constant();
      const array = await stored.array();
      return quantization ? dequantize(stored, array, quantization) : inMemory(() => toFloat32(array, dtype));
    },
  };
}

/** -1 is a size that is not known, or known by the name in `dims`. */
function shapeOf({ shape, dims }: Records["Tensor"]): Size[] | null {
  if (dims?.length && dims.length !== (shape?.length ?? 0)) {
    throw new QfbError(`${shape?.length ?? "no"} sizes, but ${dims.length} names of sizes`, { rule: "F12" });
  }
  if (shape === null) {
    return null;
  }
  return Array.from(shape, (size, axis) => {
    const name = dims?.[axis] ?? "";
    if (name && size !== -1n) {
      throw new QfbError("a size has both a name and a number", { rule: "F12" });
    }
    return size === -1n ? name || null : size;
  });
}

/** What is slow to say about a record is said once, however many tensors share it. */
const summaries = new WeakMap<Records["Quantization"], Summary>();

function quantizationOf(reader: Reader, record: Records["Quantization"], shape: readonly Size[] | null, name: string) {
  const { quant_min: quantMin, quant_max: quantMax, observed, zero_point_float: floats } = record;
  if (quantMin === null || quantMax === null) {
    throw new QfbError("a quantization lacks quant_min or quant_max", { rule: "F12" });
  }
  if (floats !== null && record.zero_point.length) {
    throw new QfbError("a quantization has both zero_point and zero_point_float", { rule: "F12" });
  }
  const scaleDtype = reader.dtype(record.scale_dtype);
  const blocks = record.blocks && blocksOf(reader, record.blocks, scaleDtype, shape, name);
  const { scale, axis } = record;
  const zeroPoint = floats ?? record.zero_point;
  const [scaleName, zeroPointName, qscheme] = [record.scale_name ?? "", record.zero_point_name ?? "", observed?.qscheme ?? ""];
  const seen = observed && {
    observer: observed.observer,
    minimum: observed.minimum,
    maximum: observed.maximum,
    quantMin: observed.quant_min,
    quantMax: observed.quant_max,
  };
  const texts = [scaleName, zeroPointName, observed?.observer ?? "", qscheme];
  const unsummed = { scale, zeroPoint, quantMin, quantMax, axis, scaleDtype, observed: seen, blocks, texts };
  let summary = summaries.get(record);
  if (summary === undefined) {
    summary = summarize(unsummed);
    summaries.set(record, summary);
  }
  const facts: QuantizationFacts = { ...unsummed, summary };
  const make = (): Quantization => ({
    scale,
    zeroPoint,
    quantMin: Number(quantMin),
    quantMax: Number(quantMax),
    axis,
    scaleDtype,
    observed: seen && { ...seen, quantMin: optional(seen.quantMin), quantMax: optional(seen.quantMax), qscheme },
    blocks: blocks?.make() ?? null,
    scaleName,
    zeroPointName,
  });
  return { facts, make };
}

/** The blocks of a tensor of that shape. What they need to be decoded at all is rule V27. */
function blocksOf(reader: Reader, record: BlocksRecord, scaleDtype: DTypeName, shape: readonly Size[] | null, name: string) {
  const sizes = Array.from(record.shape);
  if (shape?.length !== sizes.length || !sizes.length || sizes.some((block) => block < 1n)) {
    throw new QfbError("the sizes of the blocks do not fit the tensor", { rule: "V27" });
  }
  const fixed = shape.filter((size) => typeof size === "bigint");
  if (fixed.length !== sizes.length) {
    throw new QfbError("a tensor with blocks has an unknown size", { rule: "V27" });
  }
  if (record.scale === null || (record.zero_point === null) !== (record.zero_point_dtype === 0)) {
    throw new QfbError("blocks lack scales, or the type of their zero points", { rule: "F12" });
  }
  const counts = sizes.map((block, axis) => ceilDivide(fixed[axis]!, block));
  const where = `tensor ${quoted(name)}`;
  const scale = reader.buffer(record.scale, where);
  const own = record.zero_point === null ? null : reader.buffer(record.zero_point, where);
  const zeroPoint = own && { stored: own, nbytes: own.nbytes, dtype: reader.dtype(record.zero_point_dtype) };
  const make = (): Blocks => ({
    shape: sizes.map(integer),
    scale: new StoredArray(scaleDtype, counts, scale),
    zeroPoint: zeroPoint && new StoredArray(zeroPoint.dtype, counts, zeroPoint.stored),
  });
  return { shape: sizes, counts, scale, zeroPoint, make };
}

/** Rounded up as Python's `-(-a // b)` is, for every sign: what is negative is refused later. */
function ceilDivide(a: bigint, b: bigint): bigint {
  return a > 0n ? (a + b - 1n) / b : a / b;
}

export function integer(value: bigint): Integer {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}

function optional(value: bigint | null): Integer | null {
  return value === null ? null : integer(value);
}
