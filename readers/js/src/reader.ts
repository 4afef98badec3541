// An open file: its header checked, its metadata verified and ready to be decoded, its data read when it is asked for.

import { Decoder, type Tables } from "./decode.js";
import { sha256 } from "./digest.js";
import { dtypeName, type DTypeName } from "./dtypes.js";
import { QfbError, placed, quoted } from "./errors.js";
import { AGAIN, ALIGNMENT, areEqual, checkMetadata, checkPadding, HEADER_SIZE, parseHeader, type Header } from "./header.js";
import type { Records } from "./schema.js";
import { FEATURE, Shards, type Opener } from "./shards.js";
import type { Source } from "./sources.js";
import { Text } from "./text.js";

/** The bytes of an array. */
export interface Stored {
  readonly nbytes: bigint;
  /** All bytes, if they are in the metadata. */
  readonly inline: Uint8Array | null;
  /** Of those in the data segment the one that the file states. */
  sha256(): Promise<Uint8Array>;
  /** All bytes; QfbError if they are not those that were written. `always`: also if digests are waived. */
  bytes(always?: boolean): Promise<Uint8Array>;
}

/** Bytes in the data segment. */
export interface Segment extends Stored {
  readonly digest: Uint8Array;
  /** Where they begin in the data segment. */
  readonly offset: number;
}

/** Bytes in the metadata. */
export function stored(inline: Uint8Array): Stored {
  let digest: Promise<Uint8Array> | undefined;
  return { nbytes: BigInt(inline.length), inline, sha256: () => (digest ??= sha256(inline)), bytes: async () => inline.slice() };
}

export class Reader {
  readonly name: string;
  readonly root: Records["Model"];
  readonly text = new Text();
  /** The buffers of the test vectors that were decoded. */
  readonly vectorBuffers = new Set<number | null>();
  /** The files that hold the data, if the file itself does not. */
  readonly shards: Shards | null;
  readonly #source: Source;
  readonly #verify: boolean;
  readonly #dataOffset: number;
  readonly dataSize: number;
  readonly #verified = new Set<number>();
  readonly #buffers = new Map<number, Records["Buffer"]>();
  readonly #names = new Map<number, string>();
  readonly #indices = new Map<string, number>();

  private constructor(source: Source, verify: boolean, root: Records["Model"], { dataOffset, dataSize }: Header, open: Opener) {
    this.name = source.name;
    this.root = root;
    this.#source = source;
    this.#verify = verify;
    this.#dataOffset = dataOffset;
    this.shards = root.shards?.length ? new Shards(root.shards, dataSize, this.text, open) : null;
    this.dataSize = this.shards?.size ?? dataSize;
  }

  /**
   * Header and metadata are read and checked; the metadata are copied: what was verified cannot change any more. `open`
   * opens a shard.
   */
  static async open(source: Source, verify: boolean, open: Opener): Promise<Reader> {
    const header = parseHeader(await read(source, 0, Math.min(HEADER_SIZE, source.size)), source.size);
    const start = await read(source, 0, header.dataOffset);
    const metadata = start.slice(0, header.metaSize) as Uint8Array<ArrayBuffer>;
    if (verify) {
      await checkMetadata(header, metadata);
    }
    checkPadding(start.subarray(header.metaSize));
    const root = new Decoder(metadata, header.headerSize).root();
    const features = root.required_features ?? [];
    const unknown = features.filter((each) => each !== FEATURE);
    if (unknown.length) {
      const what = `requires features that this reader does not support: ${quoted(unknown.join(", "))}`;
      throw new QfbError(what, { hint: "a newer reader is needed", rule: "F10" });
    }
    if (features.length > 0 !== Boolean(root.shards?.length)) {
      throw new QfbError("has shards or requires the feature, but not both", { rule: "F14" });
    }
    return new Reader(source, verify, root, header, open);
  }

  /** No network needs more characters for its content id. */
  get contentLimit(): number {
    return 2 ** 22 + 32 * this.#dataOffset;
  }

  get tensors(): Tables<"Tensor"> {
    return this.root.graph.tensors;
  }

  /** Runs `work`; a QfbError learns the name of the file. */
  placed<Result>(work: () => Result): Result {
    return placed(this.name, work);
  }

