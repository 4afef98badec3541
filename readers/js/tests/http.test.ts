import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test, type TestContext } from "node:test";
import { open, QfbError } from "qfb-reader";
import { asked, dataOffset, golden, ranges, serve, whole, type Answer, type Served } from "./files.js";

async function served(context: TestContext, answer?: Answer, file?: Uint8Array): Promise<Served> {
  const server = await serve(file ?? (await golden()), answer);
  context.after(() => server.close());
  return server;
}

/** The golden file with its arrays further back than the first request reaches: metadata may end with anything. */
async function spread(): Promise<Uint8Array> {
  const file = await golden();
  const start = dataOffset(file);
  const more = 25 * 4096;
  const moved = new Uint8Array(file.length + more);
  moved.set(file.subarray(0, start));
  moved.set(file.subarray(start), start + more);
  const view = new DataView(moved.buffer);
  for (const at of [16, 24, 40]) {
    view.setBigUint64(at, view.getBigUint64(at, true) + BigInt(more), true);
  }
  const metadata = moved.slice(0, Number(view.getBigUint64(16, true))).fill(0, 64, 96);
  moved.set(createHash("sha256").update(metadata).digest(), 64);
  return moved;
}

test("header and metadata are fetched at first, arrays when they are asked for", async (context) => {
  const file = await spread();
  const server = await served(context, ranges, file);
  const model = await open(new URL(server.address), { headers: { "X-Token": "a" } });
  assert.deepEqual(server.ranges, ["bytes=0-65535", `bytes=0-${dataOffset(file) - 1}`]);
  const weight = model.tensors.get("conv.weight")!;
  assert.equal(server.ranges.length, 2);
  assert.equal((await weight.array())[0], -127);
  assert.equal(server.ranges.length, 3);
  assert.match(server.ranges[2]!, /^bytes=1\d{5}-1\d{5}$/);
  assert.equal(server.sent, 65536 + dataOffset(file) + 54);
  const ours = await open(await golden());
  for (const tensor of model.tensors) {
    if (tensor.data) {
      assert.deepEqual(await tensor.bytes(), await ours.tensors.get(tensor.name)!.bytes());
    }
  }
});

test("headers are in any form that fetch accepts; the range is the reader's", async (context) => {
  const server = await served(context);
  const pairs: [string, string][] = [["x-token", "a"], ["range", "bytes=7-8"]];
  for (const headers of [new Headers(pairs), pairs, Object.fromEntries(pairs)]) {
    const seen: Headers[] = [];
    const fetch: typeof globalThis.fetch = (address, init) => (seen.push(new Headers(init?.headers)), globalThis.fetch(address, init));
    await open(server.address, { headers, fetch });
    assert.deepEqual(seen.map((each) => [each.get("x-token"), each.get("range")]), [["a", "bytes=0-65535"]]);
  }
});

test("what is small takes one request", async (context) => {
  const server = await served(context);
  const model = await open(server.address);
  for (const tensor of model.tensors) {
    await tensor.data?.array();
  }
  assert.equal(server.ranges.length, 1);
});

test("arrays of an address are copies, whether the server sends ranges or all of the file", async (context) => {
  for (const answer of [ranges, whole]) {
    const server = await served(context, answer);
    const model = await open(server.address);
    const weight = model.tensors.get("conv.weight")!;
    const array = (await weight.array()) as Int8Array;
    const kept = array.slice();
    array.fill(1);
    assert.deepEqual(await weight.array(), kept);
    assert.equal(array.buffer.byteLength, 54);
  }
});

test("damage on the way is noticed, whenever it happens", async (context) => {
  const file = await spread();
  const server = await served(context, ranges, file);
  const model = await open(server.address);
  const weight = model.tensors.get("conv.weight")!;
  await weight.array();
  file.fill(7, dataOffset(file));
  await assert.rejects(weight.array(), { name: "QfbError", rule: "F9" });
});

