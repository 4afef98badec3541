// sha256, by WebCrypto.

import { QfbError } from "./errors.js";
import { importNode } from "./node.js";

/** WebCrypto takes no more at once. */
const MOST_AT_ONCE = 2 ** 31 - 1;

/** The sha256 of some bytes: 32 bytes. */
export async function sha256(bytes: Uint8Array, mostAtOnce = MOST_AT_ONCE): Promise<Uint8Array<ArrayBuffer>> {
  if (bytes.length > mostAtOnce) {
    return sha256InParts(bytes);
  }
  const subtle: Pick<SubtleCrypto, "digest"> | undefined = globalThis.crypto?.subtle ?? (await importNode("node:crypto"))?.webcrypto.subtle;
  if (subtle === undefined) {
    const hint = "browsers provide it on https and localhost; `verify: false` skips the digests";
    throw new QfbError("WebCrypto, which verifies digests, is missing", { hint });
  }
  return new Uint8Array(await subtle.digest("SHA-256", bytes as Uint8Array<ArrayBuffer>));
}

async function sha256InParts(bytes: Uint8Array): Promise<Uint8Array<ArrayBuffer>> {
  const node = await importNode("node:crypto");
  if (node === undefined) {
    const what = `WebCrypto cannot hash ${bytes.length} bytes: the limit is 2 GiB at once`;
    throw new QfbError(what, { hint: "`verify: false` skips the digests" });
  }
  const hash = node.createHash("sha256");
  for (let at = 0; at < bytes.length; at += 1 << 28) {
    hash.update(bytes.subarray(at, at + (1 << 28)));
  }
  return Uint8Array.from(hash.digest());
}

export function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
