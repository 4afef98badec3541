import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { format } from "node:util";
import { DTYPES, floatOfCode, open, QfbError, toFloat32, unpack } from "qfb-reader";
import { BLOCKS, golden, GOLDEN, PACKAGE } from "./files.js";
import { verdict } from "./touch.js";

test("what the golden file says", async () => {
  const model = await open(await golden());
  assert.deepEqual(model.inputs, ["x"]);
  assert.deepEqual(model.outputs, ["y", "größe"]);
  assert.deepEqual([model.name, model.producer, model.engine, model.minorVersion], ["golden", "qfmt", "fbgemm", 0]);
  assert.deepEqual([...model.source], [["format", "none"]]);
  assert.deepEqual([...model.metadata], [["author", "qfmt"], ["licence", "MIT"], ["note", ""]]);
  assert.equal(model.vectors.length, 0);
});

test("tensors", async () => {
  const { tensors } = await open(await golden());
  const x = tensors.get("x/quantized")!;
  assert.deepEqual([x.dtype, x.shape, x.dims, x.isConstant], ["uint8", [null, 3, 8, 8], ["N", "", "", ""], false]);
  const weight = tensors.get("conv.weight")!;
  assert.deepEqual(weight.shape, [2, 3, 3, 3]);
  assert.deepEqual(weight.aliases, ["conv._packed_params._packed_params"]);
  const { block, scale, zeroPoint, offset, quantMin, quantMax } = weight.quantization!;
  assert.deepEqual([await scale.array(), await zeroPoint.array()], [Float64Array.of(0.5, 0.001953125), Uint8Array.of(0)]);
  assert.deepEqual([block, scale.shape, zeroPoint.shape, offset], [[1], [2], [], null]);
  assert.deepEqual([quantMin, quantMax, scale.dtype, zeroPoint.dtype], [-127, 127, "float64", "uint8"]);
  assert.deepEqual(tensors.get("größe")!.shape, null);
  const { observed } = tensors.get("conv")!.quantization!;
  assert.deepEqual([observed!.observer, [...observed!.minimum], observed!.quantMax], ["HistogramObserver", [-0.15], 127]);
  assert.equal(tensors.get("nothing"), undefined);
  assert.equal(tensors.has("conv.bias"), true);
  assert.equal([...tensors.names()].length, tensors.size);
  assert.equal(tensors.get("x"), tensors.get("x"));
});

test("tensors are found by the names that they had", async () => {
  const { tensors } = await open(await golden());
  assert.equal(tensors.find("conv._packed_params._packed_params"), tensors.get("conv.weight"));
  assert.equal(tensors.find("conv.scale"), tensors.get("conv"));
  assert.equal(tensors.find("conv.zero_point"), tensors.get("conv"));
  assert.equal(tensors.find("nothing.scale"), undefined);
});

test("arrays and real values", async () => {
  const { tensors } = await open(await golden());
  const weight = tensors.get("conv.weight")!;
  const integers = Int8Array.from({ length: 54 }, (_, index) => (index % 255) - 127);
  assert.deepEqual(await weight.array(), integers);
  const scales = [0.5, 0.001953125];
  assert.deepEqual(await weight.dequantize(), Float32Array.from(integers, (q, index) => q * scales[index < 27 ? 0 : 1]!));
  await assert.rejects(tensors.get("x")!.array(), /^QfbError: tensor "x": is computed, not stored/);
  for (const tensor of tensors) {
    if (tensor.data) {
      assert.ok((await tensor.array()) instanceof DTYPES[tensor.dtype].array);
    }
  }
});

test("messages hold no control characters", () => {
  const error = new QfbError("the key \x1b]0;\u202e is not in order", { where: "x\ny", hint: "é" });
  assert.equal(error.message, "x\\u{a}y: the key \\u{1b}]0;\\u{202e} is not in order; é");
  assert.equal(error.at("\x9b").message.slice(0, 7), "\\u{9b}:");
});

test("block-wise scales", async () => {
  const { tensors } = await open(BLOCKS);
  const tiles = tensors.get("tiles")!;
  assert.deepEqual(tiles.quantization!.block, [2, 5]);
  assert.deepEqual(await tiles.quantization!.scale.array(), Float32Array.of(1, 2, 0.5, 0.25));
  const [q, real] = [await tiles.array(), await tiles.dequantize()];
  const scale = (index: number) => [1, 2, 0.5, 0.25][(index % 7 < 5 ? 0 : 1) + (index < 14 ? 0 : 2)]!;
  assert.deepEqual(real, Float32Array.from(q as Int8Array, (value, index) => value * scale(index)));
});

test("nodes", async () => {
  const { nodes } = await open(await golden());
  assert.deepEqual(Array.from(nodes, (node) => node.operator), ["QuantizeLinear", "Conv", "DequantizeLinear", "vendor.Unknown"]);
  const conv = nodes.at(1)!;
  assert.deepEqual(conv.inputs, ["x/quantized", "conv.weight", "conv.bias"]);
  assert.deepEqual([conv.version, conv.rule, conv.scope, conv.sourceOperator], [22, "float_bias", "features.0.0", "quantized::conv2d_relu"]);
  assert.deepEqual(conv.attributes.get("strides"), { type: "ints", value: [2, 2] });
  const { attributes, inputs } = nodes.at(-1)!;
  assert.deepEqual(inputs, ["y", ""]);
  assert.deepEqual(attributes.get("f"), { type: "float", value: -0 });
  assert.deepEqual(attributes.get("i"), { type: "int", value: -(2n ** 63n) });
  assert.deepEqual(attributes.get("floats"), { type: "floats", value: Float64Array.of(0.1, Infinity) });
  assert.deepEqual(attributes.get("strings"), { type: "strings", value: ["", "a"] });
  assert.deepEqual(attributes.get("ints"), { type: "ints", value: [] });
  assert.equal(nodes.at(4), undefined);
  assert.equal(nodes.at(0.5), undefined);
});

