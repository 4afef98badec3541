// The content id: what a network computes, whoever converted it (docs/spec/writing.md, "Content id"). A line is words, each
// preceded by its length in bytes, so that no two lists of words look alike.

import { hex, sha256 } from "./digest.js";
import { QfbError } from "./errors.js";
import { bitsOf, type Attribute } from "./graph.js";
import type { Model } from "./model.js";
import { parameters, type Level } from "./quantization.js";
import type { Tensor } from "./tensor.js";
import type { Text } from "./text.js";

type Word = string | number | bigint;

/** The lines that the content id is the sha256 of, each as its words. */
async function* contentLines(model: Model, text: Text): AsyncIterable<Iterable<Word>> {
  yield line("inputs", model.inputs);
  yield line("outputs", model.outputs);
  for (const tensor of [...model.tensors].sort((a, b) => text.compare(a.name, b.name))) {
    yield* tensorLines(tensor);
  }
  for (const node of model.nodes) {
    yield ["node", node.operator, node.version, node.rule];
    yield line("in", node.inputs);
    yield line("out", node.outputs);
    for (const [name, attribute] of node.attributes) {
      yield line("attribute", [name], attributeWords(attribute));
    }
  }
  for (const key of ["dynamic_inputs", "quantized_inputs"]) {
    const stated = model.source.get(key);
    if (stated !== undefined) {
      yield [key, stated];
    }
  }
}

/**
 * The content id, in hexadecimal digits. A hostile file can refer to a long name, or to many scales, again and again:
 * of more than `limit` characters no id is made.
 */
export async function contentId(model: Model, text: Text, limit: number): Promise<string> {
  const parts = ["qfb content 1\n"];
  let length = 0;
  for await (const words of contentLines(model, text)) {
    let separator = "";
    for (const word of words) {
      const written = String(word);
      parts.push(separator, String(text.bytes(written)), ":", written);
      length += written.length + 8;
      separator = " ";
      if (length > limit) {
        const hint = "the file refers to long names, or to many scales, too often";
        throw new QfbError("the text of the content id is too long", { hint });
      }
    }
    parts.push("\n");
  }
  return hex(await sha256(new TextEncoder().encode(parts.join(""))));
}

function* line(first: string, ...rest: Iterable<Word>[]): Iterable<Word> {
  yield first;
  for (const words of rest) {
    yield* words;
  }
}

async function* tensorLines({ name, dtype, shape, dims, quantization, data }: Tensor): AsyncIterable<Iterable<Word>> {
  const sizes = shape?.map((size, axis) => (size !== null ? size : dims[axis] ? `=${dims[axis]}` : "?")) ?? ["*"];
  yield ["tensor", name, dtype, sizes.length, ...sizes];
  if (quantization) {
    yield ["quantization", quantization.quantMin, quantization.quantMax, ...quantization.block];
    yield* levelLines(quantization);
  }
  if (data) {
    yield ["data", hex(await data.sha256())];
  }
}

/** A zero point that is 0 is not written: neither is one that is absent. */
const ZERO = "zero_point uint8  6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d";

async function* levelLines(level: Level, prefix = ""): AsyncIterable<Iterable<Word>> {
  for (const [name, array] of parameters(level)) {
    const digest = hex(await array.sha256());
    if (`${name} ${array.dtype} ${array.shape} ${digest}` !== ZERO) {
      yield [prefix + name, array.dtype, ...array.shape, digest];
    }
    if (array.quantization) {
      yield ["level", ...array.quantization.block];
      yield* levelLines(array.quantization, `${name}.`);
    }
  }
}

function attributeWords(attribute: Attribute): Iterable<Word> {
  switch (attribute.type) {
    case "int":
      return ["si", attribute.value];
    case "float":
      return line("sf", floatWords(bitsOf.get(attribute) ?? Float64Array.of(attribute.value)));
    case "string":
      return ["ss", attribute.value];
    case "ints":
      return line("li", attribute.value);
    case "floats":
      return attribute.value.length ? line("lf", floatWords(attribute.value)) : ["li"];
    case "strings":
      return attribute.value.length ? line("ls", attribute.value) : ["li"];
  }
}

/** Each float64 as 16 hexadecimal digits, big-endian; from its bits, so that NaN stays the NaN that it is. */
function* floatWords(values: Float64Array): Iterable<string> {
  for (const bits of new BigUint64Array(values.buffer, values.byteOffset, values.length)) {
    yield bits.toString(16).padStart(16, "0");
  }
}
