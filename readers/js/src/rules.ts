// The rules V1 to V25 about single tensors, except those that need the stored values. They are applied whenever a
// tensor is decoded, so no caller ever sees a tensor that breaks them. spec.md, "Validity rules", has the sentences.

import { checkBytes, MAXIMUM_RANK, type StoredArray } from "./arrays.js";
import { DTYPES, elements, isInteger, type DTypeName } from "./dtypes.js";
import { placed, QfbError, quoted } from "./errors.js";
import { toFloat32 } from "./floats.js";
import { parameters, type Level, type Quantization } from "./quantization.js";
import type { Stored } from "./reader.js";
import type { Text } from "./text.js";

/** A size, its name, or null for neither. Bigints: sizes of a hostile file multiply beyond 2⁵³. */
export type Size = bigint | string | null;

/** What a file says about a tensor, before it is checked. */
export interface TensorFacts {
  readonly name: string;
  readonly dtype: DTypeName;
  readonly shape: readonly Size[] | null;
  /** Its bytes; null if it is not a constant. */
  readonly stored: Stored | null;
  readonly aliases: readonly string[];
  readonly quantization: Quantization | null;
}

const FLOATS: readonly DTypeName[] = ["float16", "bfloat16", "float32", "float64"];
const SCALES: readonly DTypeName[] = [...FLOATS, "float8_e8m0fnu", "float8_e4m3fn"];
const CODED: readonly DTypeName[] = ["int8", "uint8", "float8_e4m3fn"];
const ZERO_POINTS: readonly DTypeName[] = ["uint8", "int8", "uint16", "int16", "int32"];
const GROUPS: readonly DTypeName[] = ["uint8", "uint16", "int32"];

/** Throws QfbError for the first rule that a tensor breaks. */
export function checkTensor(tensor: TensorFacts, text: Text): void {
  checkNames(tensor, text);
  checkShape(tensor);
  const { dtype, shape, stored, quantization } = tensor;
  if (stored !== null) {
    placed(`tensor ${quoted(tensor.name)}`, () => checkBytes(dtype, shape as readonly bigint[], stored, "V10"));
  }
  if (quantization !== null) {
    checkQuantization(tensor, quantization);
  }
}

function checkNames(tensor: TensorFacts, text: Text): void {
  const { aliases, shape, quantization } = tensor;
  refuseIf(tensor.name === "", "V1", tensor, "the name is empty");
  refuseIf(aliases[0] === "", "V4", tensor, "an alias is empty");
  const wrong = aliases.find((alias, index) => index > 0 && text.compare(aliases[index - 1]!, alias) >= 0);
  refuseIf(wrong !== undefined, "V4", tensor, () => `the alias ${quoted(wrong!)} is out of order or repeated`);
  const names = (shape ?? []).filter((size) => typeof size === "string");
  const { scaleName = "", zeroPointName = "", observed = null } = quantization ?? {};
  const { observer = "", qscheme = "" } = observed ?? {};
  for (const each of [tensor.name, scaleName, zeroPointName, observer, qscheme].concat(names, aliases)) {
    refuseIf(!text.isText(each), "V5", tensor, () => `${quoted(each)} is not valid text`);
  }
}

function checkShape(tensor: TensorFacts): void {
  const { shape, stored } = tensor;
  if (shape === null) {
    refuseIf(stored !== null, "V3", tensor, "a constant has no shape");
    return;
  }
  refuseIf(shape.length > MAXIMUM_RANK, "V3", tensor, `${shape.length} dimensions, more than ${MAXIMUM_RANK}`);
  let product = 1n;
  for (const [axis, size] of shape.entries()) {
    if (typeof size === "bigint") {
      refuseIf(size < 0n, "V3", tensor, `dimension ${axis} has the size ${size}`);
      product *= size || 1n;
    } else {
      refuseIf(stored !== null, "V3", tensor, `dimension ${axis} of a constant has no fixed size`);
    }
  }
  refuseIf(product >= 1n << 60n, "V3", tensor, "the product of the sizes is 2^60 or more");
}

/** V20 to V25. The arrays of a quantization are as large as they have to be. */
function checkQuantization(tensor: TensorFacts, quantization: Quantization): void {
  const { minimum, maximum, bits } = DTYPES[tensor.dtype];
  const { quantMin, quantMax } = quantization;
  const form = wrongForm(tensor.dtype, quantization);
  refuseIf(form !== "", "V20", tensor, form);
  const computed = tensor.stored === null && !isInteger(quantization.zeroPoint.dtype);
  refuseIf(computed, "V20", tensor, "a tensor that is not constant has zero points of floats");
  const blocks = wrongBlocks(tensor.shape, quantization);
  refuseIf(blocks !== "", "V21", tensor, blocks);
  refuseIf(maximum === 0n || bits > 32, "V23", tensor, `${tensor.dtype} cannot be quantized`);
  const ordered = minimum <= quantMin && quantMin <= quantMax && quantMax <= maximum;
  refuseIf(!ordered, "V23", tensor, `the range [${quantMin}, ${quantMax}] is not a range of ${tensor.dtype}`);
  const observed = remembered(observations, quantization, wrongObservation);
  refuseIf(observed !== "", "V25", tensor, observed);
  const numbers = wrongNumbers(tensor.dtype, quantization, tensor.stored !== null && hasBlocks(quantization));
  refuseIf(numbers !== "", "V22", tensor, numbers);
}