  /** The name of the tensor at an index, which from then on is found under it. */
  tensorName(index: number): string {
    let name = this.#names.get(index);
    if (name === undefined) {
      if (index < 0 || index >= this.tensors.length) {
        throw new QfbError(`there is no tensor ${index}, only ${this.tensors.length}`, { rule: "F7" });
      }
      name = this.tensors.stringField(index, "name");
      if ((this.#indices.get(name) ?? index) !== index) {
        throw new QfbError(`two tensors are called ${quoted(name)}`, { rule: "F11" });
      }
      this.#indices.set(name, index);
      this.#names.set(index, name);
    }
    return name;
  }

  tensorNames(indices: Int32Array): string[] {
    return Array.from(indices, (index) => this.tensorName(index));
  }

  /** Where a tensor is, found by halves: the names are sorted by their code points, in a valid file. */
  tensorIndex(name: string): number | undefined {
    let [low, high] = [0, this.tensors.length];
    while (!this.#indices.has(name) && low < high) {
      const middle = Math.floor((low + high) / 2);
      if (this.text.compare(this.tensorName(middle), name) < 0) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return this.#indices.get(name);
  }

  /** The data at `where` in the model, which is inside the data segment. */
  buffer(index: number, where: string): Segment {
    const { buffers } = this.root;
    if (index >= buffers.length) {
      throw new QfbError(`there is no buffer ${index}, only ${buffers.length}`, { where, rule: "F7" });
    }
    const record = this.#buffers.get(index) ?? buffers.get(index);
    const { offset, size, sha256: digest } = record;
    this.#buffers.set(index, record);
    if (offset % BigInt(ALIGNMENT) || offset + size > this.dataSize) {
      throw new QfbError(`buffer ${index} (${size} bytes at ${offset}) is not inside the data`, { where, rule: "F8" });
    }
    const place = Number(offset);
    if (this.shards && !this.shards.holds(place, Number(size))) {
      throw new QfbError(`buffer ${index} (${size} bytes at ${offset}) is not inside one shard`, { where, rule: "F14" });
    }
    const bytes = async (always = false) => {
      const found = await this.data(place, Number(size));
      if ((this.#verify || always) && !this.#verified.has(index)) {
        await this.#check(index, found, digest, where);
      }
      return found;
    };
    return { nbytes: size, inline: null, digest, offset: place, sha256: async () => digest, bytes };
  }

  /** Bytes of the data segment. */
  async data(offset: number, size: number): Promise<Uint8Array> {
    try {
      return await (this.shards ? read(this.shards, offset, size) : read(this.#source, this.#dataOffset + offset, size));
    } catch (error) {
      throw failure(error, this.name);
    }
  }

  async #check(index: number, bytes: Uint8Array, digest: Uint8Array, where: string): Promise<void> {
    if (!areEqual(await sha256(bytes), digest)) {
      const what = "the data is damaged: its sha256 differs from the one stated";
      throw new QfbError(what, { where, hint: AGAIN, rule: "F9" }).at(this.name);
    }
    if (this.#source.isMemory && !this.shards) {
      this.#verified.add(index); // what is fetched anew each time is verified each time
    }
  }

  /** The name of an element type by its code. */
  dtype(code: number): DTypeName {
    const name = dtypeName(code);
    if (name === undefined) {
      throw new QfbError(`the element type ${code} is not known`, { hint: "a newer reader may support it", rule: "V2" });
    }
    return name;
  }
}

async function read(source: Pick<Source, "read">, offset: number, length: number): Promise<Uint8Array> {
  const bytes = length ? await source.read(offset, length) : new Uint8Array();
  if (bytes.length !== length) {
    throw new QfbError(`ends at byte ${offset + bytes.length}, while it is read`, { hint: "check whether it changed" });
  }
  return new Uint8Array(bytes.buffer, bytes.byteOffset, length); // slices of a Buffer of Node would be no copies
}

/** Whatever went wrong, as the one error of this package: a file that is not there, a connection that breaks. */
export function failure(error: unknown, where: string): QfbError {
  if (error instanceof QfbError) {
    return error.where.startsWith(where) ? error : error.at(where);
  }
  const reason = error instanceof Error ? error.message : String(error);
  const detail = error instanceof Error && error.cause instanceof Error ? ` (${error.cause.message})` : "";
  return new QfbError(`cannot be read: ${reason}${detail}`, { where, cause: error });
}
