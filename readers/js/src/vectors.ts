// Test vectors: inputs, and the outputs that the graph gives for them. Rules V36, V50, V51 and V70.

import { StoredArray } from "./arrays.js";
import type { Tables } from "./decode.js";
import { QfbError, placed, quoted } from "./errors.js";
import type { Reader } from "./reader.js";
import { checkTensor, type TensorFacts } from "./rules.js";
import type { Records } from "./schema.js";
import { factsOf, type Tensor } from "./tensor.js";

const DIGEST = 16;

/** A value for each input of the graph, and for each output the one that it gives for them, by names of tensors. */
export interface TestVector {
  readonly name: string;
  readonly inputs: ReadonlyMap<string, StoredArray>;
  readonly outputs: ReadonlyMap<string, StoredArray>;
  /** Digests of what the nodes compute: 16 bytes for each of their outputs that is no float. Empty: not stated. */
  readonly digests: Uint8Array;
}

/** The ends of the graph that a vector belongs to. */
export interface Ends {
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  /** Whether there is no graph, only tensors. */
  readonly isArchive: boolean;
  tensor(name: string): Tensor | undefined;
  /** How many outputs nodes have that are no floats. */
  digests(): number;
}

export function vectorOf(reader: Reader, record: Records["TestVector"], ends: Ends): TestVector {
  const named = new Map<string, bigint>();
  const inputs = valuesOf(reader, record.inputs, "input", ends, named);
  const outputs = valuesOf(reader, record.outputs, "output", ends, named);
  if (ends.isArchive) {
    throw new QfbError("an archive has no graph to run", { rule: "V50" });
  }
  const name = record.name ?? "";
  if (!reader.text.isText(name)) {
    throw new QfbError(`the name ${quoted(name)} is not valid text`, { rule: "V36" });
  }
  const digests = record.digests ?? new Uint8Array(0);
  if (digests.length && digests.length !== DIGEST * ends.digests()) {
    throw new QfbError(`${digests.length} bytes of digests, but ${ends.digests()} outputs of nodes`, { rule: "V70" });
  }
  return { name, inputs, outputs, digests };
}

/** The values of one end of the graph. `named` collects the sizes that have names. */
function valuesOf(
  reader: Reader,
  records: Tables<"TestValue">,
  end: "input" | "output",
  ends: Ends,
  named: Map<string, bigint>,
): ReadonlyMap<string, StoredArray> {
  const names = ends[`${end}s`];
  if (records.length !== names.length) {
    throw new QfbError(`${records.length} ${end}s, but the graph has ${names.length}`, { rule: "V50" });
  }
  const values = new Map<string, StoredArray>();
  const given = new Map<string, Records["TestValue"]>();
  for (const [index, name] of names.entries()) {
    const record = records.get(index);
    reader.vectorBuffers.add(record.buffer);
    const before = given.get(name);
    if (before && !areSame(before, record)) {
      throw new QfbError(`${quoted(name)} has two values`, { rule: "V50" });
    }
    given.set(name, record);
    values.set(name, placed(`${end} ${quoted(name)}`, () => valueOf(reader, record, ends.tensor(name), named)));
  }
  return values;
}

function valueOf(
  reader: Reader,
  record: Records["TestValue"],
  tensor: Tensor | undefined,
  named: Map<string, bigint>,
): StoredArray {
  const facts = tensor && factsOf.get(tensor);
  if (facts === undefined) {
    throw new QfbError("is not a tensor of the graph", { rule: "V50" });
  }
  if (record.buffer === null) {
    throw new QfbError("the value has no buffer", { rule: "F12" });
  }
  const shape = Array.from(record.shape);
  const stored = reader.buffer(record.buffer, `a test vector's ${quoted(facts.name)}`);
  checkTensor({ ...facts, aliases: [], shape, stored }, reader.text); // which were checked with the tensor
  checkSizes(facts, shape, named);
  return new StoredArray(facts.dtype, shape, stored, facts.quantization);
}

/** V51: the sizes are those of the tensor, and one with a name is the same wherever it stands. */
function checkSizes({ shape: wanted }: TensorFacts, shape: readonly bigint[], named: Map<string, bigint>): void {
  if (wanted === null) {
    return;
  }
  if (wanted.length !== shape.length) {
    throw new QfbError(`has ${shape.length} dimensions, but the tensor has ${wanted.length}`, { rule: "V51" });
  }
  for (const [axis, size] of shape.entries()) {
    const known = wanted[axis];
    const expected = typeof known === "string" ? (named.get(known) ?? size) : (known ?? size);
    if (expected !== size) {
      throw new QfbError(`dimension ${axis} is ${size}, but must be ${expected}`, { rule: "V51" });
    }
    if (typeof known === "string") {
      named.set(known, size);
    }
  }
}

function areSame(a: Records["TestValue"], b: Records["TestValue"]): boolean {
  return a.buffer === b.buffer && String(a.shape) === String(b.shape);
}