function wrongForm(dtype: DTypeName, { scale, zeroPoint, offset, table }: Level): string {
  for (const [what, array, plain] of [["scale", scale, SCALES], ["offset", offset, FLOATS]] as const) {
    const own = array?.quantization;
    if (array && !(own ? CODED : plain).includes(array.dtype)) {
      return `a ${own ? "quantized " : ""}${what} cannot be ${array.dtype}`;
    }
    const wrong = array && own ? wrongForm(array.dtype, own) || wrongBlocks(array.shape.map(BigInt), own) : "";
    if (wrong) {
      return `${what}s: ${wrong}`;
    }
  }
  for (const [what, array] of [["zero points", zeroPoint], ["offsets", offset]] as const) {
    if (array?.shape.length && String(array.shape) !== String(scale.shape)) {
      return `${what} of shape [${array.shape}] for scales of shape [${scale.shape}]`;
    }
  }
  return wrongZeroPoints(dtype, zeroPoint, scale) || (table ? wrongTable(dtype, table) : "");
}

function wrongZeroPoints(dtype: DTypeName, zeroPoint: StoredArray, scale: StoredArray): string {
  if (isInteger(zeroPoint.dtype)) {
    const isZero = zeroPoint.dtype === "uint8" && !zeroPoint.shape.length && zeroPoint.inline?.[0] === 0;
    return isInteger(dtype) || isZero ? "" : `a zero point of ${dtype} is not 0`;
  }
  const fits = zeroPoint.dtype === scale.dtype && isInteger(dtype);
  return fits ? "" : `zero points of ${zeroPoint.dtype} for scales of ${scale.dtype} and elements of ${dtype}`;
}

function wrongTable(dtype: DTypeName, table: StoredArray): string {
  const { bits } = DTYPES[dtype];
  if (!isInteger(dtype) || bits > 8 || table.shape.length !== 1 || table.length !== 1 << bits) {
    return `a table of shape [${table.shape}] for codes of ${dtype}`;
  }
  const isPlain = FLOATS.includes(table.dtype) || (isInteger(table.dtype) && DTYPES[table.dtype].bits <= 16);
  return isPlain ? "" : `a table cannot be ${table.dtype}`;
}

/** What is wrong with the blocks of a tensor of that shape. */
function wrongBlocks(shape: readonly Size[] | null, { block, scale, groupIndex }: Level): string {
  const [rank, counts] = [block.length, scale.shape.length];
  if (counts !== rank || (shape && rank > shape.length)) {
    return `blocks of ${rank} dimensions, scales of ${counts}, in a tensor of ${shape?.length ?? "some"}`;
  }
  if (block.some((each) => each < 0) || block.at(-1) === 0) {
    return `blocks of [${block}] have a negative entry, or end with 0`;
  }
  const larger = block.filter((each) => each > 1);
  if (groupIndex && (larger.length !== 1 || !GROUPS.includes(groupIndex.dtype))) {
    return `a group index of ${groupIndex.dtype} for blocks of [${block}]`;
  }
  for (const [axis, each] of block.entries()) {
    const [size, count] = [shape?.[axis], scale.shape[axis]!];
    if (each > 1 && !(typeof size === "bigint" && each < size)) {
      return `blocks of [${block}] do not fit a tensor of [${shape}]`;
    }
    if (each > 1 && groupIndex) {
      if (String(groupIndex.shape) !== String(size)) {
        return `a group index of shape [${groupIndex.shape}] for ${String(size)} positions`;
      }
    } else if (each === 0 && count !== 1) {
      return `${count} scales along a dimension with one block`;
    } else if (each && typeof size === "bigint" && BigInt(count) !== (size + BigInt(each) - 1n) / BigInt(each)) {
      return `${count} scales for ${size} elements in blocks of ${each}`;
    }
  }
  return "";
}

/** Whether scales are neither per tensor nor per channel. */
function hasBlocks({ block }: Level): boolean {
  return block.some((each, axis) => each > 1 || (each === 1 && axis < block.length - 1));
}

