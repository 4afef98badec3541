// Tensors as users see them, and how they come from the records of a file.

import { integer, StoredArray, type Integer } from "./arrays.js";
import type { DTypeName, TypedArray } from "./dtypes.js";
import { QfbError, quoted } from "./errors.js";
import { quantizationOf, type Quantization } from "./quantization.js";
import type { Reader } from "./reader.js";
import { checkTensor, type Size, type TensorFacts } from "./rules.js";
import type { TensorRecord } from "./schema.js";

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
  /** `data.dequantize()`; QfbError if the tensor is not a constant. */
  dequantize(): Promise<Float32Array<ArrayBuffer>>;
}

/** The tensor of a record, after a check of the rules V1 to V25. */
export function tensorOf(reader: Reader, record: TensorRecord): Tensor {
  const { name } = record;
  const where = `tensor ${quoted(name)}`;
  const shape = shapeOf(record);
  const dtype = reader.dtype(record.dtype);
  const stored = record.buffer === null ? null : reader.buffer(record.buffer, where);
  const quantization = record.quantization && quantizationOf(reader, record.quantization, where);
  const aliases = record.aliases ?? [];
  const facts = { name, dtype, shape, stored, aliases, quantization };
  checkTensor(facts, reader.text);
  const data = stored && new StoredArray(dtype, shape as readonly bigint[], stored, quantization);
  const constant = () => {
    if (data === null) {
      throw new QfbError("is computed, not stored: it has no array", { where });
    }
    return data;
  };
  const tensor: Tensor = {
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
    dequantize: async () => constant().dequantize(),
  };
  factsOf.set(tensor, facts);
  return tensor;
}

/** What the file says about a tensor. */
export const factsOf = new WeakMap<Tensor, TensorFacts>();

/** -1 is a size that is not known, or known by the name in `dims`. */
function shapeOf({ shape, dims }: TensorRecord): Size[] | null {
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
