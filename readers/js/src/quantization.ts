// Quantizations as users see them, and how they come from the records of a file.

import { checkBytes, integer, MAXIMUM_RANK, StoredArray, type Integer } from "./arrays.js";
import { QfbError, placed, quoted } from "./errors.js";
import { stored, type Reader } from "./reader.js";
import type { ArrayRecord, NumbersRecord, ObservedRecord, QuantizationRecord, SecondLevelRecord } from "./schema.js";

/** What codes q mean: real = (q - zeroPoint) · scale + offset. */
export interface Level {
  /** Elements of a block along each dimension: 0 is the whole of it, and so are dimensions at the end without an entry. */
  readonly block: readonly Integer[];
  /** One for each block, with a dimension for each entry of `block`. Its `dequantize` gives them as float32. */
  readonly scale: StoredArray;
  /** The shape of `scale`, or one number: integers, or floats. */
  readonly zeroPoint: StoredArray;
  /** The shape of `scale`, or one number. */
  readonly offset: StoredArray | null;
  /** What stands for each q, from the least to the greatest, in the place of q - zeroPoint. */
  readonly table: StoredArray | null;
  /** The block of each position along the dimension whose entry in `block` is above 1. */
  readonly groupIndex: StoredArray | null;
}

/** The quantization of a tensor, with quantMin ≤ q ≤ quantMax. Scale and offset may be codes of a second level. */
export interface Quantization extends Level {
  readonly quantMin: number;
  readonly quantMax: number;
  readonly observed: Observed | null;
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

/** The arrays of a level by their names in the schema, in its order. */
export function parameters({ scale, zeroPoint, offset, table, groupIndex }: Level): [string, StoredArray][] {
  const all = Object.entries({ scale, zero_point: zeroPoint, offset, table, group_index: groupIndex });
  return all.filter((pair): pair is [string, StoredArray] => pair[1] !== null);
}

/** What was made of a record, for all tensors that share it. */
const made = new WeakMap<QuantizationRecord, Quantization>();

/** The quantization of a tensor; `where` is the first one that has it. */
export function quantizationOf(reader: Reader, record: QuantizationRecord, where: string): Quantization {
  let quantization = made.get(record);
  if (quantization === undefined) {
    const { quant_min: quantMin, quant_max: quantMax, observed } = record;
    if (quantMin === null || quantMax === null) {
      throw new QfbError("a quantization lacks quant_min or quant_max", { where, rule: "F12" });
    }
    quantization = {
      ...placed(where, () => levelOf(reader, record, where)),
      quantMin: Number(quantMin),
      quantMax: Number(quantMax),
      observed: observed && observedOf(observed),
      scaleName: record.scale_name ?? "",
      zeroPointName: record.zero_point_name ?? "",
    };
    made.set(record, quantization);
  }
  return quantization;
}

function levelOf(reader: Reader, record: QuantizationRecord | SecondLevelRecord, where: string): Level {
  const array = (name: string, of: ArrayRecord | NumbersRecord) => placed(name, () => arrayOf(reader, of, where));
  const optional = (name: string, of: ArrayRecord | NumbersRecord | null) => of && array(name, of);
  return {
    block: Array.from(record.block ?? [], integer),
    scale: array("scale", record.scale),
    zeroPoint: optional("zero_point", record.zero_point) ?? new StoredArray("uint8", [], stored(Uint8Array.of(0)), null),
    offset: optional("offset", record.offset),
    table: optional("table", record.table),
    groupIndex: "group_index" in record ? optional("group_index", record.group_index) : null,
  };
}

function arrayOf(reader: Reader, record: ArrayRecord | NumbersRecord, where: string): StoredArray {
  const { bytes, buffer } = record;
  if ((bytes === null) === (buffer === null)) {
    throw new QfbError(`has ${bytes ? "both" : "neither"} bytes and a buffer`, { rule: "F12" });
  }
  const shape = Array.from(record.shape ?? []);
  if (shape.length > MAXIMUM_RANK || shape.some((size) => size < 0n)) {
    throw new QfbError(`cannot have the shape ${quoted(String(shape))}`, { rule: "V20" });
  }
  const level = "quantization" in record && record.quantization ? levelOf(reader, record.quantization, where) : null;
  const dtype = reader.dtype(record.dtype);
  const found = bytes ? stored(bytes) : reader.buffer(buffer!, where);
  checkBytes(dtype, shape, found, "V20");
  return new StoredArray(dtype, shape, found, level);
}

function observedOf({ observer, minimum, maximum, quant_min: low, quant_max: high, qscheme }: ObservedRecord): Observed {
  const limit = (value: bigint | null) => (value === null ? null : integer(value));
  return { observer, minimum, maximum, quantMin: limit(low), quantMax: limit(high), qscheme: qscheme ?? "" };
}

/** The most bytes of an array that lies in the metadata. */
const MAXIMUM_INLINE = 4096;

/** F13: small arrays are in the metadata, others in the data segment. */
export function checkPlaces(level: Level): void {
  for (const [name, { inline, nbytes, quantization }] of parameters(level)) {
    if ((inline !== null) !== nbytes <= MAXIMUM_INLINE) {
      throw new QfbError(`${name} has ${nbytes} bytes, its place is ${inline ? "a buffer" : "the metadata"}`, { rule: "F13" });
    }
    if (quantization) {
      checkPlaces(quantization);
    }
  }
}
