// Stored arrays as users see them: of constants, of test vectors, of quantizations.

import { dequantize } from "./dequantize.js";
import { bytesNeeded, elements, type DTypeName, type TypedArray } from "./dtypes.js";
import { inMemory, QfbError } from "./errors.js";
import { toFloat32 } from "./floats.js";
import type { Level } from "./quantization.js";
import type { Stored } from "./reader.js";

/** An integer of 64 bits: a number, or a bigint where a number could not hold it (beyond ±(2⁵³ - 1)). */
export type Integer = number | bigint;

export const MAXIMUM_RANK = 32;

export function integer(value: bigint): Integer {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}

/** A stored array: an element type, a shape, and the bytes in the file, which are read when they are asked for. */
export class StoredArray {
  readonly dtype: DTypeName;
  readonly shape: readonly Integer[];
  /** How many elements there are. */
  readonly length: number;
  /** How many bytes are stored. */
  readonly nbytes: number;
  /** What the elements mean, of constants and values a whole `Quantization`; null: themselves. */
  readonly quantization: Level | null;
  readonly #stored: Stored;

  /** @internal The stored bytes are as many as type and shape need. */
  constructor(dtype: DTypeName, shape: readonly bigint[], stored: Stored, quantization: Level | null) {
    this.dtype = dtype;
    this.shape = shape.map(integer);
    this.length = Number(shape.reduce((product, size) => product * size, 1n));
    this.nbytes = Number(stored.nbytes);
    this.quantization = quantization;
    this.#stored = stored;
  }

  /** @internal The bytes, if they are in the metadata. */
  get inline(): Uint8Array | null {
    return this.#stored.inline;
  }

  /** The sha256 of the bytes: for those in the data segment the one that the file states. */
  sha256(): Promise<Uint8Array> {
    return this.#stored.sha256();
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

  /** The real values in float32: by the quantization (spec.md, "Dequantize"), or the elements rounded. */
  async dequantize(): Promise<Float32Array<ArrayBuffer>> {
    const array = await this.array();
    return this.quantization ? dequantize(this, array, this.quantization) : inMemory(() => toFloat32(array, this.dtype));
  }
}

/** `rule` is V10 for constants, V20 for the arrays of a quantization. */
export function checkBytes(dtype: DTypeName, shape: readonly bigint[], { nbytes }: Stored, rule: string): void {
  const needed = bytesNeeded(dtype, shape);
  if (nbytes !== needed) {
    throw new QfbError(`breaks rule ${rule}: ${nbytes} bytes stored, ${needed} needed`, { rule });
  }
}
