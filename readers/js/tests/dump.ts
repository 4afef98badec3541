// Everything that a file holds, as JSON, for a comparison with what another reader finds in it.
// node dump.js FILE…  prints one line per file.

import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { argv } from "node:process";
import { open, toFloat32, type Attribute, type Level, type Quantization, type StoredArray, type Tensor, type TypedArray } from "qfb-reader";

/** float64 as 16 hexadecimal digits: JSON knows neither -0 nor infinities. */
function bits(values: Iterable<number>): string[] {
  const view = new DataView(new ArrayBuffer(8));
  return Array.from(values, (value) => {
    view.setFloat64(0, value);
    return view.getBigUint64(0).toString(16).padStart(16, "0");
  });
}

function digest(array: TypedArray): string {
  return createHash("sha256").update(new Uint8Array(array.buffer, array.byteOffset, array.byteLength)).digest("hex");
}

/** The digest of float32 numbers, each NaN as the same one. */
function digestOfFloats(values: Float32Array): string {
  const codes = new Uint32Array(values.length);
  const own = new Uint32Array(values.buffer, values.byteOffset, values.length);
  values.forEach((value, index) => (codes[index] = Number.isNaN(value) ? 0x7fc00000 : own[index]!));
  return digest(codes);
}

async function stored(array: StoredArray | null): Promise<unknown> {
  return array && {
    dtype: array.dtype,
    shape: array.shape.map(String),
    length: array.length,
    bytes: digest(await array.bytes()),
    array: digest(await array.array()),
    float32: digestOfFloats(toFloat32(await array.array(), array.dtype)),
    dequantized: digestOfFloats(await array.dequantize()),
    sha256: Buffer.from(await array.sha256()).toString("hex"),
    quantization: array.quantization && (await level(array.quantization)),
  };
}

async function level(q: Level): Promise<object> {
  return {
    block: q.block.map(String),
    scale: await stored(q.scale),
    zero_point: await stored(q.zeroPoint),
    offset: await stored(q.offset),
    table: await stored(q.table),
    group_index: await stored(q.groupIndex),
  };
}

async function grid(q: Quantization): Promise<unknown> {
  return {
    ...(await level(q)),
    limits: [String(q.quantMin), String(q.quantMax)],
    names: [q.scaleName, q.zeroPointName],
    observed: q.observed && [
      q.observed.observer,
      bits(q.observed.minimum),
      bits(q.observed.maximum),
      String(q.observed.quantMin),
      String(q.observed.quantMax),
      q.observed.qscheme,
    ],
  };
}

async function tensorFacts(tensor: Tensor): Promise<unknown> {
  return {
    name: tensor.name,
    dtype: tensor.dtype,
    shape: tensor.shape?.map((size, axis) => (size === null ? `?${tensor.dims[axis]}` : String(size))) ?? null,
    aliases: tensor.aliases,
    quantization: tensor.quantization && (await grid(tensor.quantization)),
    data: await stored(tensor.data),
  };
}

function attributeFacts(attribute: Attribute): unknown {
  switch (attribute.type) {
    case "int":
    case "string":
      return [attribute.type, String(attribute.value)];
    case "float":
      return [attribute.type, ...bits([attribute.value])];
    case "floats":
      return attribute.value.length ? [attribute.type, ...bits(attribute.value)] : ["ints"];
    default:
      return attribute.value.length ? [attribute.type, ...attribute.value.map(String)] : ["ints"];
  }
}

async function dump(path: string): Promise<unknown> {
  const model = await open(await readFile(path), { shards: (name) => readFile(join(dirname(path), name)) });
  const tensors: unknown[] = [];
  for (const tensor of model.tensors) {
    tensors.push(await tensorFacts(tensor));
  }
  const vectors: unknown[] = [];
  for (const { name, inputs, outputs } of model.vectors) {
    const values: unknown[] = [];
    for (const [tensor, value] of [...inputs, ...outputs]) {
      values.push([tensor, await stored(value)]);
    }
    vectors.push([name, values]);
  }
  const nodes = Array.from(model.nodes, (node) => ({
    ...node,
    attributes: Array.from(node.attributes, ([name, attribute]) => [name, attributeFacts(attribute)]),
  }));
  const { inputs, outputs, name, producer, engine } = model;
  const maps = [[...model.source], [...model.metadata]];
  const content = await model.contentId();
  return { inputs, outputs, name, producer, engine, maps, content, tensors, nodes, vectors };
}

for (const path of argv.slice(2)) {
  console.log(JSON.stringify(await dump(path)));
}
