// What the package does where something is missing that Node 20 on a little-endian machine has.

import assert from "node:assert/strict";
import { createHash, webcrypto } from "node:crypto";
import { test, type TestContext } from "node:test";
import { open, QfbError } from "qfb-reader";
import { hex, sha256 } from "../src/digest.js";
import { littleEndian } from "../src/endian.js";
import { golden } from "./files.js";
import { verdict } from "./touch.js";

/** Puts something else in the place of a global until the test has ended. */
function instead(context: TestContext, name: "process" | "crypto", value?: unknown): void {
  const before = Object.getOwnPropertyDescriptor(globalThis, name) ?? { value: undefined, configurable: true };
  Object.defineProperty(globalThis, name, { value, configurable: true });
  context.after(() => Object.defineProperty(globalThis, name, before));
}

test("in a browser a string is an address, also a relative one", async (context) => {
  const file = await golden();
  const asked: unknown[] = [];
  const fetch = async (address: unknown): Promise<Response> => {
    asked.push(address);
    return new Response(file);
  };
  instead(context, "crypto", webcrypto); // Node 18 has it in the module only
  instead(context, "process");
  const model = await open("models/m.qfb", { fetch });
  assert.equal((await model.tensors.get("conv.weight")!.array()).length, 54);
  assert.deepEqual(asked, ["models/m.qfb"]);
  assert.equal((await open(new Blob([file]))).tensors.size, model.tensors.size);
});

test("Node 18 has WebCrypto in a module", async (context) => {
  const file = await golden();
  instead(context, "crypto");
  assert.equal((await open(file)).inputs[0], "x");
});

test("a page without WebCrypto is told so", async (context) => {
  const file = await golden();
  instead(context, "crypto");
  instead(context, "process");
  await assert.rejects(open(file), (error) => error instanceof QfbError && /https.*verify: false/.test(error.message));
  assert.equal((await open(file, { verify: false })).inputs[0], "x");
});

test("what is too long for WebCrypto is hashed in parts, where that is possible", async (context) => {
  const bytes = new Uint8Array(100_000).fill(7);
  assert.equal(hex(await sha256(bytes, 99_999)), createHash("sha256").update(bytes).digest("hex"));
  instead(context, "process");
  await assert.rejects(sha256(bytes, 99_999), { name: "QfbError", what: /limit is 2 GiB/ });
});

test("a big-endian machine turns numbers round", () => {
  assert.deepEqual(littleEndian(Uint8Array.of(1, 2, 3, 4, 5, 6), 2, false), Uint8Array.of(2, 1, 4, 3, 6, 5));
  assert.deepEqual(littleEndian(Uint8Array.of(1, 2, 3, 4), 4, false), Uint8Array.of(4, 3, 2, 1));
  assert.deepEqual(littleEndian(Uint8Array.of(1, 2, 3, 4), 4), Uint8Array.of(1, 2, 3, 4));
});

test("no array is made of a size that was not checked", async () => {
  const file = await golden();
  const largest = watchAllocations();
  const metaSize = Number(new DataView(file.buffer).getBigUint64(16, true));
  let refused = 0;
  for (let at = 128; at + 4 <= metaSize; at += 4) {
    const changed = file.slice();
    new DataView(changed.buffer).setUint32(at, at % 8 ? 0x00ffffff : 0x7fffffff, true);
    refused += Number((await verdict(changed, { verify: false })) !== "ok");
  }
  assert.ok(refused > 100);
  assert.ok(largest.stop() <= 65536, `an array of ${largest.stop()} elements`); // a table of all codes of 16 bits
});

/** Takes note of the largest array that is made by its length, whoever makes it. */
function watchAllocations(): { stop(): number } {
  const names = ["Int8Array", "Uint8Array", "Int32Array", "Float32Array", "Float64Array"] as const;
  const before = names.map((name) => globalThis[name]);
  let largest = 0;
  const construct = (type: Function, [first, ...rest]: unknown[], target: Function): object => {
    largest = Math.max(largest, typeof first === "number" ? first : 0);
    return Reflect.construct(type, [first, ...rest], target) as object;
  };
  const global = globalThis as Record<string, unknown>;
  names.forEach((name, index) => (global[name] = new Proxy(before[index]!, { construct })));
  return {
    stop() {
      names.forEach((name, index) => (global[name] = before[index]));
      return largest;
    },
  };
}
