// Element types: how each is stored, which typed array holds it, and what its codes mean.

import { IS_LITTLE_ENDIAN, littleEndian } from "./endian.js";
import { DType } from "./schema.js";

/** The names of the element types, those of NumPy and ml_dtypes. */
export type DTypeName =
  | "bool" | "int8" | "uint8" | "int16" | "uint16" | "int32" | "uint32" | "int64" | "uint64"
  | "float16" | "bfloat16" | "float32" | "float64" | "int4" | "uint4" | "int2" | "uint2"
  | "float8_e4m3fn" | "float8_e5m2" | "float8_e4m3fnuz" | "float8_e5m2fnuz" | "float8_e8m0fnu" | "float4_e2m1fn";

/** Every array that a tensor can give. */
export type TypedArray =
  | Int8Array<ArrayBufferLike> | Uint8Array<ArrayBufferLike> | Int16Array<ArrayBufferLike>
  | Uint16Array<ArrayBufferLike> | Int32Array<ArrayBufferLike> | Uint32Array<ArrayBufferLike>
  | BigInt64Array<ArrayBufferLike> | BigUint64Array<ArrayBufferLike>
  | Float32Array<ArrayBufferLike> | Float64Array<ArrayBufferLike>;

type TypedArrayConstructor = new (buffer: ArrayBufferLike, byteOffset: number, length: number) => TypedArray;

/** An element type: `kind` is b (bool), i (signed), u (unsigned) or f (float). */
export interface DTypeInfo {
  readonly code: number;
  readonly bits: number;
  readonly kind: "b" | "i" | "u" | "f";
  /** Limits of quantized values: of an integer type its own, of a float type of 8 or 4 bits its largest; else 0. */
  readonly minimum: bigint;
  readonly maximum: bigint;
  /** The array that holds one element each: integers and float32, float64 as they are, other floats as their codes. */
  readonly array: TypedArrayConstructor;
}

function integer(code: number, bits: number, signed: boolean, array: TypedArrayConstructor): DTypeInfo {
  const half = 1n << BigInt(bits - 1);
  const [minimum, maximum] = signed ? [-half, half - 1n] : [0n, 2n * half - 1n];
  return { code, bits, kind: signed ? "i" : "u", minimum, maximum, array };
}

function float(code: number, bits: number, array: TypedArrayConstructor, largest = 0n): DTypeInfo {
  return { code, bits, kind: "f", minimum: -largest, maximum: largest, array };
}

/** Every element type by name. */
export const DTYPES: Readonly<Record<DTypeName, DTypeInfo>> = {
  bool: { code: DType.Bool, bits: 8, kind: "b", minimum: 0n, maximum: 0n, array: Uint8Array },
  int8: integer(DType.Int8, 8, true, Int8Array),
  uint8: integer(DType.UInt8, 8, false, Uint8Array),
  int16: integer(DType.Int16, 16, true, Int16Array),
  uint16: integer(DType.UInt16, 16, false, Uint16Array),
  int32: integer(DType.Int32, 32, true, Int32Array),
  uint32: integer(DType.UInt32, 32, false, Uint32Array),
  int64: integer(DType.Int64, 64, true, BigInt64Array),
  uint64: integer(DType.UInt64, 64, false, BigUint64Array),
  float16: float(DType.Float16, 16, Uint16Array),
  bfloat16: float(DType.BFloat16, 16, Uint16Array),
  float32: float(DType.Float32, 32, Float32Array),
  float64: float(DType.Float64, 64, Float64Array),
  int4: integer(DType.Int4, 4, true, Int8Array),
  uint4: integer(DType.UInt4, 4, false, Uint8Array),
  int2: integer(DType.Int2, 2, true, Int8Array),
  uint2: integer(DType.UInt2, 2, false, Uint8Array),
  float8_e4m3fn: float(DType.Float8E4M3FN, 8, Uint8Array, 448n),
  float8_e5m2: float(DType.Float8E5M2, 8, Uint8Array, 57344n),
  float8_e4m3fnuz: float(DType.Float8E4M3FNUZ, 8, Uint8Array, 240n),
  float8_e5m2fnuz: float(DType.Float8E5M2FNUZ, 8, Uint8Array, 57344n),
  float8_e8m0fnu: float(DType.Float8E8M0FNU, 8, Uint8Array),
  float4_e2m1fn: float(DType.Float4E2M1FN, 4, Uint8Array, 6n),
};

const NAMES: ReadonlyMap<number, DTypeName> = new Map(
  Object.entries(DTYPES).map(([name, info]) => [info.code, name as DTypeName]),
);

/** The name of an element type by its code in the file; undefined if this reader does not know it. */
export function dtypeName(code: number): DTypeName | undefined {
  return NAMES.get(code);
}

export function isInteger(dtype: DTypeName): boolean {
  return DTYPES[dtype].kind === "i" || DTYPES[dtype].kind === "u";
}

/** The bytes that a tensor of these sizes takes; a bigint, since the sizes of a hostile file multiply beyond 2⁵³. */
export function bytesNeeded(dtype: DTypeName, sizes: readonly bigint[]): bigint {
  const bits = sizes.reduce((product, size) => product * size, BigInt(DTYPES[dtype].bits));
  return (bits + 7n) / 8n;
}

/**
 * Stored bytes as a typed array with one element each: without a copy where they are aligned in memory. Types of less
 * than 8 bits are unpacked; floats of 16 and fewer bits are their codes, which `toFloat32` turns into numbers.
 */
export function elements(bytes: Uint8Array, dtype: DTypeName, count: number): TypedArray {
  const { bits, array } = DTYPES[dtype];
  if (bits < 8) {
    return unpack(bytes, dtype, count);
  }
  const size = bits / 8;
  const fits = bytes.byteOffset % size === 0 && IS_LITTLE_ENDIAN;
  const own = fits ? bytes : littleEndian(Uint8Array.from(bytes), size);
  return new array(own.buffer, own.byteOffset, count);
}

/**
 * Values of 4 or 2 bits, one a byte: the first is in the lowest bits of the first byte. An Int8Array for signed types,
 * else a Uint8Array; of float4_e2m1fn the codes.
 */
export function unpack(bytes: Uint8Array, dtype: DTypeName, count: number): Int8Array | Uint8Array {
  const { bits, kind } = DTYPES[dtype];
  const perByte = 8 / bits;
  const mask = (1 << bits) - 1;
  const sign = kind === "i" ? 1 << (bits - 1) : 0;
  const values = kind === "i" ? new Int8Array(count) : new Uint8Array(count);
  for (let index = 0; index < count; index++) {
    const code = (bytes[Math.floor(index / perByte)]! >> (bits * (index % perByte))) & mask;
    values[index] = (code ^ sign) - sign;
  }
  return values;
}
