// Elements and numbers. Text of files goes through textContent only: there is no markup in this page but its own.

/** The most rows of a list beside the table: a file may have a million pairs, or inputs of one node. */
export const MOST = 200;

type Child = Node | string | null | undefined | false;
type Attributes = Readonly<Record<string, string | number | boolean | null | undefined | ((event: never) => void)>>;

/** An element. A function is a listener of the event it is named after; true is an attribute without a value. */
export function el<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag, attributes: Attributes = {}, ...children: Child[]
): HTMLElementTagNameMap[Tag] {
  return filled(document.createElement(tag), attributes, children);
}

export function svg<Tag extends keyof SVGElementTagNameMap>(
  tag: Tag, attributes: Attributes = {}, ...children: Child[]
): SVGElementTagNameMap[Tag] {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled<Made extends Element>(made: Made, attributes: Attributes, children: Child[]): Made {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      made.addEventListener(name, value as (event: Event) => void);
    } else if (value !== null && value !== undefined && value !== false) {
      made.setAttribute(name, value === true ? "" : name === "value" ? String(value) : shown(String(value)));
    }
  }
  made.append(...children.filter((child): child is Node | string => !!child).map(shown));
  return made;
}

/** Control characters, and those that turn the direction of text, are written out. */
export function shown<Value extends Node | string>(value: Value): Value | string {
  return typeof value === "string"
    ? value.replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, (letter) => `\\u${letter.codePointAt(0)!.toString(16).padStart(4, "0")}`)
    : value;
}

/** A number as Python's JSON has it: as text if it is not finite, or if JavaScript would round it. */
export function numeric(value: number | bigint): number | string {
  if (typeof value === "bigint") {
    return Number.isSafeInteger(Number(value)) ? Number(value) : String(value);
  }
  return Number.isFinite(value) ? value : Number.isNaN(value) ? "nan" : value < 0 ? "-inf" : "inf";
}

/** Five digits: enough to recognise a number. */
export function number(value: number | string | undefined | null): string {
  if (typeof value !== "number") {
    return value ?? "–";
  }
  if (Number.isSafeInteger(value)) {
    return value.toLocaleString("en-US").replace(/^-/, "−");
  }
  const [, digits, exponent] = /^(.*)e(.*)$/.exec(value.toExponential(4)) ?? [];
  const isFar = Math.abs(value) < 1e-3 || Math.abs(value) >= 1e9;
  const text = isFar && exponent ? `${Number(digits)}e${Number(exponent)}` : String(Number(value.toPrecision(5)));
  return text.replaceAll("-", "−");
}

export function span(values: readonly (number | string)[]): string {
  const odd = values.find((value) => typeof value === "string");
  if (odd !== undefined || !values.length) {
    return odd === undefined ? "–" : `${odd}${values.length > 1 ? ", …" : ""}`;
  }
  const [low, high] = extremes(numbersOf(values));
  return low === high ? number(low) : `${number(low)}…${number(high)}`;
}

/** Not Math.min(...values): a call takes some 100,000 arguments. */
export function extremes(values: readonly number[]): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    low = value < low ? value : low;
    high = value > high ? value : high;
  }
  return [low, high];
}

export function percent(part: number, whole: number): string {
  const share = (100 * part) / whole;
  return `${share >= 10 || share === 0 ? share.toFixed(0) : share >= 0.1 ? share.toFixed(1) : "<0.1"} %`;
}

export function bytes(count: number): string {
  const units = ["bytes", "kB", "MB", "GB"];
  let at = 0;
  for (; count >= 1000 && at < 3; at++) {
    count /= 1000;
  }
  return `${at ? count.toFixed(1) : count} ${units[at]}`;
}

const SHORT: Readonly<Record<string, string>> = { bool: "bool", bfloat16: "bf16" };

/** u8, i8, f32, f8e4m3fn. */
export function short(dtype: string): string {
  return SHORT[dtype] ?? dtype.replace(/^uint/, "u").replace(/^int/, "i").replace(/^float/, "f").replace("_", "");
}

export function shape(sizes: readonly (number | string | null)[] | null): string {
  return sizes === null ? "?" : sizes.length ? sizes.map((size) => size ?? "?").join("×") : "scalar";
}

export function plural(count: number, noun: string): string {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}

export function numbersOf(values: readonly (number | string)[]): number[] {
  return values.filter((value): value is number => typeof value === "number");
}
