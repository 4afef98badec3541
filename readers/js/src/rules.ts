// The rules V1 to V29 about single tensors, except those that need the stored values. They are applied whenever a
// tensor is decoded, so no caller ever sees a tensor that breaks them. spec.md, "Validity rules", has the sentences.

import { bytesNeeded, DTYPES, isInteger, type DTypeName } from "./dtypes.js";
import { QfbError, quoted } from "./errors.js";
import type { Text } from "./text.js";

/** A size, its name, or null for neither. Bigints: sizes of a hostile file multiply beyond 2⁵³. */
export type Size = bigint | string | null;

/** What a file says about a tensor, before it is checked. */
export interface TensorFacts {
  readonly name: string;
  readonly dtype: DTypeName;
  readonly shape: readonly Size[] | null;
  /** How many bytes are stored; null if it is not a constant. */
  readonly nbytes: bigint | null;
  readonly aliases: readonly string[];
  readonly quantization: QuantizationFacts | null;
}

export interface QuantizationFacts {
  readonly scale: Float64Array;
  readonly zeroPoint: Int32Array | Float64Array;
  readonly quantMin: bigint;
  readonly quantMax: bigint;
  readonly axis: number | null;
  readonly scaleDtype: DTypeName;
  readonly observed: ObservedFacts | null;
  readonly blocks: BlocksFacts | null;
  readonly texts: readonly string[];
  readonly summary: Summary;
}

export interface ObservedFacts {
  readonly observer: string;
  readonly minimum: Float64Array;
  readonly maximum: Float64Array;
  readonly quantMin: bigint | null;
  readonly quantMax: bigint | null;
}

export interface BlocksFacts {
  readonly shape: readonly bigint[];
  /** How many blocks there are along each dimension. */
  readonly counts: readonly bigint[];
  readonly scale: { readonly nbytes: bigint };
  readonly zeroPoint: { readonly nbytes: bigint; readonly dtype: DTypeName } | null;
}

/** What is slow to compute about scales and zero points: computed once, however many tensors share them. */
export interface Summary {
  readonly scales: string;
  readonly observed: string;
  readonly zeroPointsAreFloats: boolean;
  readonly zeroPointsAreRepresentable: boolean;
  readonly smallest: number;
  readonly largest: number;
}

const SCALE_DTYPES: readonly DTypeName[] = ["float16", "bfloat16", "float32", "float64", "float8_e8m0fnu"];
const MAXIMUM_RANK = 32;

/** Throws QfbError for the first rule that a tensor breaks. */
export function checkTensor(tensor: TensorFacts, text: Text): void {
  checkNames(tensor, text);
  checkShape(tensor);
  if (tensor.nbytes !== null) {
    const needed = bytesNeeded(tensor.dtype, tensor.shape as readonly bigint[]);
    refuseIf(tensor.nbytes !== needed, "V10", tensor, `${tensor.nbytes} bytes stored, ${needed} needed`);
  }
  if (tensor.quantization !== null) {
    checkQuantization(tensor, tensor.quantization);
  }
}

function checkNames(tensor: TensorFacts, text: Text): void {
  const { aliases, shape, quantization } = tensor;
  refuseIf(tensor.name === "", "V1", tensor, "the name is empty");
  refuseIf(aliases[0] === "", "V4", tensor, "an alias is empty");
  const wrong = aliases.find((alias, index) => index > 0 && text.compare(aliases[index - 1]!, alias) >= 0);
  refuseIf(wrong !== undefined, "V4", tensor, () => `the alias ${quoted(wrong!)} is out of order or repeated`);
  const names = (shape ?? []).filter((size) => typeof size === "string");
  for (const each of [tensor.name, ...names, ...(quantization?.texts ?? [])]) {
    refuseIf(!text.isText(each), "V5", tensor, () => `${quoted(each)} is not valid text`);
  }
  for (const each of aliases) {
    refuseIf(!text.isText(each), "V5", tensor, () => `${quoted(each)} is not valid text`);
  }
}

function checkShape(tensor: TensorFacts): void {
  const { shape, nbytes } = tensor;
  if (shape === null) {
    refuseIf(nbytes !== null, "V3", tensor, "a constant has no shape");
    return;
  }
  refuseIf(shape.length > MAXIMUM_RANK, "V3", tensor, `${shape.length} dimensions, more than ${MAXIMUM_RANK}`);
  let product = 1n;
  for (const [axis, size] of shape.entries()) {
    if (typeof size === "bigint") {
      refuseIf(size < 0n, "V3", tensor, `dimension ${axis} has the size ${size}`);
      product *= size || 1n;
    } else {
      refuseIf(nbytes !== null, "V3", tensor, `dimension ${axis} of a constant has no fixed size`);
    }
  }
  refuseIf(product >= 1n << 60n, "V3", tensor, "the product of the sizes is 2^60 or more");
}

