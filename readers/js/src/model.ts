// Opening a file, and the model in it: tensors and nodes are decoded one by one, when they are asked for.

import { contentId } from "./content.js";
import { DTYPES } from "./dtypes.js";
import { placed, QfbError } from "./errors.js";
import { Lazy, nodeOf, sortedMap, type Node } from "./graph.js";
import type { HttpOptions } from "./http.js";
import { failure, Reader } from "./reader.js";
import type { Records } from "./schema.js";
import { openSibling, openSource, type Openable, type Source } from "./sources.js";
import { tensorOf, type Tensor } from "./tensor.js";
import { verifyAll } from "./verify.js";
import { vectorOf, type TestVector } from "./vectors.js";

export interface OpenOptions extends HttpOptions {
  /** false: the digests are not computed. Structure is checked in any case. Default: true. */
  readonly verify?: boolean;
  /**
   * Where the shards of a file are, by name, or a function that says it: for a file that is not a path or an address.
   * Those of a path or an address are beside it.
   */
  readonly shards?: Readonly<Record<string, Openable>> | ((name: string) => Openable | Promise<Openable>);
}

/**
 * Opens a `.qfb` file: a path (Node), an http address, an ArrayBuffer or a view of one, a Blob or File, a FileHandle of
 * Node, or anything of the form `Source`. Header and metadata are read and verified; arrays are read, and their digests
 * verified, when they are asked for.
 *
 * Throws QfbError for a file that cannot be read: here, or where the broken part is first used.
 */
export async function open(from: Openable, options: OpenOptions = {}): Promise<Model> {
  let name = typeof from === "string" || from instanceof URL ? String(from) : "";
  try {
    const source = await openSource(from, options);
    name = source.name;
    return new Model(await Reader.open(source, options.verify ?? true, (shard) => openShard(from, options, shard)));
  } catch (error) {
    throw failure(error, name);
  }
}

/** The shard of that name. */
async function openShard(from: Openable, options: OpenOptions, name: string): Promise<Source> {
  const { shards } = options;
  if (shards === undefined) {
    return openSibling(from, name, options);
  }
  const given = typeof shards === "function" ? await shards(name) : Object.hasOwn(shards, name) ? shards[name] : undefined;
  if (given === undefined) {
    throw new QfbError("it is not among the shards that were given");
  }
  return openSource(given, options);
}

/** A network: tensors, nodes, the names of its inputs and outputs, and where it came from. */
export class Model {
  /** Names of the graph's inputs, in the order of the source's arguments. */
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  readonly tensors: Tensors;
  /** In topological order. */
  readonly nodes: Lazy<Node>;
  /** Inputs with the outputs that the network gives for them. */
  readonly vectors: Lazy<TestVector>;
  /** The name of the graph. */
  readonly name: string;
  /** The program that wrote the file. */
  readonly producer: string;
  /** The engine whose rules the nodes state. */
  readonly engine: string;
  readonly minorVersion: number;
  /** Where the model came from (keys: docs/spec/conversions.md, "Source keys"). */
  readonly source: ReadonlyMap<string, string>;
  /** The user's own pairs. */
  readonly metadata: ReadonlyMap<string, string>;
  readonly #reader: Reader;

