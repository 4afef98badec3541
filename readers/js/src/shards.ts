// The data segment of a file whose data is in others: shards, each of which is opened when bytes of it are asked for.

import type { Tables } from "./decode.js";
import { sha256 } from "./digest.js";
import { QfbError, quoted } from "./errors.js";
import { AGAIN, ALIGNMENT, areEqual } from "./header.js";
import type { Source } from "./sources.js";
import type { Text } from "./text.js";

/** The feature that a file with shards requires. */
export const FEATURE = "shards";

const SUFFIX = ".qfs";

/** A name with one of these might lead out of the folder. */
const FORBIDDEN = /[\u0000-\u001f\u007f/\\:]/u;

interface Shard {
  readonly name: string;
  readonly begin: number;
  readonly size: number;
  readonly digest: Uint8Array;
  source?: Promise<Source>;
}

export type Opener = (name: string) => Promise<Source>;

export class Shards {
  /** Bytes of all. */
  readonly size: number;
  readonly #shards: readonly Shard[];
  readonly #open: Opener;

  /** Throws unless rule F14 holds for names and sizes. `ownSize`: the data in the file itself. */
  constructor(records: Tables<"Shard">, ownSize: number, text: Text, open: Opener) {
    const shards: Shard[] = [];
    let [begin, before] = [0, ""];
    for (const { name, size, sha256: digest } of records) {
      const where = `shard ${quoted(name)}`;
      if (!name.endsWith(SUFFIX) || FORBIDDEN.test(name) || new TextEncoder().encode(name).length > 255) {
        throw new QfbError("is not a name for a shard", { where, rule: "F14" });
      }
      if (shards.length && text.compare(before, name) >= 0) {
        throw new QfbError(`follows ${quoted(before)}, out of order or repeated`, { where, rule: "F14" });
      }
      if (begin % ALIGNMENT || !size || BigInt(begin) + size > Number.MAX_SAFE_INTEGER) {
        throw new QfbError(`cannot have ${size} bytes`, { where, rule: "F14" });
      }
      shards.push({ name, begin, size: Number(size), digest });
      [begin, before] = [begin + Number(size), name];
    }
    if (ownSize) {
      throw new QfbError(`has both shards and ${ownSize} bytes of data`, { rule: "F14" });
    }
    this.size = begin;
    this.#shards = shards;
    this.#open = open;
  }

  /** Whether one shard has all of these bytes. */
  holds(offset: number, size: number): boolean {
    const shard = this.#at(offset);
    return !size || offset + size <= shard.begin + shard.size;
  }

  /** Bytes of one shard. */
  async read(offset: number, length: number): Promise<Uint8Array> {
    const shard = this.#at(offset);
    return (await this.#source(shard)).read(offset - shard.begin, length);
  }

  /** Throws unless every shard is the one that was written. */
  async verify(): Promise<void> {
    for (const shard of this.#shards) {
      const bytes = await (await this.#source(shard)).read(0, shard.size);
      if (!areEqual(await sha256(bytes), shard.digest)) {
        const what = "is damaged: its sha256 differs from the one stated";
        throw new QfbError(what, { where: `shard ${quoted(shard.name)}`, hint: AGAIN, rule: "F15" });
      }
    }
  }

  /** The shard that has the byte at an offset. */
  #at(offset: number): Shard {
    let [low, high] = [0, this.#shards.length - 1];
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      [low, high] = this.#shards[middle]!.begin > offset ? [low, middle - 1] : [middle, high];
    }
    return this.#shards[low]!;
  }

  #source(shard: Shard): Promise<Source> {
    const where = `shard ${quoted(shard.name)}`;
    const opened = (shard.source ??= this.#open(shard.name).then(
      (source) => {
        if (source.size !== shard.size) {
          const what = `has ${source.size} bytes instead of ${shard.size}`;
          throw new QfbError(what, { where, hint: AGAIN, rule: "F15" });
        }
        return source;
      },
      (cause: unknown) => {
        const what = `cannot be opened: ${cause instanceof Error ? cause.message : String(cause)}`;
        throw new QfbError(what, { where, hint: "put it beside the file, or give it as `shards`", rule: "F15", cause });
      },
    ));
    opened.catch(() => delete shard.source); // it may be there the next time
    return opened;
  }
}