function checkQuantization(tensor: TensorFacts, quantization: QuantizationFacts): void {
  const { summary, blocks, quantMin, quantMax } = quantization;
  const { minimum, maximum, bits } = DTYPES[tensor.dtype];
  refuseIf(summary.scales !== "", "V20", tensor, summary.scales);
  checkAxis(tensor, quantization);
  checkZeroPoints(tensor, quantization);
  const ordered = minimum <= quantMin && quantMin <= quantMax && quantMax <= maximum;
  refuseIf(!ordered, "V23", tensor, `the range [${quantMin}, ${quantMax}] is not a range of ${tensor.dtype}`);
  refuseIf(maximum === 0n || bits > 32, "V24", tensor, `${tensor.dtype} cannot be quantized`);
  refuseIf(summary.observed !== "", "V25", tensor, summary.observed);
  if (blocks !== null) {
    checkBlocks(tensor, quantization, blocks);
  }
}

function checkAxis(tensor: TensorFacts, { axis, scale, blocks }: QuantizationFacts): void {
  if (axis === null) {
    refuseIf(scale.length !== 1 && blocks === null, "V21", tensor, `${scale.length} scales without an axis`);
  } else if (tensor.shape !== null) {
    const rank = tensor.shape.length;
    refuseIf(axis >= rank, "V21", tensor, `axis ${axis} of a tensor with ${rank} dimensions`);
    const size = tensor.shape[axis];
    const differs = typeof size === "bigint" && size !== BigInt(scale.length);
    refuseIf(differs, "V21", tensor, `${scale.length} scales for ${size} slices`);
  }
}

function checkZeroPoints(tensor: TensorFacts, quantization: QuantizationFacts): void {
  const { scale, zeroPoint, blocks, summary } = quantization;
  const count = blocks === null ? scale.length : blocks.zeroPoint === null ? 1 : 0;
  refuseIf(zeroPoint.length !== count, "V22", tensor, `${zeroPoint.length} zero points instead of ${count}`);
  if (count === 0) {
    return;
  }
  if (!isInteger(tensor.dtype)) {
    const isZero = !summary.zeroPointsAreFloats && summary.smallest === 0 && summary.largest === 0;
    refuseIf(!isZero, "V22", tensor, `a zero point of ${tensor.dtype} is not 0`);
  } else if (summary.zeroPointsAreFloats) {
    const what = `a zero point is not a finite ${quantization.scaleDtype}`;
    refuseIf(!summary.zeroPointsAreRepresentable, "V22", tensor, what);
  } else {
    const { minimum, maximum } = DTYPES[tensor.dtype];
    const inside = minimum <= summary.smallest && summary.largest <= maximum;
    refuseIf(!inside, "V22", tensor, `a zero point is outside the range of ${tensor.dtype}`);
  }
}

function checkBlocks(tensor: TensorFacts, quantization: QuantizationFacts, blocks: BlocksFacts): void {
  const { shape, counts, zeroPoint } = blocks;
  const sizes = tensor.shape as readonly bigint[];
  const fits = shape.every((block, axis) => 1n <= block && block <= sizes[axis]!);
  refuseIf(!fits, "V27", tensor, `blocks of [${shape}] do not fit a tensor of [${sizes}]`);
  const stored = { dtype: quantization.scaleDtype, nbytes: blocks.scale.nbytes };
  for (const { dtype, nbytes } of zeroPoint === null ? [stored] : [stored, zeroPoint]) {
    const what = `${nbytes} bytes of ${dtype} do not fit [${counts}] blocks`;
    refuseIf(nbytes !== bytesNeeded(dtype, counts), "V27", tensor, what);
  }
  if (zeroPoint !== null) {
    const allowed = zeroPoint.dtype === tensor.dtype || zeroPoint.dtype === quantization.scaleDtype;
    const what = `blocks of ${tensor.dtype} cannot have a zero point of type ${zeroPoint.dtype}`;
    refuseIf(!allowed || !isInteger(tensor.dtype), "V27", tensor, what);
  }
  const several = shape.filter((_, axis) => counts[axis] !== 1n);
  const isNeeded = several.length > 1 || several.some((block) => block !== 1n);
  refuseIf(!isNeeded, "V28", tensor, `blocks of [${shape}] are not needed`);
}

