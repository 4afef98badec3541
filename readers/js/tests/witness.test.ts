// The code that flatc generates from the schema, an independent reader of the same bytes.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { ByteBuffer } from "flatbuffers";
import { DTYPES, open, type StoredArray } from "qfb-reader";
import { Array as FlatArray, Model, Numbers } from "../../../schema/generated/ts/qfb.js";
import { BLOCKS, GOLDEN } from "./files.js";

function all<Item>(count: number, item: (index: number) => Item | null): Item[] {
  return Array.from({ length: count }, (_, index) => item(index)!);
}

/** The same array; the bytes of those in the data segment are not compared. */
async function assertSame(ours: StoredArray, theirs: FlatArray | Numbers): Promise<void> {
  assert.equal(DTYPES[ours.dtype].code, theirs.dtype());
  assert.deepEqual(ours.shape, all(theirs.shapeLength(), (axis) => theirs.shape(axis)).map(Number));
  if (theirs.buffer() === null) {
    assert.deepEqual(await ours.bytes(), theirs.bytesArray());
  }
}

for (const url of [GOLDEN, BLOCKS]) {
  test(`${url.pathname.split("/").at(-1)} is read alike by generated code`, async () => {
    const file = new Uint8Array(await readFile(url));
    const root = Model.getRootAsModel(new ByteBuffer(file));
    const model = await open(file);
    const graph = root.graph()!;
    const tensors = all(graph.tensorsLength(), (index) => graph.tensors(index));
    const names = tensors.map((tensor) => tensor.name());
    assert.deepEqual([...model.tensors.names()], names);
    const ours = [...model.tensors];
    for (const [index, tensor] of tensors.entries()) {
      const { dtype, shape, aliases, quantization, data } = ours[index]!;
      assert.equal(DTYPES[dtype].code, tensor.dtype());
      const sizes = all(tensor.shapeLength(), (axis) => tensor.shape(axis)).map((size) => (size === -1n ? null : Number(size)));
      assert.deepEqual(shape ?? [], sizes);
      assert.deepEqual(aliases, all(tensor.aliasesLength(), (index) => tensor.aliases(index)));
      const theirs = tensor.quantization();
      assert.equal(quantization === null, theirs === null);
      if (quantization && theirs) {
        assert.deepEqual(quantization.block, all(theirs.blockLength(), (axis) => theirs.block(axis)).map(Number));
        assert.equal(BigInt(quantization.quantMin), theirs.quantMin());
        await assertSame(quantization.scale, theirs.scale()!);
        if (theirs.zeroPoint()) {
          await assertSame(quantization.zeroPoint, theirs.zeroPoint()!);
        }
      }
      assert.equal(data === null, tensor.buffer() === null);
      if (data) {
        const buffer = root.buffers(tensor.buffer()!)!;
        assert.equal(BigInt(data.nbytes), buffer.size());
        assert.deepEqual([...(await data.sha256())], all(32, (index) => buffer.sha256()!.bytes(index)));
      }
    }
    for (const [index, node] of [...model.nodes].entries()) {
      const theirs = graph.nodes(index)!;
      assert.deepEqual([node.operator, node.version], [theirs.operator(), theirs.version()]);
      const inputs = all(theirs.inputsLength(), (index) => theirs.inputs(index));
      assert.deepEqual(node.inputs, inputs.map((index) => (index < 0 ? "" : names[index])));
      assert.deepEqual([...node.attributes.keys()], all(theirs.attributesLength(), (index) => theirs.attributes(index)!.name()));
    }
    assert.equal(model.producer, root.producer());
    assert.equal(model.vectors.length, root.vectorsLength());
  });
}
