// A FlatBuffers decoder that verifies as it decodes, driven by the tables of schema.ts.
//
// The runtime of FlatBuffers trusts its input. Here every offset is checked against the end of the metadata and for
// alignment, every vtable and vector length before it is used, every string for UTF-8, every required field for
// presence. Memory and work are bounded by the size of the metadata: strings and nested tables, which may be shared, are
// decoded once, and whatever is referred to again and again exhausts a budget. A shared string costs its characters each
// time, because whoever uses it checks or compares them, and a shared table its `extent`.

import { littleEndian } from "./endian.js";
import { QfbError } from "./errors.js";
import { TABLES, type Field, type Records } from "./schema.js";

type Name = keyof Records;
type Value = unknown;

/** The memory that decoding may take: bytes, and bytes for each byte of the metadata. A tenth of it is the rule. */
const [BASE, FACTOR] = [1 << 20, 32];

/** What is counted for a table with what is made of it, for where its fields are, for a list, and for a text: bytes. */
const [TABLE, LAYOUT, LIST, TEXT] = [256, 1024, 96, 64];

/** What is made of the elements of a list takes as many times their bytes. */
const COPIES = 3;

const SIZES: Readonly<Record<string, number>> = { ubyte: 1, int: 4, uint: 4, long: 8, ulong: 8, double: 8 };

/** Where the fields of the tables that share a vtable are. */
interface Layout {
  readonly size: number;
  readonly absent: Readonly<Record<string, Value>>;
  readonly present: readonly { readonly field: Field; readonly offset: number }[];
}

/** Decodes the FlatBuffer `data`; objects lie from `start` to its end. */
export class Decoder {
  readonly #data: Uint8Array<ArrayBuffer>;
  readonly #view: DataView;
  readonly #start: number;
  readonly #strings = new Map<number, string>();
  readonly #nested = new Map<string, unknown>();
  readonly #extents = new Map<string, number>();
  readonly #layouts = new Map<string, Layout>();
  readonly #utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  #budget: number;

  constructor(data: Uint8Array<ArrayBuffer>, start: number) {
    this.#data = data;
    this.#view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    this.#start = start;
    this.#budget = BASE + FACTOR * data.length;
  }

  root(): Records["Model"] {
    return this.table("Model", this.target(0, "the root offset"));
  }

  /** The table at a position, with every field that this reader knows. */
  table<Of extends Name>(name: Of, position: number): Records[Of] {
    const layout = this.#layout(name, position);
    this.#spend(TABLE, position);
    const record: Record<string, Value> = { ...layout.absent };
    for (const { field, offset } of layout.present) {
      record[field.name] = this.#value(name, field, position + offset);
    }
    return record as unknown as Records[Of];
  }

  /** One required string field of a table, without decoding the others. */
  stringField(name: Name, position: number, key: string): string {
    for (const { field, offset } of this.#layout(name, position).present) {
      if (field.name === key) {
        return this.#string(this.target(position + offset, key), `${name}.${key}`);
      }
    }
    throw broken(`${name}.${key} is missing`, position);
  }

  /** Where an offset leads: inside the metadata, aligned, with room for four bytes. */
  target(position: number, place: string): number {
    const target = position + this.#u32(position);
    if (target === position || target < this.#start || target > this.#data.length - 4) {
      throw broken(`${place} leads outside the metadata, to byte ${target}`, position);
    }
    if (target % 4) {
      throw broken(`${place} leads to byte ${target}, which is not aligned`, position);
    }
    return target;
  }

  #value(name: Name, field: Field, at: number): Value {
    switch (field.kind) {
      case "ubyte":
        return this.#data[at];
      case "int":
        return this.#view.getInt32(at, true);
      case "uint":
        return this.#u32(at);
      case "long":
        return this.#view.getBigInt64(at, true);
      case "ulong":
        return this.#view.getBigUint64(at, true);
      case "double":
        return this.#numbers("double", at, 1);
      case "struct":
        return this.#data.slice(at, at + field.size);
    }
    const place = `${name}.${field.name}`;
    const target = this.target(at, place);
    switch (field.kind) {
      case "string":
        return this.#string(target, place);
      case "table":
        return this.#nestedTable(field.of as Name, target);
      case "[string]":
        return this.#elements(target, place).map((at) => this.#string(this.target(at, place), place));
      case "[table]":
        return new Tables(this, field.of as Name, target + 4, this.#count(target, 4, place), place);
    }
    const kind = field.kind.slice(1, -1);
    return this.#numbers(kind, target + 4, this.#count(target, SIZES[kind]!, place));
  }