/** What is wrong with the numbers of the arrays in the metadata; those in the data segment are not read. */
function wrongNumbers(dtype: DTypeName, level: Level, anySign: boolean, isNested = false): string {
  const { block, scale } = level;
  const groups = scale.shape[block.findIndex((each) => each > 1)] ?? 0;
  for (const [name, array] of parameters(level)) {
    const range = remembered(ranges, array, rangeOf);
    const [low, high] = isNested ? [-Infinity, Infinity] : [DTYPES[dtype].minimum, DTYPES[dtype].maximum];
    const wrong =
      name === "zero_point" ? wrongZeroPoint(array, range, low, high)
      : range === null ? ""
      : !range.areFinite ? `a number of ${name} is not finite`
      : name === "scale" && !array.quantization ? wrongScales(range, anySign)
      : name === "offset" && !array.quantization && array.shape.length && !range.differ ? "all offsets are equal"
      : name === "group_index" && !(0 <= range.least && range.most < groups) ? `a group index is not one of ${groups}`
      : "";
    const found = wrong || (array.quantization ? wrongNumbers(array.dtype, array.quantization, true, true) : "");
    if (found) {
      return found;
    }
  }
  return "";
}

function wrongScales({ least, most }: Range, anySign: boolean): string {
  if (!anySign && !(Math.fround(least) > 0)) {
    return `scale ${least} is not greater than 0 in float32`;
  }
  const lost = [least, most].find((each) => !Number.isFinite(Math.fround(each)));
  return lost === undefined ? "" : `scale ${lost} is infinite in float32`;
}

function wrongZeroPoint(array: StoredArray, range: Range | null, low: bigint | number, high: bigint | number): string {
  if (isInteger(array.dtype) && !ZERO_POINTS.includes(array.dtype)) {
    return `zero points are stored as ${array.dtype}`;
  }
  if (range === null) {
    return "";
  }
  const { least, most, areFinite, differ } = range;
  if (!areFinite) {
    return "a zero point is not finite";
  }
  if (isInteger(array.dtype)) {
    if (!(low <= least && most <= high)) {
      return `zero points in ${least}..${most} are outside the range of the tensor`;
    }
    const first = ZERO_POINTS.find((each) => DTYPES[each].minimum <= least && most <= DTYPES[each].maximum);
    if (first !== array.dtype) {
      return `zero points in ${least}..${most} are stored as ${array.dtype}`;
    }
  }
  return array.shape.length && !differ ? `all zero points are ${least}, which is written once` : "";
}

interface Range {
  readonly least: number;
  readonly most: number;
  readonly areFinite: boolean;
  readonly differ: boolean;
}

/** Of the stored numbers in the metadata; null if they are not there, or none. */
function rangeOf({ dtype, inline, length }: StoredArray): Range | null {
  if (!inline || !length || (DTYPES[dtype].bits > 32 && dtype !== "float64")) {
    return null;
  }
  const array = elements(inline, dtype, length);
  let [least, most, areFinite] = [Infinity, -Infinity, true];
  for (const each of isInteger(dtype) || dtype === "float64" ? (array as Float64Array) : toFloat32(array, dtype)) {
    least = Math.min(least, each);
    most = Math.max(most, each);
    areFinite &&= Number.isFinite(each);
  }
  return { least, most, areFinite, differ: least !== most };
}

/** What is slow to say is said once, however many tensors share it. */
const ranges = new WeakMap<StoredArray, Range | null>();
const observations = new WeakMap<Quantization, string>();

function remembered<Key extends object, Value>(known: WeakMap<Key, Value>, key: Key, say: (key: Key) => Value): Value {
  if (!known.has(key)) {
    known.set(key, say(key));
  }
  return known.get(key)!;
}

function wrongObservation({ observed, scale }: Quantization): string {
  if (observed === null) {
    return "";
  }
  const { minimum, maximum, quantMin, quantMax } = observed;
  if (!observed.observer) {
    return "the observer has no name";
  }
  if (minimum.length !== maximum.length || ![1, scale.length].includes(minimum.length)) {
    return `${minimum.length} minima and ${maximum.length} maxima were observed`;
  }
  if (!minimum.every((low, index) => low <= maximum[index]!)) {
    return "an observed minimum is above its maximum";
  }
  const bothOrNone = (quantMin === null) === (quantMax === null);
  return bothOrNone && (quantMin === null || quantMin <= quantMax!) ? "" : `the observer's range [${quantMin}, ${quantMax}] is not valid`;
}

function refuseIf(isBroken: boolean, rule: string, tensor: TensorFacts, what: string | (() => string)): void {
  if (isBroken) {
    const finding = typeof what === "string" ? what : what();
    throw new QfbError(`breaks rule ${rule}: ${finding}`, { where: `tensor ${quoted(tensor.name)}`, rule });
  }
}
