// The real values of stored numbers, bit for bit as in spec.md, "Dequantize".

import type { StoredArray } from "./arrays.js";
import { DTYPES, isInteger, type TypedArray } from "./dtypes.js";
import { inMemory, QfbError } from "./errors.js";
import { toFloat32 } from "./floats.js";
import type { Level } from "./quantization.js";

const { fround } = Math;

/** Arrays of numbers: nothing of 64 bits is quantized. */
type Numbers = Exclude<TypedArray, BigInt64Array | BigUint64Array>;

/**
 * `f32(d · s)`, and `f32(… + o)` with an offset, where d is `f32(q - z)`. A sum, a difference or a product of two
 * float32 in float64, rounded to float32, is what float32 arithmetic gives: float64 has more than twice the digits.
 */
export async function dequantize(
  { dtype, shape }: StoredArray,
  array: TypedArray,
  { block, scale, zeroPoint, offset, table, groupIndex }: Level,
): Promise<Float32Array<ArrayBuffer>> {
  const [scales, offsets] = [await scale.dequantize(), await offset?.dequantize()];
  const zeroPointsAreFloats = !isInteger(zeroPoint.dtype);
  const [zeroPoints, meanings] = [await numbers(zeroPoint), table && (await table.dequantize())];
  const groups = groupIndex && (await numbers(groupIndex));
  const blockAt = places(shape.map(Number), block.map(Number), scale.shape.map(Number), groups);
  return inMemory(() => {
    let [values, zeros] = [array as Numbers, zeroPoints];
    if (meanings) {
      const first = Number(DTYPES[dtype].minimum);
      [values, zeros] = [Float32Array.from(values, (q) => meanings[q - first]!), Float32Array.of(0)];
    } else if (zeroPointsAreFloats || !isInteger(dtype)) {
      values = toFloat32(values, dtype);
    }
    const result = new Float32Array(values.length);
    for (let index = 0; index < result.length; index++) {
      const at = blockAt(index);
      const real = fround(fround(values[index]! - ofBlock(zeros, at)) * scales[at]!);
      result[index] = offsets ? real + ofBlock(offsets, at) : real;
    }
    return result;
  });
}

/** Integers as they are, floats as float32. */
async function numbers(stored: StoredArray): Promise<Numbers> {
  return isInteger(stored.dtype) ? ((await stored.array()) as Numbers) : stored.dequantize();
}

/** One for each block, or one for all. */
function ofBlock(values: Numbers, at: number): number {
  return values[values.length === 1 ? 0 : at]!;
}

/** Which block the element at an index of an array of that shape is in; `counts` has the blocks along each dimension. */
function places(
  shape: readonly number[],
  block: readonly number[],
  counts: readonly number[],
  groups: Numbers | null,
): (index: number) => number {
  const axes: { inner: number; size: number; step: number; blockOf: (position: number) => number }[] = [];
  let [inner, step] = [1, 1];
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    const [size, count, each] = [shape[axis]!, counts[axis]!, block[axis] ?? 0];
    if (each > 0) {
      const blockOf = groups && each > 1 ? groupOf(groups, count) : (position: number) => Math.floor(position / each);
      axes.push({ inner, size, step, blockOf });
      step *= count;
    }
    inner *= size;
  }
  return (index) => {
    let place = 0;
    for (const { inner, size, step, blockOf } of axes) {
      place += blockOf(Math.floor(index / inner) % size) * step;
    }
    return place;
  };
}

function groupOf(groups: Numbers, count: number): (position: number) => number {
  const wrong = groups.find((group: number) => group < 0 || group >= count);
  if (wrong !== undefined) {
    throw new QfbError(`breaks rule V22: a group index is ${wrong} of ${count} groups`, { rule: "V22" });
  }
  return (position) => groups[position]!;
}
