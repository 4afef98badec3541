// The first 128 bytes of a file: where its parts lie, and the digest that commits to all of them.

import { sha256 } from "./digest.js";
import { QfbError } from "./errors.js";

export const HEADER_SIZE = 128;
export const ALIGNMENT = 64;
export const AGAIN = "fetch or convert the file again";

const PAGE = 4096;
const MAXIMUM_METADATA = 2 ** 31 - 1;

/** Where the parts of a file lie; all sizes count bytes. */
export interface Header {
  readonly headerSize: number;
  readonly metaSize: number;
  readonly dataOffset: number;
  readonly dataSize: number;
  readonly sha256: Uint8Array;
}

/** The header of a file of `actualSize` bytes that begins with `head`, all of its rules checked. */
export function parseHeader(head: Uint8Array, actualSize: number): Header {
  const ascii = (start: number, end: number) => String.fromCharCode(...head.subarray(start, end));
  if (ascii(4, 7) !== "QFB") {
    throw new QfbError("is not a .qfb file", { hint: resemblance(head, ascii), rule: "F1" });
  }
  if (ascii(4, 8) !== "QFB1") {
    const what = `has major version ${JSON.stringify(ascii(7, 8))}; this reader supports 1`;
    throw new QfbError(what, { hint: "a newer reader is needed", rule: "F1" });
  }
  if (head.length < HEADER_SIZE) {
    throw new QfbError(`ends inside the header, at byte ${head.length}`, { hint: AGAIN, rule: "F3" });
  }
  if (ascii(8, 12) !== "qh01") {
    const what = `the header tag is ${JSON.stringify(ascii(8, 12))}, not "qh01"`;
    throw new QfbError(what, { where: "byte 8", rule: "F1" });
  }
  const view = new DataView(head.buffer, head.byteOffset, HEADER_SIZE);
  const flags = view.getUint32(48, true);
  if (flags) {
    const what = `requires features that this reader does not support (flags 0x${flags.toString(16)})`;
    throw new QfbError(what, { where: "byte 48", hint: "a newer reader is needed", rule: "F10" });
  }
  if (!areZero(head.subarray(56, 64)) || !areZero(head.subarray(96, 128))) {
    throw new QfbError("reserved bytes of the header are not zero", { where: "bytes 56 and 96", rule: "F2" });
  }
  return { ...checkedSizes(view, actualSize), sha256: head.slice(64, 96) };
}

function checkedSizes(view: DataView, actualSize: number): Omit<Header, "sha256"> {
  const headerSize = view.getUint32(12, true);
  const [metaSize, dataOffset, dataSize, fileSize] = [16, 24, 32, 40].map((at) => view.getBigUint64(at, true)) as
    [bigint, bigint, bigint, bigint];
  if (headerSize < HEADER_SIZE || headerSize % 8 || metaSize < headerSize || metaSize > MAXIMUM_METADATA) {
    const what = `the sizes of header and metadata (${headerSize} and ${metaSize} bytes) are not valid`;
    throw new QfbError(what, { where: "byte 12", rule: "F3" });
  }
  if (dataOffset !== BigInt(Math.ceil(Number(metaSize) / PAGE) * PAGE)) {
    const what = `the data begins at byte ${dataOffset}, which is not the multiple of 4096 after the metadata`;
    throw new QfbError(what, { where: "byte 24", rule: "F3" });
  }
  if (fileSize !== dataOffset + dataSize) {
    throw new QfbError("the sizes of metadata, data and file disagree", { where: "byte 40", rule: "F3" });
  }
  if (fileSize !== BigInt(actualSize)) {
    const finding = actualSize < fileSize ? "truncated" : "longer than its header states";
    throw new QfbError(`is ${finding}: ${actualSize} bytes instead of ${fileSize}`, { hint: AGAIN, rule: "F3" });
  }
  return { headerSize, metaSize: Number(metaSize), dataOffset: Number(dataOffset), dataSize: Number(dataSize) };
}

/** Throws unless the metadata are what was written: their sha256, with the 32 bytes of itself as zeros. */
export async function checkMetadata(header: Header, metadata: Uint8Array): Promise<void> {
  const unsigned = metadata.slice();
  unsigned.fill(0, 64, 96);
  if (!areEqual(await sha256(unsigned), header.sha256)) {
    const what = "the metadata is damaged: its sha256 differs from that in the header";
    throw new QfbError(what, { hint: AGAIN, rule: "F4" });
  }
}

/** Throws unless the bytes between metadata and data are zero. */
export function checkPadding(padding: Uint8Array): void {
  if (!areZero(padding)) {
    throw new QfbError("the padding between metadata and data is not zero", { rule: "F5" });
  }
}

export function areEqual(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && a.every((byte, index) => byte === b[index]);
}

function areZero(bytes: Uint8Array): boolean {
  return bytes.every((byte) => byte === 0);
}

/** What a file that is not a `.qfb` seems to be, and what to do about it. */
function resemblance(head: Uint8Array, ascii: (start: number, end: number) => string): string {
  if (!head.length) {
    return "it is empty";
  }
  if (ascii(0, 4) === "PK\x03\x04") {
    return "it seems to be a zip archive (TorchScript, .pt2 or a checkpoint); try `qfmt convert`";
  }
  if (head[0] === 0x08 && head[1]! < 0x20 && "\x12\x1a\x22\x2a\x3a\x42".includes(ascii(2, 3))) {
    return "it seems to be ONNX; try `qfmt convert`";
  }
  if (/^\s*</.test(ascii(0, 16))) {
    return "it seems to be a web page: is the address right?";
  }
  return "create one with `qfmt convert`";
}
