// The arithmetic of a node: the formula of its rule, from docs/spec, with the node's own numbers.

import type { Entry } from "./entries.js";
import { tensorsOf } from "./entries.js";
import type { Grid, Numeric, TensorFacts } from "./description.js";
import { number, numbersOf } from "./dom.js";
import { hasWeights } from "./statistics.js";

declare const SPEC: {
  readonly rules: Readonly<Record<string, { readonly formula: string; readonly by: string; readonly grid?: string }>>;
  readonly operators: Readonly<Record<string, { readonly signature: string; readonly way: string; readonly meaning: string; readonly integers: string }>>;
};

export interface Symbol {
  readonly name: string;
  readonly value: number | string;
  readonly meaning: string;
}

export interface Arithmetic {
  /** What the operator computes in real numbers, and on integers; "" if the operator is not known. */
  readonly meaning: string;
  readonly integers: string;
  readonly way: string;
  readonly rule: string;
  readonly by: string;
  readonly formula: string;
  /** The formula in parts: text, and numbers in the place of symbols. */
  readonly filled: readonly (string | { readonly symbol: string; readonly value: string })[];
  readonly symbols: readonly Symbol[];
  /** How many channels have numbers of their own. */
  readonly channels: number;
}

const f32 = Math.fround;

/** The numbers of one channel. */
export function arithmeticOf(entry: Entry, channel: number): Arithmetic {
  const { node } = entry;
  const operator = Object.hasOwn(SPEC.operators, node.operator) ? SPEC.operators[node.operator] : undefined;
  const rule = Object.hasOwn(SPEC.rules, node.rule) ? SPEC.rules[node.rule] : undefined;
  const symbols = symbolsOf(entry, channel);
  const values = new Map(symbols.map(({ name, value }) => [name, value]));
  const isPerChannel = entry.weight?.grid?.axis !== undefined;
  const formula = rule?.formula ?? "";
  const own = formula.replace(/(F = .*?) if the weight is quantized per channel, (F = .*?) if per tensor/, isPerChannel ? "$1" : "$2");
  return {
    meaning: operator?.meaning ?? "",
    integers: operator?.integers ?? "",
    way: operator?.way ?? "",
    rule: node.rule,
    by: rule?.by ?? "",
    formula: own,
    filled: own
      .split(/(?<![\p{L}\p{N}_])(sx|zx|sw|zw|sa|sb|za|zb|at|s|z|m|b|add|shift|n)(?![\p{L}\p{N}_(])/u)
      .map((part) => (values.has(part) ? { symbol: part, value: number(values.get(part)!) } : part)),
    symbols,
    channels: channelsOf(entry),
  };
}

function channelsOf({ node, weight, model }: Entry): number {
  const vectors = node.operator.startsWith("qfmt.Requant") ? tensorsOf(node.inputs.slice(1, 4), model) : [];
  const counts = vectors.map((tensor) => tensor?.values?.length ?? 1);
  return Math.max(1, weight?.grid?.axis === undefined || !isListed(weight.grid) ? 1 : weight.grid.scale.length, ...counts);
}

function symbolsOf(entry: Entry, channel: number): Symbol[] {
  const { node, data, weight, bias, made, model } = entry;
  const found: Symbol[] = [];
  const givesSums = node.rule === "exact" || node.rule === "folded";
  const add = (name: string, value: number | string | undefined, meaning: string) =>
    value !== undefined && found.push({ name, value, meaning });
  const quantized = (letter: string, tensor: TensorFacts | null, what: string, at = 0) => {
    if (tensor?.grid && isListed(tensor.grid) && !tensor.grid.extras && (tensor.grid.axis !== undefined || !tensor.grid.block?.length)) {
      add(`s${letter}`, pick(tensor.grid.scale, at), `scale of ${what}`);
      add(`z${letter}`, pick(tensor.grid.zero, at), `zero point of ${what}`);
    }
  };
  if (node.operator.startsWith("qfmt.Requant")) {
    requantization(entry, channel, add);
  } else if (weight && hasWeights(node.operator)) {
    quantized("x", data, "the input");
    quantized("w", weight, "the weight", channel);
    const [sx, sw, s] = [data?.grid, weight.grid, made?.grid].map((grid, index) => one(grid, index === 1 ? channel : 0));
    if (sx !== undefined && sw !== undefined) {
      const at = f32(f32(sx) * f32(sw));
      add("at", at, "unit of the sums, f32(sx · sw)");
      const stored = numbersOf([bias?.values?.[channel] ?? "none"])[0];
      const [scale, zero] = [one(bias?.grid, channel), numbersOf([pick(bias?.grid?.zero ?? [0], channel) ?? "none"])[0]];
      if (stored !== undefined && (givesSums || (bias?.grid && zero === 0 && f32(scale ?? 0) === at))) {
        add("B", stored, "bias, in units of the sums");
      } else if (stored !== undefined && (!bias?.grid || (scale !== undefined && zero !== undefined))) {
        add("b", bias?.grid ? (stored - zero!) * scale! : stored, "bias");
      }
      if (s !== undefined && !givesSums) {
        const multiplier = f32(at / f32(s));
        const exponent = Math.floor(Math.log2(multiplier)) + 1;
        const parts = Number.isFinite(exponent) ? `, ${number(multiplier / 2 ** exponent)} · 2${raised(exponent)}` : ""; // of 0 there are none
        add("at / s", multiplier, `effective multiplier${parts}`);
      }
    }
  } else {
    const read = tensorsOf(node.inputs, model).filter((tensor) => tensor?.grid);
    const letters = read.length > 1 ? ["a", "b"] : ["x"];
    letters.forEach((letter, index) => quantized(letter, read[index] ?? null, read.length > 1 ? `input ${index + 1}` : "the input"));
    if (read.length > 1 && node.rule === "sum") {
      add("sx", one(read[0]!.grid), "scale of both inputs");
    }
  }
  quantized("", made, "the output");
  if (made?.grid && givesSums) {
    add("acc", `${number(made.grid.min)}…${number(made.grid.max)}`, "the least and the greatest sum that can occur");
  } else if (made?.grid) {
    const { min, max } = made.grid;
    const relu = weight && numbersOf(made.grid.zero)[0] === min ? ": a ReLU is part of it" : "";
    add("clamp", `${number(min)}…${number(max)}`, `quant_min…quant_max of the output${relu}`);
  }
  return found;
}

function requantization({ node, model }: Entry, channel: number, add: (name: string, value: number | string | undefined, meaning: string) => unknown): void {
  const given = tensorsOf(node.inputs.slice(1, 4), model).map((tensor) => tensor?.values && pick(tensor.values, channel));
  if (node.operator === "qfmt.RequantShift") {
    const [factor, addend] = given;
    const divisor = numbersOf([node.attributes.find(([key]) => key === "div")?.[1] as Numeric ?? "none"])[0];
    add("mul", factor, "multiplier");
    add("add", addend, "addend, before the division");
    add("div", divisor, "divisor");
    if (typeof factor === "number" && divisor !== undefined) {
      add("mul / div", factor / divisor, "the multiplier as a real number");
    }
    return;
  }
  const [multiplier, shift, addend] = given;
  add("m", multiplier, "multiplier");
  add("shift", shift, "shift to the right");
  add("add", addend, "addend, before the shift");
  if (typeof multiplier === "number" && typeof shift === "number") {
    add("m / 2^shift", multiplier / 2 ** shift, "the multiplier as a real number");
  }
}

/** ⁻⁵ */
function raised(exponent: number): string {
  return String(exponent).replace(/./g, (letter) => "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"["0123456789-".indexOf(letter)]!);
}

/** The number of a channel, or the one for all. */
function pick(values: readonly (number | string)[], channel: number): number | string | undefined {
  return values.length > 1 ? values[channel] : values[0];
}

/** Whether the page has all scales, and not only the extremes of many. */
const isListed = (grid: Grid) => grid.scale.length === grid.count;

function one(grid: Grid | undefined, channel = 0): number | undefined {
  const value = grid && isListed(grid) ? pick(grid.scale, channel) : undefined;
  return typeof value === "number" ? value : undefined;
}
