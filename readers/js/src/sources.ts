// Where bytes come from: memory, a Blob, a file, an address (http.ts). All are read by ranges.

import { QfbError } from "./errors.js";
import { openHttp, type HttpOptions } from "./http.js";
import { importNode, type NodeFile } from "./node.js";

/** Bytes that can be read by ranges. Anything of this form can be opened: a database, a cache, an encrypted file. */
export interface Source {
  /** What messages call it. */
  readonly name: string;
  /** Bytes there are. */
  readonly size: number;
  /** Whether `read` gives a view of memory that stays as it is, instead of bytes that are fetched each time. */
  readonly isMemory?: boolean;
  /** `length` bytes from `offset` on, which are inside the size. */
  read(offset: number, length: number): Promise<Uint8Array>;
}

/** A file that Node has opened: `await open(path)` of node:fs/promises. It is not closed by this package. */
export type FileHandle = NodeFile;

/** What can be opened. A string is a path in Node, unless it begins with `http:`, `https:` or `file:`; else an address. */
export type Openable = string | URL | ArrayBufferLike | ArrayBufferView | Blob | FileHandle | Source;

export async function openSource(from: Openable, options: HttpOptions): Promise<Source> {
  if (typeof from === "string" || from instanceof URL) {
    return openAddress(from, options);
  }
  if (ArrayBuffer.isView(from)) {
    return memory(new Uint8Array(from.buffer, from.byteOffset, from.byteLength));
  }
  if (from instanceof ArrayBuffer || (typeof SharedArrayBuffer !== "undefined" && from instanceof SharedArrayBuffer)) {
    return memory(new Uint8Array(from));
  }
  if (typeof Blob !== "undefined" && from instanceof Blob) {
    return blob(from);
  }
  const other = from as Partial<FileHandle & Source> | null;
  if (typeof other?.read === "function" && typeof other.stat === "function") {
    return file("file", async (work) => work(other as FileHandle));
  }
  if (typeof other?.read === "function" && typeof other.size === "number" && Number.isSafeInteger(other.size)) {
    return other as Source;
  }
  const hint = "give a path, an address, an ArrayBuffer or a view of one, a Blob, a FileHandle, or a Source";
  throw new QfbError("cannot be opened: not a source of bytes", { hint });
}

/** Bytes in memory. Unless they are `own`, they are not copied: changing them changes the arrays of the model. */
export function memory(bytes: Uint8Array, name = "memory", own = false): Source {
  const isShared = !(bytes.buffer instanceof ArrayBuffer); // what another thread may change is copied
  return {
    name,
    size: bytes.length,
    isMemory: !isShared,
    async read(offset, length) {
      const view = bytes.subarray(offset, offset + length);
      return isShared || own ? new Uint8Array(view) : view;
    },
  };
}

function blob(from: Blob): Source {
  const name = "name" in from && typeof from.name === "string" ? from.name : "blob";
  return {
    name,
    size: from.size,
    async read(offset, length) {
      return new Uint8Array(await from.slice(offset, offset + length).arrayBuffer());
    },
  };
}

async function openAddress(from: string | URL, options: HttpOptions): Promise<Source> {
  const text = String(from);
  if (/^https?:/i.test(text)) {
    return openHttp(text, options);
  }
  const node = await importNode("node:fs/promises");
  if (node === undefined) {
    return openHttp(text, options);
  }
  return openPath(/^file:/i.test(text) ? new URL(text) : text, text, true);
}

/** A file of Node. */
async function openPath(path: string | URL, name: string, followsLinks: boolean): Promise<Source> {
  const node = (await importNode("node:fs/promises"))!;
  const found = await (followsLinks ? node.stat(path) : node.lstat(path));
  if (!found.isFile()) {
    const what = found.isDirectory() ? "a directory, not a file" : found.isSymbolicLink() ? "a link" : "not a regular file";
    throw new QfbError(`is ${what}`, { where: name });
  }
  const { O_RDONLY, O_NOFOLLOW = 0 } = node.constants;
  return file(name, async (work) => {
    const handle = await node.open(path, O_RDONLY | (followsLinks ? 0 : O_NOFOLLOW)); // for each read: nothing is closed
    try {
      return await work(handle);
    } finally {
      await handle.close();
    }
  });
}

/** A file in the folder of another that was opened by its path or address; no link is followed. */
export async function openSibling(from: Openable, name: string, options: HttpOptions): Promise<Source> {
  if (!(typeof from === "string" || from instanceof URL)) {
    throw new QfbError("it is not known where it is");
  }
  const node = await importNode("node:fs/promises");
  if (node === undefined || /^https?:/i.test(String(from))) {
    const { location } = globalThis as { location?: { href: string } };
    return openHttp(new URL(encodeURIComponent(name), new URL(from, location?.href)).href, options);
  }
  const path = await node.realpath(/^file:/i.test(String(from)) ? new URL(from) : from);
  const { dirname, join } = (await importNode("node:path"))!;
  return openPath(join(dirname(path), name), name, false);
}

/** Node reads less than 2 GiB at once. */
const MOST_AT_ONCE = 1 << 30;

/** A file of which `use` gives the handle to some work. */
async function file(name: string, use: <T>(work: (handle: FileHandle) => Promise<T>) => Promise<T>): Promise<Source> {
  const opened = await use((handle) => handle.stat());
  return {
    name,
    size: opened.size,
    read: (offset, length) =>
      use(async (handle) => {
        const now = await handle.stat();
        if (now.ino !== opened.ino || now.size !== opened.size || now.mtimeMs !== opened.mtimeMs) {
          throw new QfbError("the file was changed or replaced since it was opened", { hint: "open it again" });
        }
        return readAll(handle, offset, length);
      }),
  };
}

async function readAll(handle: FileHandle, offset: number, length: number): Promise<Uint8Array> {
  const bytes = new Uint8Array(length);
  for (let done = 0; done < length; ) {
    const { bytesRead } = await handle.read(bytes, done, Math.min(length - done, MOST_AT_ONCE), offset + done);
    if (!bytesRead) {
      return bytes.subarray(0, done);
    }
    done += bytesRead;
  }
  return bytes;
}
