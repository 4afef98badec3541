// Files are little-endian; typed arrays are as the machine is.

export const IS_LITTLE_ENDIAN = new Uint8Array(Uint16Array.of(1).buffer)[0] === 1;

/** Numbers of `size` bytes each, little-endian, turned round in place to what this machine has. */
export function littleEndian<Bytes extends Uint8Array>(bytes: Bytes, size: number, isLittle = IS_LITTLE_ENDIAN): Bytes {
  for (let at = 0; !isLittle && at < bytes.length; at += size) {
    bytes.subarray(at, at + size).reverse();
  }
  return bytes;
}
