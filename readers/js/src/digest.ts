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
    const hint = "browsers have it on https and localhost; `verify: false` does without digests";
    throw new QfbError("there is no WebCrypto to verify digests with", { hint });
  }
  return new Uint8Array(await subtle.digest("SHA-256", bytes as Uint8Array<ArrayBuffer>));
}

async function sha256InParts(bytes: Uint8Array): Promise<Uint8Array<ArrayBuffer>> {
  const node = await importNode("node:crypto");
  if (node === undefined) {
    const what = `WebCrypto takes the sha256 of less than 2 GiB at once, not of ${bytes.length} bytes`;
    throw new QfbError(what, { hint: "`verify: false` does without digests" });
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
