// The conformance suite of the format: each file holds what the JSON beside it says, and what must be refused is refused.
// The README of the suite explains the JSON.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { DTYPES, open, QfbError, type Attribute, type Level, type Model, type Quantization, type StoredArray, type Tensor } from "qfb-reader";
import { PACKAGE } from "./files.js";

const SUITE = new URL("../../tests/golden/1.0/", PACKAGE);

interface Entry {
  readonly name: string;
  readonly level: string;
  readonly rule?: string;
  readonly refused_by?: string;
  readonly shards?: Readonly<Record<string, string>>;
}

/** The shards of a file by name, those that are there. */
async function shardsOf({ level, shards = {} }: Entry): Promise<Record<string, Uint8Array>> {
  const read = async (name: string) => [name, new Uint8Array(await readFile(new URL(`${level}/${name}`, SUITE)))];
  return Object.fromEntries(await Promise.all(Object.keys(shards).map(read)));
}

/** "ok", or the rule by which `verify` refuses a file, whose shards are given by name. */
async function refusal(file: Uint8Array, shards: Record<string, Uint8Array>): Promise<string> {
  try {
    await (await open(file, { shards })).verify();
    return "ok";
  } catch (error) {
    assert.ok(error instanceof QfbError);
    return error.rule;
  }
}

/** Floats as the hexadecimal digits of their float64. */
function bits(values: Float64Array): string[] {
  return Array.from(new BigUint64Array(values.buffer, values.byteOffset, values.length), (each) => digits(each, 64));
}

function digits(code: bigint | number, bits: number): string {
  return code.toString(16).padStart(Math.ceil(bits / 4), "0");
}

/** The elements of an array: integers, those of 64 bits as text; floats as the digits of their bits. */
async function items(stored: StoredArray): Promise<unknown[]> {
  const { kind, bits } = DTYPES[stored.dtype];
  const array = await stored.array();
  if (kind !== "f") {
    return Array.from(array as Iterable<number | bigint>, (item) => (bits === 64 ? String(item) : Number(item)));
  }
  const { buffer, byteOffset, length } = array;
  const codes = bits === 64 ? new BigUint64Array(buffer, byteOffset, length) : bits === 32 ? new Uint32Array(buffer, byteOffset, length) : array;
  return Array.from(codes as Iterable<number | bigint>, (code) => digits(code, bits));
}

/** A record without the fields that the JSON leaves out: those that are null or an empty text. */
function stated(record: object): object {
  return Object.fromEntries(Object.entries(record).filter(([, value]) => value !== null && value !== "" && value !== undefined));
}

/** An array of a quantization. */
async function parameter(stored: StoredArray | null): Promise<unknown> {
  const { dtype, shape, quantization: own } = stored ?? {};
  return stored && stated({ dtype, shape, values: await items(stored), quantization: own && (await level(own)) });
}

async function level(q: Level): Promise<object> {
  return stated({
    block: q.block,
    scale: await parameter(q.scale),
    zero_point: await parameter(q.zeroPoint),
    offset: await parameter(q.offset),
    table: await parameter(q.table),
    group_index: await parameter(q.groupIndex),
  });
}

async function quantization(q: Quantization): Promise<unknown> {
  const { observed } = q;
  return stated({
    ...(await level(q)),
    quant_min: q.quantMin,
    quant_max: q.quantMax,
    scale_name: q.scaleName,
    zero_point_name: q.zeroPointName,
    observed: observed && stated({
      observer: observed.observer,
      minimum: bits(observed.minimum),
      maximum: bits(observed.maximum),
      quant_min: observed.quantMin === null ? null : String(observed.quantMin),
      quant_max: observed.quantMax === null ? null : String(observed.quantMax),
      qscheme: observed.qscheme,
    }),
  });
}

async function tensorFacts({ dtype, shape, dims, aliases, quantization: q, data }: Tensor): Promise<unknown> {
  return stated({
    dtype,
    shape: shape && shape.map((size, axis) => size ?? (dims[axis] || null)),
    aliases,
    quantization: q && (await quantization(q)),
    values: data && (await items(data)),
  });
}

function attribute({ type, value }: Attribute): unknown {
  const kind = { int: "i", float: "f", string: "s", ints: "ii", floats: "ff", strings: "ss" }[type];
  if (typeof value === "object") {
    const list = value instanceof Float64Array ? bits(value) : Array.from(value, String);
    return { type: value.length ? kind : "ii", value: list };
  }
  return { type: kind, value: type === "float" ? bits(Float64Array.of(value))[0] : String(value) };
}

async function values(ends: ReadonlyMap<string, StoredArray>): Promise<unknown> {
  const found = Array.from(ends, async ([name, value]) => [name, { shape: value.shape, values: await items(value) }]);
  return Object.fromEntries(await Promise.all(found));
}

/** What the JSON says about a file, made from the file. */
async function twin(model: Model): Promise<object> {
  const tensors = await Promise.all(Array.from(model.tensors, async (tensor) => [tensor.name, await tensorFacts(tensor)]));
  const nodes = Array.from(model.nodes, ({ attributes, sourceOperator, ...rest }) =>
    stated({
      ...rest,
      attributes: Object.fromEntries(Array.from(attributes, ([name, value]) => [name, attribute(value)])),
      source_operator: sourceOperator,
    }),
  );
  const vectors = Array.from(model.vectors, async ({ name, inputs, outputs, digests }) =>
    stated({
      name,
      inputs: await values(inputs),
      outputs: await values(outputs),
      ...(digests.length ? { digests: Buffer.from(digests).toString("hex").match(/.{32}/g) } : {}),
    }),
  );
  const { producer, engine, inputs, outputs } = model;
  return stated({
    content_id: await model.contentId(),
    producer,
    engine,
    inputs,
    outputs,
    source: Object.fromEntries(model.source),
    metadata: Object.fromEntries(model.metadata),
    graph: model.name,
    tensors: Object.fromEntries(tensors),
    nodes,
    vectors: await Promise.all(vectors),
  });
}

const index = new URL("index.json", SUITE);
const skip = existsSync(index) ? false : "the suite is not beside this folder";

test("every file of the conformance suite", { skip }, async (context) => {
  const { files } = JSON.parse(await readFile(index, "utf8")) as { files: Entry[] };
  const counts = { read: 0, numbers: 0, refused: 0, rule: 0 };
  for (const entry of files) {
    const { name, level, rule, refused_by: by } = entry;
    const shards = await shardsOf(entry);
    const file = new Uint8Array(await readFile(new URL(`${level}/${name}.qfb`, SUITE)));
    if (level === "refused") {
      const found = await refusal(file, shards);
      if (by === "every reader" || rule === "F15") {
        assert.notEqual(found, "ok", name);
        counts.refused++;
        counts.rule += Number(found === rule);
      }
      continue;
    }
    const model = await open(file, { shards });
    await model.verify();
    const { name: named, level: _, about, digest, ...said } = JSON.parse(
      await readFile(new URL(`${level}/${name}.json`, SUITE), "utf8"),
    ) as Record<string, unknown>;
    assert.equal(named, name);
    assert.deepEqual(await twin(model), said, name);
    assert.equal(Buffer.from(file.subarray(64, 96)).toString("hex"), digest);
    counts.read++;
    for (const tensor of model.tensors) {
      counts.numbers += tensor.data?.length ?? 0;
    }
  }
  assert.ok(counts.read > 100);
  const refused = `${counts.refused} that every reader refuses, ${counts.rule} of them by the rule that is named`;
  context.diagnostic(`conformance: ${counts.read} files read, ${counts.numbers} numbers of constants; ${refused}`);
});
