// Nodes as users see them, and how they come from the records of a file.

import { integer, type Integer } from "./arrays.js";
import { QfbError, quoted } from "./errors.js";
import type { Reader } from "./reader.js";
import { AttributeType, type Records } from "./schema.js";
import type { Text } from "./text.js";

/** A parameter of a node: what it is, and its value. An empty list is one of integers. */
export type Attribute =
  | { readonly type: "int"; readonly value: Integer }
  | { readonly type: "float"; readonly value: number }
  | { readonly type: "string"; readonly value: string }
  | { readonly type: "ints"; readonly value: readonly Integer[] }
  | { readonly type: "floats"; readonly value: Float64Array }
  | { readonly type: "strings"; readonly value: readonly string[] };

/** One operation. */
export interface Node {
  /** ONNX's name, or "qfmt.Name" for what ONNX lacks. */
  readonly operator: string;
  /** For ONNX's operators the opset in which its present meaning began. */
  readonly version: number;
  /** Names of tensors; "" for an optional input that is absent. */
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  /** By name, sorted. */
  readonly attributes: ReadonlyMap<string, Attribute>;
  /** The rounding rule of the outputs (docs/spec/running.md); "" where nothing is rounded. */
  readonly rule: string;
  readonly name: string;
  /** The module path of the source that it came from. */
  readonly scope: string;
  /** What it was there. */
  readonly sourceOperator: string;
}

/** A vector of the file whose elements are decoded when they are asked for. */
export class Lazy<Element> {
  readonly length: number;
  readonly #decode: (index: number) => Element;
  readonly #elements = new Map<number, Element>();

  /** @internal */
  constructor(length: number, decode: (index: number) => Element) {
    this.length = length;
    this.#decode = decode;
  }

  /** The element at an index; one below 0 counts from the end. Undefined if there is none. */
  at(index: number): Element | undefined {
    const position = index < 0 ? index + this.length : index;
    if (!Number.isInteger(position) || position < 0 || position >= this.length) {
      return undefined;
    }
    let element = this.#elements.get(position);
    if (element === undefined) {
      element = this.#decode(position);
      this.#elements.set(position, element);
    }
    return element;
  }

  *[Symbol.iterator](): Iterator<Element> {
    for (let index = 0; index < this.length; index++) {
      yield this.at(index)!;
    }
  }
}

export function nodeOf(reader: Reader, record: Records["Node"]): Node {
  return {
    operator: record.operator,
    version: record.version,
    inputs: Array.from(record.inputs, (index) => (index === -1 ? "" : reader.tensorName(index))),
    outputs: reader.tensorNames(record.outputs),
    attributes: sortedMap(attributePairs(record), reader.text),
    rule: record.rule ?? "",
    name: record.name ?? "",
    scope: record.scope ?? "",
    sourceOperator: record.source_operator ?? "",
  };
}

function* attributePairs({ attributes }: Records["Node"]): Iterable<[string, Attribute]> {
  for (const attribute of attributes ?? []) {
    yield [attribute.name, attributeOf(attribute)];
  }
}

/** The bits of single floats that are NaN, which a number does not keep: content ids are made of them. */
export const bitsOf = new WeakMap<Attribute, Float64Array>();

function attributeOf(record: Records["Attribute"]): Attribute {
  const given = [
    record.int_value !== 0n, record.float_value[0] !== 0,
    ...[record.string_value, record.ints, record.floats, record.strings].map((value) => value !== null),
  ];
  if (given.some((is, index) => is && index + 1 !== record.type)) {
    throw new QfbError(`the attribute ${quoted(record.name)} has values of two types`, { rule: "F12" });
  }
  switch (record.type) {
    case AttributeType.Int:
      return { type: "int", value: integer(record.int_value) };
    case AttributeType.Float: {
      const attribute: Attribute = { type: "float", value: record.float_value[0]! };
      bitsOf.set(attribute, record.float_value);
      return attribute;
    }
    case AttributeType.String:
      return { type: "string", value: there(record.string_value, record.name) };
    case AttributeType.Ints:
      return { type: "ints", value: Array.from(there(record.ints, record.name), integer) };
    case AttributeType.Floats:
      return { type: "floats", value: filled(there(record.floats, record.name), record.name) };
    case AttributeType.Strings:
      return { type: "strings", value: filled(there(record.strings, record.name), record.name) };
    default: {
      const what = `the attribute ${quoted(record.name)} has the unknown type ${record.type}`;
      throw new QfbError(what, { rule: "F12" });
    }
  }
}

function there<Value>(value: Value | null, name: string): Value {
  if (value === null) {
    throw new QfbError(`the attribute ${quoted(name)} has no value`, { rule: "F12" });
  }
  return value;
}

function filled<List extends { readonly length: number }>(list: List, name: string): List {
  if (list.length === 0) {
    throw new QfbError(`the attribute ${quoted(name)} is an empty list, which has the type Ints`, { rule: "F12" });
  }
  return list;
}

/** The pairs of a map, which the file has sorted by key. */
export function sortedMap<Value>(pairs: Iterable<readonly [string, Value]>, text: Text): ReadonlyMap<string, Value> {
  const result = new Map<string, Value>();
  let last: string | undefined;
  for (const [key, value] of pairs) {
    if (last !== undefined && text.compare(last, key) >= 0) {
      throw new QfbError(`the key ${quoted(key)} is not in order`, { rule: "F11" });
    }
    result.set(key, value);
    last = key;
  }
  return result;
}