  /** @internal */
  constructor(reader: Reader) {
    const { root } = reader;
    const { graph } = root;
    const decoded = <Value>(what: string, work: (index: number) => Value) => (index: number) =>
      reader.placed(() => placed(`${what} ${index}`, () => work(index)));
    this.#reader = reader;
    this.inputs = reader.tensorNames(graph.inputs);
    this.outputs = reader.tensorNames(graph.outputs);
    this.source = sortedMap(pairs(root.source), reader.text);
    this.metadata = sortedMap(pairs(root.metadata), reader.text);
    this.name = graph.name ?? "";
    this.producer = root.producer ?? "";
    this.engine = root.engine ?? "";
    this.minorVersion = root.minor_version;
    this.tensors = new Tensors(reader);
    this.nodes = new Lazy(graph.nodes.length, decoded("node", (index) => nodeOf(reader, graph.nodes.get(index))));
    let digested: number | undefined;
    const ends = {
      inputs: this.inputs,
      outputs: this.outputs,
      isArchive: !graph.nodes.length && !this.inputs.length && !this.outputs.length,
      tensor: (name: string) => this.tensors.get(name),
      digests: () => (digested ??= this.#digested()),
    };
    const { vectors } = root;
    const vector = decoded("test vector", (index) => vectorOf(reader, vectors!.get(index), ends));
    this.vectors = new Lazy(vectors?.length ?? 0, vector);
  }

  /**
   * 64 hexadecimal digits that name what the network computes: equal for equal names, types, quantization and data.
   * Of the data it takes the digests that the file states; they are verified where arrays are read.
   */
  async contentId(): Promise<string> {
    return this.#named(contentId(this, this.#reader.text, this.#reader.contentLimit));
  }

  /**
   * Reads everything and checks every rule of a file (F1 to F15), also those that cost as much as reading the arrays.
   * Throws QfbError for the first that is broken. Whether the graph makes sense is for `qfmt check` to say.
   */
  async verify(): Promise<void> {
    await this.#named(verifyAll(this, this.#reader));
  }

  /** How many outputs nodes have that are no floats. */
  #digested(): number {
    const kinds = [...this.nodes].flatMap((node) => node.outputs.map((name) => this.tensors.get(name)?.dtype));
    return kinds.filter((dtype) => dtype && DTYPES[dtype].kind !== "f").length;
  }

  async #named<Result>(work: Promise<Result>): Promise<Result> {
    try {
      return await work;
    } catch (error) {
      throw failure(error, this.#reader.name);
    }
  }
}

function* pairs(records: Records["Model"]["source"]): Iterable<[string, string]> {
  for (const { key, value } of records ?? []) {
    yield [key, value];
  }
}

/** The tensors of a model, in the order of their names. Each is decoded when it is asked for. */
export class Tensors {
  readonly #reader: Reader;
  readonly #tensors = new Map<number, Tensor>();

  /** @internal */
  constructor(reader: Reader) {
    this.#reader = reader;
  }

  /** How many there are. */
  get size(): number {
    return this.#reader.tensors.length;
  }

  /** The tensor of that name; undefined if there is none. Takes log(size) steps. */
  get(name: string): Tensor | undefined {
    const index = this.#index(name);
    return index === undefined ? undefined : this.#at(index);
  }

  has(name: string): boolean {
    return this.#index(name) !== undefined;
  }

  /**
   * The tensor of that name, or that had it in its source: a name that it, its scale or its zero point had there, or
   * `NAME.scale`, `NAME.zero_point`. Decodes all tensors if need be.
   */
  find(name: string): Tensor | undefined {
    const own = this.get(name);
    if (own) {
      return own;
    }
    for (const tensor of this) {
      const { aliases, quantization } = tensor;
      if (aliases.includes(name) || [quantization?.scaleName, quantization?.zeroPointName].includes(name)) {
        return tensor;
      }
    }
    const owner = /^(.*)\.(scale|zero_point)$/s.exec(name)?.[1];
    return owner === undefined ? undefined : this.get(owner);
  }

  *names(): Iterable<string> {
    for (let index = 0; index < this.size; index++) {
      yield this.#reader.placed(() => this.#reader.tensorName(index));
    }
  }

  *[Symbol.iterator](): Iterator<Tensor> {
    for (let index = 0; index < this.size; index++) {
      yield this.#at(index);
    }
  }

  #index(name: string): number | undefined {
    return this.#reader.placed(() => this.#reader.tensorIndex(name));
  }

  #at(index: number): Tensor {
    let tensor = this.#tensors.get(index);
    if (tensor === undefined) {
      tensor = this.#reader.placed(() => {
        this.#reader.tensorName(index);
        return tensorOf(this.#reader, this.#reader.tensors.get(index));
      });
      this.#tensors.set(index, tensor);
    }
    return tensor;
  }
}