/** The slow part of V20, V22 and V25. */
export function summarize(facts: Omit<QuantizationFacts, "summary">): Summary {
  const { zeroPoint, scaleDtype } = facts;
  const zeroPointsAreFloats = zeroPoint instanceof Float64Array && zeroPoint.length > 0;
  let [smallest, largest] = [Infinity, -Infinity];
  for (const value of zeroPoint) {
    smallest = Math.min(smallest, value);
    largest = Math.max(largest, value);
  }
  return {
    scales: wrongScales(facts),
    observed: wrongObservation(facts),
    zeroPointsAreFloats,
    zeroPointsAreRepresentable: zeroPointsAreFloats && zeroPoint.every((value) => isRepresentable(value, scaleDtype)),
    smallest,
    largest,
  };
}

function wrongScales({ scale, scaleDtype, blocks }: Omit<QuantizationFacts, "summary">): string {
  if (!SCALE_DTYPES.includes(scaleDtype)) {
    return `scale_dtype is ${scaleDtype}, not one of ${SCALE_DTYPES.join(", ")}`;
  }
  if (blocks !== null) {
    return scale.length ? `has both blocks and ${scale.length} scales` : "";
  }
  if (!scale.length) {
    return "there is no scale";
  }
  for (const each of scale) {
    if (!(Number.isFinite(each) && each > 0)) {
      return `scale ${each} is not finite and greater than 0`;
    }
    if (!isRepresentable(each, scaleDtype)) {
      return `a scale cannot be represented exactly in ${scaleDtype}`;
    }
    const rounded = Math.fround(each);
    if (!(Number.isFinite(rounded) && rounded > 0)) {
      return `scale ${each} is 0 or infinite in float32`;
    }
  }
  return "";
}

function wrongObservation({ observed, scale }: Omit<QuantizationFacts, "summary">): string {
  if (observed === null) {
    return "";
  }
  const { minimum, maximum, quantMin, quantMax } = observed;
  if (!observed.observer) {
    return "the observer has no name";
  }
  if (minimum.length !== maximum.length || ![1, scale.length || 1].includes(minimum.length)) {
    return `${minimum.length} minima and ${maximum.length} maxima were observed`;
  }
  if (!minimum.every((low, index) => low <= maximum[index]!)) {
    return "an observed minimum is above its maximum";
  }
  const bothOrNone = (quantMin === null) === (quantMax === null);
  return bothOrNone && (quantMin === null || quantMin <= quantMax!) ? "" : `the observer's range [${quantMin}, ${quantMax}] is not valid`;
}

/** Whether a type of scales represents a finite number exactly. */
function isRepresentable(value: number, dtype: DTypeName): boolean {
  const size = Math.abs(value);
  switch (dtype) {
    case "float64":
      return Number.isFinite(value);
    case "float32":
      return Number.isFinite(value) && Math.fround(value) === value;
    case "bfloat16":
      return Number.isFinite(value) && Math.fround(value) === value && !(bits32(value) & 0xffff);
    case "float16":
      return size <= 65504 && Number.isInteger(size * 2 ** 24) && !(bits32(value) & 0x1fff) && Math.fround(value) === value;
    default: // float8_e8m0fnu: the powers of two from 2⁻¹²⁷ to 2¹²⁷
      DOUBLE[0] = value;
      return value >= 2 ** -127 && value <= 2 ** 127 && (BITS_OF_DOUBLE[0]! & ((1n << 52n) - 1n)) === 0n;
  }
}

const FLOAT = new Float32Array(1);
const BITS = new Uint32Array(FLOAT.buffer);
const DOUBLE = new Float64Array(1);
const BITS_OF_DOUBLE = new BigUint64Array(DOUBLE.buffer);

function bits32(value: number): number {
  FLOAT[0] = value;
  return BITS[0]!;
}

function refuseIf(isBroken: boolean, rule: string, tensor: TensorFacts, what: string | (() => string)): void {
  if (isBroken) {
    const finding = typeof what === "string" ? what : what();
    throw new QfbError(`breaks rule ${rule}: ${finding}`, { where: `tensor ${quoted(tensor.name)}`, rule });
  }
}
