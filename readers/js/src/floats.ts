// Numbers of every element type as float32, rounded once where they have to be.

import { DTYPES, type DTypeName, type TypedArray } from "./dtypes.js";

/** How a float of few bits is made. `special`: IEEE's infinities and NaN; or NaN alone, at one code or two. */
interface Format {
  readonly exponent: number;
  readonly mantissa: number;
  readonly bias: number;
  readonly special: "ieee" | "all ones" | "negative zero" | "none";
}

const FORMATS: Readonly<Partial<Record<DTypeName, Format>>> = {
  float16: { exponent: 5, mantissa: 10, bias: 15, special: "ieee" },
  bfloat16: { exponent: 8, mantissa: 7, bias: 127, special: "ieee" },
  float8_e4m3fn: { exponent: 4, mantissa: 3, bias: 7, special: "all ones" },
  float8_e5m2: { exponent: 5, mantissa: 2, bias: 15, special: "ieee" },
  float8_e4m3fnuz: { exponent: 4, mantissa: 3, bias: 8, special: "negative zero" },
  float8_e5m2fnuz: { exponent: 5, mantissa: 2, bias: 16, special: "negative zero" },
  float4_e2m1fn: { exponent: 2, mantissa: 1, bias: 1, special: "none" },
};

/** The number for a code of 16 bits or fewer; for float8_e8m0fnu a power of two. */
export function floatOfCode(code: number, dtype: DTypeName): number {
  if (dtype === "float8_e8m0fnu") {
    return code === 255 ? NaN : 2 ** (code - 127);
  }
  const format = FORMATS[dtype];
  if (format === undefined) {
    throw new RangeError(`${dtype} cannot be encoded`);
  }
  const steps = 1 << format.mantissa;
  const mantissa = code % steps;
  const exponent = (code >> format.mantissa) % (1 << format.exponent);
  const isNegative = code >> (format.mantissa + format.exponent) === 1;
  if (format.special === "negative zero" && isNegative && exponent === 0 && mantissa === 0) {
    return NaN;
  }
  if (exponent === (1 << format.exponent) - 1) {
    if (format.special === "ieee") {
      return mantissa ? NaN : isNegative ? -Infinity : Infinity;
    }
    if (format.special === "all ones" && mantissa === steps - 1) {
      return NaN;
    }
  }
  const size = exponent ? (1 + mantissa / steps) * 2 ** (exponent - format.bias) : (mantissa / steps) * 2 ** (1 - format.bias);
  return isNegative ? -size : size;
}

/**
 * What `array()` gave for a tensor of that type, as float32: codes of floats become numbers, and what float32 cannot
 * hold is rounded to the nearest, halves to even. A new array.
 */
export function toFloat32(values: TypedArray, dtype: DTypeName): Float32Array<ArrayBuffer> {
  const { kind, bits } = DTYPES[dtype];
  if (values instanceof BigInt64Array || values instanceof BigUint64Array) {
    return Float32Array.from(values as Iterable<bigint>, float32OfInteger);
  }
  if (kind !== "f" || bits > 16) {
    return Float32Array.from(values, kind === "b" ? (byte) => Number(byte !== 0) : undefined);
  }
  if (bits === 16 && values.length < 1 << 16) {
    return Float32Array.from(values, (code) => floatOfCode(code, dtype));
  }
  const table = Float32Array.from({ length: 1 << bits }, (_, code) => floatOfCode(code, dtype));
  return Float32Array.from(values, (code) => table[code]!);
}

/** An integer of 64 bits as the nearest float32. The way over float64 would round twice, but not if it rounds to odd. */
export function float32OfInteger(value: bigint): number {
  const size = value < 0n ? -value : value;
  if (size < 1n << 53n) {
    return Math.fround(Number(value));
  }
  const odd = size & 0x7ffn ? 1n : 0n;
  const rounded = Math.fround(Number((size >> 11n) | odd)) * 2048;
  return value < 0n ? -rounded : rounded;
}