test("every changed byte of the metadata is noticed; in the data all but what is padding", async () => {
  const file = await golden();
  const id = await (await open(await golden())).contentId();
  const view = new DataView(file.buffer);
  const [metaSize, start] = [Number(view.getBigUint64(16, true)), Number(view.getBigUint64(24, true))];
  for (let at = 0; at < file.length; at += at < metaSize || at >= start ? 1 : 64) {
    if (at >= start && file[at] === 0 && at % 16) {
      continue; // most of it is padding
    }
    file[at]! ^= 0x10;
    if ((await verdict(file)) === "ok") {
      assert.ok(at >= start && (file[at]! ^ 0x10) === 0, `byte ${at}`);
      assert.equal(await (await open(file)).contentId(), id);
      await assert.rejects((await open(file)).verify(), { name: "QfbError", rule: "F8" });
    }
    file[at]! ^= 0x10;
  }
});

test("floats of few bits", () => {
  const values = (dtype: Parameters<typeof floatOfCode>[1], ...codes: number[]) => codes.map((code) => floatOfCode(code, dtype));
  assert.deepEqual(values("float4_e2m1fn", 0, 1, 2, 3, 4, 5, 6, 7, 8, 15), [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0, -6]);
  assert.deepEqual(values("float8_e4m3fn", 0x7e, 0x7f, 0xff, 1), [448, NaN, NaN, 2 ** -9]);
  assert.deepEqual(values("float8_e5m2", 0x7b, 0x7c, 0xfc, 0x7d), [57344, Infinity, -Infinity, NaN]);
  assert.deepEqual(values("float8_e4m3fnuz", 0x7f, 0x80), [240, NaN]);
  assert.deepEqual(values("float8_e5m2fnuz", 0x7f, 0x80), [57344, NaN]);
  assert.deepEqual(values("float8_e8m0fnu", 0, 127, 254, 255), [2 ** -127, 1, 2 ** 127, NaN]);
  assert.deepEqual(values("float16", 0x3c00, 0x0001, 0x7bff, 0xfc00), [1, 2 ** -24, 65504, -Infinity]);
  assert.deepEqual(values("bfloat16", 0x3f80, 0xc049, 0x7f80), [1, -3.140625, Infinity]);
});

test("integers of few bits, and of many", () => {
  assert.deepEqual(unpack(Uint8Array.of(0xe1, 0x07), "int4", 3), Int8Array.of(1, -2, 7));
  assert.deepEqual(unpack(Uint8Array.of(0b11100100), "uint2", 4), Uint8Array.of(0, 1, 2, 3));
  assert.deepEqual(unpack(Uint8Array.of(0b11100100), "int2", 4), Int8Array.of(0, 1, -2, -1));
  // 2⁵⁴ + 2³⁰ + 1 is above the tie between two float32, which float64 does not see
  const tie = 2n ** 54n + 2n ** 30n;
  const rounded = toFloat32(BigInt64Array.of(tie - 1n, tie, tie + 1n, -tie - 1n), "int64");
  assert.deepEqual([...rounded], [2 ** 54, 2 ** 54, 2 ** 54 + 2 ** 31, -(2 ** 54) - 2 ** 31]);
});

test("the example of the README prints what it says", async () => {
  const readme = await readFile(new URL("README.md", PACKAGE), "utf8");
  const [, code, output] = /```js\n\/\/ example\.js\n([\s\S]*?)```\n\n[^`]*`model\.qfb`[^`]*`tests\/golden\/1\.0\.qfb`[^`]*\n\n```text\n([\s\S]*?)```/.exec(readme)!;
  const lines: string[] = [];
  const body = code!.replace(/^import .*\n/gm, "").replaceAll('"model.qfb"', JSON.stringify(GOLDEN.href));
  const run = new Function("open", "console", `return (async () => {${body}})();`) as (...given: unknown[]) => Promise<void>;
  await run(open, { log: (...items: unknown[]) => lines.push(format(...items)) });
  assert.equal(`${lines.join("\n")}\n`, output);
  const other = body.replace("conv._packed_params", "of another file");
  const again = new Function("open", "console", `return (async () => {${other}})();`) as typeof run;
  await assert.rejects(again(open, { log: () => undefined }), /^Error: no quantized tensor of another file.*, only .*conv\.weight/);
});

test("an error says what, where, and what to do", async () => {
  const error = await open(new Uint8Array(200)).then(() => undefined, (error: unknown) => error as QfbError);
  assert.ok(error instanceof QfbError && error instanceof Error);
  assert.deepEqual([error.what, error.where, error.rule], ["is not a .qfb file", "memory", "F1"]);
  assert.equal(error.message, `${error.where}: ${error.what}; ${error.hint}`);
});
