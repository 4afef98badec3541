// Statistics of an array of a dropped file: those of qfmt/passes/statistics.py. tests/view/test_built_page.py compares.

import { DTYPES, toFloat32, type DTypeName, type TypedArray } from "../../js/src/index.js";
import type { Grid, NodeFacts, Numeric, Statistics, TensorFacts } from "./description.js";
import { numeric } from "./dom.js";

const BINS = 64;
/** The most codes that have a bin each. */
const CODES = 256;
/** The most channels whose peaks are shown. */
export const CHANNELS = 4096;

/** Operators with weights, from schema/operators.json: the place of each weight among the inputs, and its axis. */
declare const WEIGHTS: Readonly<Record<string, readonly (readonly [number, number])[]>>;

/** Whether an operator sums products with weights. */
export const hasWeights = (operator: string): boolean => Object.hasOwn(WEIGHTS, operator);

/** The axis of the channels of each weight, by its place: that along which scales run, or that of the node that reads it. */
export function channelAxes(nodes: readonly NodeFacts[], tensors: readonly TensorFacts[]): Map<number, number> {
  const found = new Map<number, number>();
  for (const { operator, inputs, attributes } of nodes) {
    for (const [index, axis] of hasWeights(operator) ? WEIGHTS[operator]! : []) {
      const place = inputs[index] ?? -1;
      const rank = tensors[place]?.shape?.length ?? 0;
      if (rank > 1) {
        found.set(place, axis >= 0 ? axis : Number(new Map(attributes).get("transB") ?? 0) ? 0 : rank - 1);
      }
    }
  }
  tensors.forEach(({ grid }, place) => grid?.axis !== undefined && found.set(place, grid.axis));
  return found;
}

/** `axis` is that of the channels; `points` are all zero points, if nothing but scales and zero points counts. */
export function statisticsOf(
  array: TypedArray, dtype: DTypeName, shape: readonly number[], axis: number | undefined, grid: Grid | undefined,
  points: readonly Numeric[],
): Statistics {
  const { kind, bits } = DTYPES[dtype];
  const isCode = kind !== "f";
  const isBig = array instanceof BigInt64Array || array instanceof BigUint64Array;
  const [least, most] = isBig ? bigExtremes(array) : [0n, 0n];
  const base = most - least < BigInt(CODES) ? least : 0n; // a number holds the differences, but maybe not the values
  const values: ArrayLike<number> = isBig ? Float64Array.from(array, (value: bigint) => Number(value - base))
    : isCode || dtype === "float64" ? array : toFloat32(array, dtype);
  const [min, max] = finiteExtremes(values);
  if (min > max) {
    return { elements: values.length };
  }
  const [low, high] = !isCode || bits > 8 ? [min, max]
    : dtype === "bool" ? [0, 1]
    : kind === "i" ? [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1] : [0, 2 ** bits - 1];
  const isComplete = isCode && high - low < CODES;
  const found: Statistics = {
    elements: values.length, ...(isBig ? { min: numeric(least), max: numeric(most) } : { min, max }),
    ...(isComplete ? codes(values, low, high, Number(base)) : spread(values, min, max)),
  };
  if (!grid || !isCode || dtype === "bool") { // integers of 64 bits have no grid
    return found;
  }
  const limits = isComplete || (grid.min <= min && max <= grid.max)
    ? { low: countOf(values, grid.min), high: countOf(values, grid.max) } : {};
  return { ...found, ...limits, ...peaksOf(values, shape, axis, grid, points) };
}

function each(values: ArrayLike<number>, work: (value: number, index: number) => unknown): void {
  for (let index = 0; index < values.length; index++) {
    work(values[index]!, index);
  }
}

function countOf(values: ArrayLike<number>, wanted: number): number {
  let count = 0;
  each(values, (value) => (count += Number(value === wanted)));
  return count;
}

function finiteExtremes(values: ArrayLike<number>): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  each(values, (value) => {
    if (Number.isFinite(value)) {
      [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
  });
  return [low, high];
}

function bigExtremes(array: BigInt64Array | BigUint64Array): [bigint, bigint] {
  let [low, high] = [array[0] ?? 0n, array[0] ?? 0n];
  for (const value of array) {
    [low, high] = [value < low ? value : low, value > high ? value : high];
  }
  return [low, high];
}

/** How often each integer from low to high occurs; they stand for these numbers and `offset`. */
function codes(values: ArrayLike<number>, low: number, high: number, offset: number): Statistics {
  const bins = new Array<number>(high - low + 1).fill(0);
  each(values, (value) => bins[value - low]!++);
  return { first: low + offset, width: 1, bins, used: bins.filter((count) => count).length, codes: bins.length };
}

/** Real numbers, or integers of a wide range, in bins of equal width. */
function spread(values: ArrayLike<number>, low: number, high: number): Statistics {
  if (low === high) {
    let finite = 0;
    each(values, (value) => (finite += Number(Number.isFinite(value))));
    return { first: low, width: 0, bins: [finite] };
  }
  const factor = Math.max(-low, high) > 1 ? 0.5 : 1; // halves do not overflow, and do not vanish
  const [begin, end] = [low * factor, high * factor];
  const bins = new Array<number>(BINS).fill(0);
  each(values, (value) => {
    if (Number.isFinite(value)) {
      bins[Math.min(BINS - 1, Math.max(0, Math.floor(((value * factor - begin) / (end - begin)) * BINS)))]!++;
    }
  });
  return { first: low, width: high / BINS - low / BINS, bins };
}

function peaksOf(
  values: ArrayLike<number>, shape: readonly number[], axis: number | undefined, grid: Grid, points: readonly Numeric[],
): Pick<Statistics, "dead" | "peaks"> {
  const channels = axis === undefined ? undefined : shape[axis];
  const isAffine = !grid.block || grid.axis !== undefined;
  const zero = points.filter((point): point is number => typeof point === "number").map(Math.trunc);
  const given = points.length > 1 ? points.length : grid.count;
  if (channels === undefined || !isAffine || (given !== 1 && given !== channels) || !zero.length || zero.length < points.length) {
    return {};
  }
  const inner = shape.slice(axis! + 1).reduce((a, b) => a * b, 1);
  const peaks = new Array<number>(channels).fill(0);
  each(values, (value, index) => {
    const channel = Math.floor(index / inner) % channels;
    peaks[channel] = Math.max(peaks[channel]!, Math.abs(value - zero[zero.length > 1 ? channel : 0]!));
  });
  return { dead: peaks.filter((peak) => peak === 0).length, ...(channels <= CHANNELS ? { peaks } : {}) };
}
