// Every rule of a file at once: what is read only where it is used is read now (spec.md, "Rules", F1 to F15).

import { hex } from "./digest.js";
import { placed, QfbError, quoted } from "./errors.js";
import { ALIGNMENT } from "./header.js";
import type { Model } from "./model.js";
import { checkPlaces } from "./quantization.js";
import type { Reader } from "./reader.js";
import type { ArrayRecord, NumbersRecord, QuantizationRecord, SecondLevelRecord } from "./schema.js";

/** Decodes and reads all there is. Throws QfbError for the first rule that is broken. */
export async function verifyAll(model: Model, reader: Reader): Promise<void> {
  let before: string | undefined;
  for (const { name, quantization } of model.tensors) {
    const where = `tensor ${quoted(name)}`;
    if (before !== undefined && reader.text.compare(before, name) >= 0) {
      throw new QfbError(`follows ${quoted(before)}, out of order or repeated`, { where, rule: "F11" });
    }
    before = name;
    if (quantization) {
      placed(where, () => checkPlaces(quantization));
    }
  }
  for (const elements of [model.nodes, model.vectors]) {
    for (const _ of elements) {
      // it has been decoded
    }
  }
  await reader.shards?.verify();
  await verifyBuffers(reader);
}

/** F8, F9, F13: where the buffers lie, what is between them, what they hold, and whose they are. */
async function verifyBuffers(reader: Reader): Promise<void> {
  const { buffers } = reader.root;
  const used = found.get(reader) ?? usedBuffers(reader);
  found.set(reader, used);
  const digests = new Set<string>();
  let end = 0;
  for (let index = 0; index < buffers.length; index++) {
    const where = `buffer ${index}`;
    const stored = reader.buffer(index, where);
    const { offset } = stored;
    if (offset < end || offset - end >= ALIGNMENT) {
      throw new QfbError(`begins at ${offset}, but the previous one ends at ${end}`, { where, rule: "F8" });
    }
    const gap = await reader.data(end, offset - end);
    if (gap.some((byte) => byte !== 0)) {
      throw new QfbError("the bytes before it are not zero", { where, rule: "F8" });
    }
    end = offset + Number(stored.nbytes);
    const identity = `${stored.nbytes} ${hex(stored.digest)}`;
    if (digests.has(identity)) {
      throw new QfbError("holds the same bytes as an earlier one", { where, rule: "F13" });
    }
    if (!used.has(index)) {
      throw new QfbError("is not used", { where, rule: "F13" });
    }
    digests.add(identity);
    await stored.bytes(true);
  }
  if (end !== reader.dataSize) {
    const what = `the last buffer ends at ${end}, but the data at ${reader.dataSize}`;
    throw new QfbError(what, { where: "data", rule: "F8" });
  }
}

/** To find them again would decode all tensors again, which the budget does not allow without end. */
const found = new WeakMap<Reader, Set<number | null>>();

function usedBuffers({ tensors, vectorBuffers }: Reader): Set<number | null> {
  const used = new Set(vectorBuffers);
  const use = ({ scale, zero_point, offset, table }: QuantizationRecord | SecondLevelRecord): void => {
    const arrays: (ArrayRecord | NumbersRecord | null)[] = [scale, zero_point, offset, table];
    for (const array of arrays) {
      used.add(array?.buffer ?? null);
      if (array && "quantization" in array && array.quantization) {
        use(array.quantization);
      }
    }
  };
  for (const { buffer, quantization } of tensors) {
    used.add(buffer).add(quantization?.group_index?.buffer ?? null);
    if (quantization) {
      use(quantization);
    }
  }
  return used;
}
