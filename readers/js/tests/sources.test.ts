import assert from "node:assert/strict";
import { mkdtemp, open as openFile, readFile, rm, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { open, QfbError, type Openable } from "qfb-reader";
import { dataOffset, golden, GOLDEN, pathOf } from "./files.js";

let folder = "";
before(async () => void (folder = await mkdtemp(join(tmpdir(), "qfb-"))));
after(() => rm(folder, { recursive: true }));

async function idOf(from: Openable): Promise<string> {
  const model = await open(from);
  const array = await model.tensors.get("conv.weight")!.array();
  assert.equal(array.length, 54);
  assert.equal(array[0], -127);
  return model.contentId();
}

test("every kind of source gives the same model", async () => {
  const file = await golden();
  const shifted = new Uint8Array(file.length + 3);
  shifted.set(file, 3);
  const shared = new Uint8Array(new SharedArrayBuffer(file.length));
  shared.set(file);
  const handle = await openFile(GOLDEN);
  const own = { name: "own", size: file.length, read: async (at: number, count: number) => file.slice(at, at + count) };
  const sources: Openable[] = [
    pathOf(GOLDEN), GOLDEN, GOLDEN.href, file, file.buffer, shifted.subarray(3), new DataView(file.buffer),
    await readFile(GOLDEN), shared, shared.buffer, new Blob([file]), handle, own,
  ];
  const ids = await Promise.all(sources.map(idOf));
  assert.equal(new Set(ids).size, 1);
  assert.equal(ids.length, 13);
  await handle.close(); // it is still open
});

test("a source may return Buffers, which stay as they are", async () => {
  const file = Buffer.from(await golden());
  const before = Buffer.from(file);
  const own = { name: "own", size: file.length, read: async (at: number, count: number) => file.subarray(at, at + count) };
  assert.equal(await idOf(own), await idOf(GOLDEN));
  assert.ok(file.equals(before));
  const model = await open(own);
  file.fill(0, 128, 256);
  assert.equal(model.nodes.length, (await open(GOLDEN)).nodes.length);
});

test("arrays of metadata are the caller's own", async () => {
  const model = await open(GOLDEN);
  const { scale } = model.tensors.get("conv.weight")!.quantization!;
  const first = await scale.array();
  const kept = Array.from(first as Float32Array);
  (first as Float32Array).fill(7);
  assert.deepEqual(Array.from((await scale.array()) as Float32Array), kept);
});

test("arrays in memory are views where they are aligned, copies where they cannot be", async () => {
  const file = await golden();
  for (const shift of [0, 1, 4, 8]) {
    const moved = new Uint8Array(file.length + shift);
    moved.set(file, shift);
    const model = await open(moved.subarray(shift));
    for (const tensor of model.tensors) {
      if (tensor.data) {
        const array = await tensor.array();
        const isPacked = /int[24]$|float4/.test(tensor.dtype);
        const isAligned = shift % array.BYTES_PER_ELEMENT === 0;
        assert.equal(array.buffer === moved.buffer, isAligned && !isPacked, tensor.name);
        assert.equal((await tensor.bytes()).buffer, moved.buffer);
      }
    }
  }
});

test("the metadata cannot change after they were verified; data are verified at their first use", async () => {
  const file = await golden();
  const start = dataOffset(file);
  const model = await open(file);
  file.fill(0, 0, start);
  assert.equal(model.tensors.get("conv.weight")!.quantization!.block.length, 1);
  file[start] = file[start]! ^ 1;
  const first = [...model.tensors].find((tensor) => tensor.data);
  await assert.rejects(first!.array(), /^QfbError: memory: tensor ".*": the data is damaged: .*; fetch/);
});

test("without verification damage is read", async () => {
  const file = await golden();
  file[dataOffset(file)]! ^= 1;
  const model = await open(file, { verify: false });
  for (const tensor of model.tensors) {
    await tensor.data?.array();
  }
  const verifying = await open(file);
  const broken = await Promise.allSettled([...verifying.tensors].map(async (tensor) => tensor.data?.array()));
  const reasons = broken.flatMap((each) => (each.status === "rejected" ? [each.reason as QfbError] : []));
  assert.ok(reasons.length > 0 && reasons.every((error) => error.rule === "F9"));
});

test("a file that is changed or replaced is noticed", async () => {
  const path = join(folder, "changes.qfb");
  const file = await golden();
  await writeFile(path, file);
  const model = await open(path, { verify: false });
  const bias = model.tensors.get("conv.bias")!;
  await bias.array();
  await utimes(path, 1, 1);
  await assert.rejects(bias.array(), { name: "QfbError", what: /changed or replaced/ });
  await writeFile(path, file.subarray(0, 5000));
  await assert.rejects(bias.array(), { name: "QfbError", what: /changed or replaced/ });
  await rm(path);
  await assert.rejects(bias.array(), { name: "QfbError", what: /cannot be read: ENOENT/ });
});

test("what is not in memory is verified at each read", async () => {
  const file = await golden();
  const source = { name: "own", size: file.length, read: async (at: number, count: number) => file.slice(at, at + count) };
  const bias = (await open(source)).tensors.get("conv.bias")!;
  await bias.array();
  file.fill(1, dataOffset(file));
  await assert.rejects(bias.array(), { name: "QfbError", rule: "F9" });
  source.read = async () => new Uint8Array();
  await assert.rejects(bias.array(), { name: "QfbError", what: /ends at byte/ });
  source.read = () => Promise.reject(new TypeError("gone"));
  await assert.rejects(bias.array(), /^QfbError: own: cannot be read: gone$/);
});

const REFUSED: [string, Openable, RegExp][] = [
  ["a missing file", "/nowhere/m.qfb", /^\/nowhere\/m\.qfb: cannot be read: ENOENT/],
  ["a directory", "/", /is a directory/],
  ["a device", "/dev/null", /not a regular file/],
  ["an empty array", new Uint8Array(), /^memory: is not a \.qfb file; it is empty$/],
  ["a zip archive", new TextEncoder().encode("PK\x03\x04 and so on"), /zip archive/],
  ["ONNX", Uint8Array.of(8, 9, 0x12, 7, 112, 121), /ONNX/],
  ["a web page", new TextEncoder().encode("<!doctype html><title>404</title>"), /web page/],
  ["text", new TextEncoder().encode("hello"), /create one with `qfmt convert`/],
  ["null", null as unknown as Openable, /not a source of bytes/],
  ["an object", { size: 8 } as unknown as Openable, /not a source of bytes/],
];

for (const [what, from, expected] of REFUSED) {
  test(`${what} is refused`, async () => {
    await assert.rejects(open(from), (error) => error instanceof QfbError && expected.test(error.message));
  });
}

test("a source that lies about its size", async () => {
  const file = await golden();
  const short = { name: "liar", size: file.length, read: async () => new Uint8Array(128) };
  await assert.rejects(open(short), /^QfbError: liar: /);
});

test("another major version, an unknown flag, a longer file", async () => {
  for (const [at, value, expected] of [[7, 50, /major version "2"/], [48, 1, /flags 0x1/]] as const) {
    const file = await golden();
    file[at] = value;
    await assert.rejects(open(file), (error) => error instanceof QfbError && expected.test(error.message));
  }
  await assert.rejects(open(Uint8Array.of(...(await golden()), 0)), { name: "QfbError", what: /longer than its header states/ });
});