test("a server that ignores ranges is read as a whole, up to a limit", async (context) => {
  const server = await served(context, whole);
  const model = await open(server.address);
  assert.equal((await model.tensors.get("conv.weight")!.array()).length, 54);
  assert.equal(server.ranges.length, 1);
  await assert.rejects(open(server.address, { maxDownload: 1000 }), { name: "QfbError", what: /more than 1000 bytes/ });
});

test("ranges without a size, as browsers see them from another origin, are a reason to read the whole", async (context) => {
  const hidden: Answer = (request, response, file, served) =>
    ranges(request, response, file, served, { "Content-Range": undefined });
  const server = await served(context, hidden);
  assert.equal((await (await open(server.address)).contentId()).length, 64);
  assert.deepEqual(server.ranges, ["bytes=0-65535", ""]);
});

test("a body without end is cut off", async (context) => {
  const endless: Answer = (_, response) => {
    response.writeHead(200);
    const more = (): void => void (response.destroyed || (response.write(new Uint8Array(65536)), setImmediate(more)));
    more();
  };
  const server = await served(context, endless);
  await assert.rejects(open(server.address, { maxDownload: 1 << 20 }), { name: "QfbError", what: /more than 1048576 bytes/ });
});

test("more than the asked range is refused", async (context) => {
  const generous: Answer = (_, response, file) => {
    response.writeHead(206, { "Content-Range": `bytes 0-65535/${file.length}` });
    response.end(new Uint8Array(70000));
  };
  await assert.rejects(open((await served(context, generous)).address), { name: "QfbError", what: /sends more than/ });
});

test("a size that only the server believes in allocates nothing", async (context) => {
  for (const total of ["999999999999999", "9007199254740993000", "*", "-1"]) {
    const boasting: Answer = (request, response, file, served) =>
      ranges(request, response, file, served, { "Content-Range": `bytes 0-65535/${total}` });
    const server = await served(context, boasting);
    const before = process.memoryUsage().arrayBuffers;
    await open(server.address).then(() => undefined, (error) => assert.ok(error instanceof QfbError));
    assert.ok(process.memoryUsage().arrayBuffers - before < 1 << 24);
  }
});

test("a file that is replaced while it is read is noticed", async (context) => {
  let version = 1;
  const file = await spread();
  const changing: Answer = (request, response, file, served) =>
    ranges(request, response, file, served, { ETag: `"${version}"` });
  const model = await open((await served(context, changing, file)).address);
  version = 2;
  await assert.rejects(model.tensors.get("conv.weight")!.array(), { name: "QfbError", what: /different file/ });
});

test("another part than the one that was asked for is refused", async (context) => {
  const file = await spread();
  const shifted: Answer = (request, response, file, served) => {
    const { start, end } = asked(request, file)!;
    ranges(request, response, file, served, { "Content-Range": `bytes ${start + 1}-${end}/${file.length}` });
  };
  await assert.rejects(open((await served(context, shifted, file)).address), { name: "QfbError", what: /range/ });
});

test("answers that are not a file", async (context) => {
  for (const status of [404, 403, 500, 204]) {
    const server = await served(context, (_, response) => void response.writeHead(status).end());
    await assert.rejects(open(server.address), { name: "QfbError", what: new RegExp(`answers ${status}`) });
  }
  const empty = await served(context, ranges, new Uint8Array());
  await assert.rejects(open(empty.address), { name: "QfbError", hint: /empty/ });
});

test("a server that is not there", async () => {
  await assert.rejects(open("http://127.0.0.1:9/m.qfb"), /^QfbError: http:\/\/127\.0\.0\.1:9\/m\.qfb: cannot be read: /);
});

test("a signal ends it", async (context) => {
  const silent = await served(context, () => undefined);
  await assert.rejects(open(silent.address, { signal: AbortSignal.timeout(50) }), { name: "QfbError", what: /cannot be read/ });
});
