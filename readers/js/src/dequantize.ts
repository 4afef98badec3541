// The real values of a tensor's integers, bit for bit as in spec.md, "Dequantize".

import { isInteger, type TypedArray } from "./dtypes.js";
import { inMemory } from "./errors.js";
import { toFloat32 } from "./floats.js";
import type { Blocks, Quantization, StoredArray } from "./tensor.js";

const { fround } = Math;

/** Which scale is that of the element at an index. */
type Place = (index: number) => number;

/**
 * `f32(q - zeroPoint) · f32(scale)`. A product or a difference of two float32 in float64, rounded to float32, is what
 * float32 arithmetic gives: float64 has more than twice the digits.
 */
export async function dequantize(
  { dtype, shape }: StoredArray,
  array: TypedArray,
  quantization: Quantization,
): Promise<Float32Array<ArrayBuffer>> {
  const { blocks } = quantization;
  const values = array as Exclude<TypedArray, BigInt64Array | BigUint64Array>; // nothing of 64 bits is quantized
  const scales = blocks
    ? toFloat32(await blocks.scale.array(), blocks.scale.dtype)
    : Float32Array.from(quantization.scale);
  const place = places(shape.map(Number), quantization);
  if (!isInteger(dtype)) {
    return inMemory(() => toFloat32(values, dtype)).map((value, index) => value * scales[place(index)]!);
  }
  const zeroPoints = await zeroPointsOf(quantization);
  const [areFloats, isOne] = [zeroPoints instanceof Float32Array, zeroPoints.length === 1];
  const result = inMemory(() => new Float32Array(values.length));
  for (let index = 0; index < values.length; index++) {
    const at = place(index);
    const q = areFloats ? fround(values[index]!) : values[index]!;
    result[index] = fround(q - zeroPoints[isOne ? 0 : at]!) * scales[at]!;
  }
  return result;
}

/** Int32 or, if they are not integers, float32: one for all, or as many as scales. */
async function zeroPointsOf({ blocks, zeroPoint }: Quantization): Promise<Int32Array | Float32Array> {
  if (!blocks?.zeroPoint) {
    return zeroPoint instanceof Int32Array ? zeroPoint : Float32Array.from(zeroPoint);
  }
  const { dtype } = blocks.zeroPoint;
  const stored = await blocks.zeroPoint.array();
  return isInteger(dtype) ? Int32Array.from(stored as Int32Array) : toFloat32(stored, dtype);
}

function places(shape: readonly number[], { axis, blocks }: Quantization): Place {
  if (blocks) {
    return blockPlaces(shape, blocks);
  }
  if (axis === null) {
    return () => 0;
  }
  const inner = shape.slice(axis + 1).reduce((product, size) => product * size, 1);
  return (index) => Math.floor(index / inner) % shape[axis]!;
}

function blockPlaces(shape: readonly number[], blocks: Blocks): Place {
  const counts = blocks.scale.shape.map(Number);
  const sizes = blocks.shape.map(Number);
  return (index) => {
    let [place, step] = [0, 1];
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      place += Math.floor((index % shape[axis]!) / sizes[axis]!) * step;
      step *= counts[axis]!;
      index = Math.floor(index / shape[axis]!);
    }
    return place;
  };
}