  #nestedTable(name: Name, position: number): unknown {
    const key = `${name} ${position}`;
    let table = this.#nested.get(key);
    if (table === undefined) {
      table = this.table(name, position);
      this.#nested.set(key, table);
    } else {
      const size = this.#extents.get(key) ?? extent(table);
      this.#extents.set(key, size);
      this.#spend(size, position);
    }
    return table;
  }

  #string(position: number, place: string): string {
    const known = this.#strings.get(position);
    if (known !== undefined) {
      this.#spend(known.length, position);
      return known;
    }
    const end = position + 4 + this.#count(position, 1, place);
    this.#spend(TEXT, position);
    if (end >= this.#data.length || this.#data[end] !== 0) {
      throw broken(`the string ${place} does not end with a zero byte`, end);
    }
    let text: string;
    try {
      text = this.#utf8.decode(this.#data.subarray(position + 4, end));
    } catch {
      throw broken(`the string ${place} is not UTF-8`, position + 4);
    }
    this.#strings.set(position, text);
    return text;
  }

  /** `count` numbers, copied: a FlatBuffer may lie anywhere in memory, and a big-endian machine turns them round. */
  #numbers(kind: string, at: number, count: number): Uint8Array | Int32Array | BigInt64Array | Float64Array {
    const size = SIZES[kind]!;
    const bytes = littleEndian(this.#data.slice(at, at + count * size), size);
    switch (kind) {
      case "ubyte":
        return bytes;
      case "int":
        return new Int32Array(bytes.buffer);
      case "long":
        return new BigInt64Array(bytes.buffer);
      default:
        return new Float64Array(bytes.buffer);
    }
  }

  /** The positions of the elements of a vector of offsets. */
  #elements(position: number, place: string): number[] {
    return Array.from({ length: this.#count(position, 4, place) }, (_, index) => position + 4 + 4 * index);
  }

  /** The length of a vector, after a check that it ends inside the metadata. */
  #count(position: number, size: number, place: string): number {
    const count = this.#u32(position);
    if (count > Math.floor((this.#data.length - position - 4) / size)) {
      throw broken(`${place} has ${count} elements, more than fit into the metadata`, position);
    }
    if (count && (position + 4) % size) {
      throw broken(`${place} is not aligned`, position);
    }
    this.#spend(LIST + COPIES * count * size, position);
    return count;
  }

  /** The layout of the table at a position, which ends inside the metadata. */
  #layout(name: Name, position: number): Layout {
    const vtable = position - this.#view.getInt32(position, true);
    const key = `${name} ${vtable} ${position % 8}`;
    let layout = this.#layouts.get(key);
    if (layout === undefined) {
      this.#spend(LAYOUT, position);
      layout = this.#parseVtable(name, position, vtable);
      this.#layouts.set(key, layout);
    }
    if (position + layout.size > this.#data.length) {
      throw broken(`${name} ends outside the metadata`, position);
    }
    return layout;
  }

  #parseVtable(name: Name, position: number, vtable: number): Layout {
    const end = this.#data.length;
    if (vtable < this.#start || vtable > end - 4 || vtable % 2) {
      throw broken(`the vtable of ${name} cannot be at byte ${vtable}`, position);
    }
    const length = this.#view.getUint16(vtable, true);
    const size = this.#view.getUint16(vtable + 2, true);
    if (length < 4 || length % 2 || vtable + length > end || size < 4) {
      throw broken(`the vtable of ${name} has impossible sizes (${length}, ${size})`, vtable);
    }
    const absent: Record<string, Value> = {};
    const present: { field: Field; offset: number }[] = [];
    for (const [id, field] of TABLES[name].entries()) {
      const slot = 4 + 2 * id;
      const offset = slot < length ? this.#view.getUint16(vtable + slot, true) : 0;
      if (offset === 0) {
        if (field.required) {
          throw broken(`${name}.${field.name} is missing`, position);
        }
        absent[field.name] = field.kind === "double" ? Float64Array.of(Number(field.default)) : field.default;
        continue;
      }
      if (offset < 4 || offset + field.size > size) {
        throw broken(`${name}.${field.name} lies outside its table`, vtable + slot);
      }
      if (field.kind !== "struct" && (position + offset) % field.size) {
        throw broken(`${name}.${field.name} is not aligned`, position + offset);
      }
      present.push({ field, offset });
    }
    return { size, absent, present };
  }

  #spend(count: number, position: number): void {
    this.#budget -= count;
    if (this.#budget < 0) {
      throw broken("the same tables, vectors or strings are referred to too often", position);
    }
  }

  #u32(position: number): number {
    return this.#view.getUint32(position, true);
  }
}

/** A vector of tables that decodes an element when it is asked for, and keeps none. */
export class Tables<Of extends Name> {
  readonly length: number;
  readonly #decoder: Decoder;
  readonly #name: Of;
  readonly #first: number;
  readonly #place: string;

  constructor(decoder: Decoder, name: Of, first: number, length: number, place: string) {
    this.#decoder = decoder;
    this.#name = name;
    this.#first = first;
    this.length = length;
    this.#place = place;
  }

  /** The element at an index, which must be below `length`. */
  get(index: number): Records[Of] {
    return this.#decoder.table(this.#name, this.#position(index));
  }

  /** One required string field of an element, without decoding the others. */
  stringField(index: number, key: string): string {
    return this.#decoder.stringField(this.#name, this.#position(index), key);
  }

  *[Symbol.iterator](): Iterator<Records[Of]> {
    for (let index = 0; index < this.length; index++) {
      yield this.get(index);
    }
  }

  #position(index: number): number {
    return this.#decoder.target(this.#first + 4 * index, `${this.#place}[${index}]`);
  }
}

/** How much there is to check in a nested table, or in a part of it: characters, and bytes of numbers. */
function extent(value: unknown): number {
  if (typeof value !== "object" || value === null) {
    return typeof value === "string" ? value.length : 0;
  }
  return ArrayBuffer.isView(value) ? value.byteLength : Object.values(value).reduce((sum, part) => sum + extent(part), 0);
}

function broken(what: string, position: number): QfbError {
  return new QfbError(what, { where: `metadata, byte ${position}`, rule: "F6" });
}
