// The content id: what a network computes, whoever converted it (spec.md, "Content id").

import { hex, sha256 } from "./digest.js";
import { bitsOf, type Attribute } from "./graph.js";
import type { Model } from "./model.js";
import type { Quantization, Tensor } from "./tensor.js";
import { compare } from "./text.js";

/** The lines that the content id is the sha256 of. */
export function* contentLines(model: Model): Iterable<string> {
  yield "qfb content 1";
  yield words("inputs", ...model.inputs);
  yield words("outputs", ...model.outputs);
  for (const tensor of [...model.tensors].sort((a, b) => compare(a.name, b.name))) {
    yield* tensorLines(tensor);
  }
  for (const node of model.nodes) {
    yield words("node", node.operator, node.version, node.arithmetic);
    yield words("in", ...node.inputs);
    yield words("out", ...node.outputs);
    for (const [name, attribute] of node.attributes) {
      yield words("attribute", name, ...attributeWords(attribute));
    }
  }
}

export async function contentId(model: Model): Promise<string> {
  const text = Array.from(contentLines(model), (line) => `${line}\n`).join("");
  return hex(await sha256(new TextEncoder().encode(text)));
}

function* tensorLines({ name, dtype, shape, dims, quantization, data }: Tensor): Iterable<string> {
  const sizes = shape?.map((size, axis) => (size !== null ? size : dims[axis] ? `=${dims[axis]}` : "?")) ?? ["*"];
  yield words("tensor", name, dtype, sizes.length, ...sizes);
  if (quantization) {
    yield quantizationLine(quantization);
    const { blocks } = quantization;
    if (blocks) {
      const own = blocks.zeroPoint ? [blocks.zeroPoint.dtype, hex(blocks.zeroPoint.sha256)] : [];
      yield words("blocks", ...blocks.shape, hex(blocks.scale.sha256), ...own);
    }
  }
  if (data) {
    yield words("data", hex(data.sha256));
  }
}

function quantizationLine({ axis, quantMin, quantMax, scaleDtype, scale, zeroPoint }: Quantization): string {
  const zeroPoints = zeroPoint instanceof Int32Array ? zeroPoint : floatWords(zeroPoint);
  return words("quantization", axis ?? "-", quantMin, quantMax, scaleDtype, ...floatWords(scale), ...zeroPoints);
}

function attributeWords(attribute: Attribute): (string | number | bigint)[] {
  switch (attribute.type) {
    case "int":
      return ["si", attribute.value];
    case "float":
      return ["sf", ...floatWords(bitsOf.get(attribute) ?? Float64Array.of(attribute.value))];
    case "string":
      return ["ss", attribute.value];
    case "ints":
      return ["li", ...attribute.value];
    case "floats":
      return attribute.value.length ? ["lf", ...floatWords(attribute.value)] : ["li"];
    case "strings":
      return attribute.value.length ? ["ls", ...attribute.value] : ["li"];
  }
}

/** Each float64 as 16 hexadecimal digits, big-endian; from its bits, so that NaN stays the NaN that it is. */
function floatWords(values: Float64Array): string[] {
  const bits = new BigUint64Array(values.buffer, values.byteOffset, values.length);
  return Array.from(bits, (each) => each.toString(16).padStart(16, "0"));
}

const UTF8 = new TextEncoder();

/** Words, each preceded by its length in bytes, so that no two lists look alike. */
function words(...items: (string | number | bigint)[]): string {
  return items.map((item) => `${UTF8.encode(String(item)).length}:${item}`).join(" ");
}
