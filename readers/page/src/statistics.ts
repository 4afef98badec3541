// Statistics of an array of a dropped file: those of qfmt/passes/statistics.py.

import { DTYPES, toFloat32, type DTypeName, type TypedArray } from "../../js/src/index.js";
import type { Grid, Statistics } from "./description.js";
import { numbersOf } from "./dom.js";

const BINS = 64;

/** `channels`: how many there are; `inner`: how many values in a row are of one. */
export function statisticsOf(array: TypedArray, dtype: DTypeName, grid: Grid | undefined, channels: number, inner: number): Statistics {
  const { kind, bits } = DTYPES[dtype];
  const isInteger = kind !== "f";
  const values: ArrayLike<number> = !isInteger
    ? toFloat32(array, dtype)
    : array instanceof BigInt64Array || array instanceof BigUint64Array ? Float64Array.from(array, Number) : array;
  const [min, max] = finiteExtremes(values);
  if (min > max) {
    return { elements: values.length };
  }
  const found = { elements: values.length, min, max };
  if (!isInteger || bits > 8) {
    const width = (max - min) / BINS;
    const bins = new Array<number>(width ? BINS : 1).fill(0);
    each(values, (value) => Number.isFinite(value) && bins[width ? Math.min(BINS - 1, Math.floor((value - min) / width)) : 0]!++);
    return { ...found, first: min, width, bins };
  }
  const first = kind === "i" ? -(2 ** (bits - 1)) : 0;
  const bins = new Array<number>(dtype === "bool" ? 2 : 2 ** bits).fill(0);
  each(values, (value) => bins[value - first]!++);
  const used = bins.filter((count) => count).length;
  const codes = { ...found, first, width: 1, bins, used, codes: bins.length };
  return grid ? { ...codes, ...ends(bins, first, grid), ...peaksOf(values, grid, channels, inner) } : codes;
}

function each(values: ArrayLike<number>, work: (value: number, index: number) => unknown): void {
  for (let index = 0; index < values.length; index++) {
    work(values[index]!, index);
  }
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

function ends(bins: readonly number[], first: number, { min, max }: Grid): Pick<Statistics, "low" | "high"> {
  return { low: bins[min - first] ?? 0, high: bins[max - first] ?? 0 };
}

function peaksOf(values: ArrayLike<number>, grid: Grid, channels: number, inner: number): Pick<Statistics, "dead" | "peaks"> {
  if (channels < 2) {
    return {};
  }
  const peaks = new Array<number>(channels).fill(0);
  const zero = numbersOf(grid.zero);
  each(values, (value, index) => {
    const channel = Math.floor(index / inner) % channels;
    peaks[channel] = Math.max(peaks[channel]!, Math.abs(value - (zero.length > 1 ? zero[channel]! : (zero[0] ?? 0))));
  });
  return { peaks, dead: peaks.filter((peak) => peak === 0).length };
}
