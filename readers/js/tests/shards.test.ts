// Files whose data is in others beside them.

import assert from "node:assert/strict";
import { copyFile, mkdtemp, readdir, readFile, rename, rm, symlink, truncate } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { open, QfbError } from "qfb-reader";
import { PACKAGE, ranges, serve } from "./files.js";

const SUITE = new URL("../../tests/golden/1.0/read/", PACKAGE);

let [folder, names] = ["", [] as string[]];

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "qfb-"));
  names = (await readdir(SUITE)).filter((name) => name.startsWith("shards.") && name.endsWith(".qfs")).sort();
  for (const name of ["shards.qfb", ...names]) {
    await copyFile(new URL(name, SUITE), join(folder, name));
  }
});

after(() => rm(folder, { recursive: true }));

/** The rule that is broken when everything is read, and the message. */
async function refusal(path: string): Promise<string> {
  const error = await open(path).then((model) => model.verify()).then(() => undefined, (error: unknown) => error);
  return error instanceof QfbError ? `${error.rule} ${error.message}` : String(error);
}

test("shards are found beside a path, a link to it, an address, or by name", async () => {
  const main = join(folder, "shards.qfb");
  const blobs = Object.fromEntries(await Promise.all(names.map(async (name) => [name, new Blob([await readFile(join(folder, name))])])));
  const elsewhere = join(await mkdtemp(join(tmpdir(), "qfb-")), "link.qfb");
  await symlink(main, elsewhere);
  const server = await serve(new Uint8Array(), async (request, response, _, served) => {
    ranges(request, response, new Uint8Array(await readFile(join(folder, decodeURIComponent(request.url!.slice(1))))), served);
  });
  const address = server.address.replace("model.qfb", "shards.qfb");
  const named = await readFile(main);
  const asked: string[] = [];
  const models = await Promise.all([
    open(main), open(elsewhere), open(address), open(new Blob([named]), { shards: blobs }),
    open(named, { shards: async (name) => (asked.push(name), blobs[name]!) }),
  ]);
  for (const model of models) {
    await model.verify();
    assert.deepEqual(await model.tensors.get("a")!.array(), await models[0]!.tensors.get("a")!.array());
    assert.equal(await model.contentId(), await models[0]!.contentId());
  }
  assert.deepEqual([...asked].sort(), names, "each is opened once");
  await server.close();
});

test("what is in the metadata needs no shard; an array needs its own", async () => {
  const asked: string[] = [];
  const main = await readFile(join(folder, "shards.qfb"));
  const model = await open(main, { shards: async (name) => (asked.push(name), readFile(join(folder, name))) });
  assert.equal(model.tensors.size, 4);
  await model.contentId();
  assert.deepEqual(asked, []);
  await model.tensors.get("a")!.array();
  assert.deepEqual(asked, [names[0]]);
  const alone = await open(main);
  await assert.rejects(alone.tensors.get("a")!.array(), /QfbError: memory: shard ".*": cannot be opened: .*; put it beside/);
});

test("a shard that is missing, short, or a link is refused by its name", async () => {
  const [main, first, aside] = [join(folder, "shards.qfb"), join(folder, names[0]!), join(folder, "aside")];
  await rename(first, aside);
  assert.match(await refusal(main), new RegExp(`^F15 .*shard "${names[0]}": cannot be opened: .*put it beside`));
  await symlink(aside, first);
  assert.match(await refusal(main), new RegExp(`^F15 .*shard "${names[0]}": cannot be opened: .*is a link`));
  await rm(first);
  await copyFile(aside, first);
  await truncate(first, 32);
  assert.match(await refusal(main), new RegExp(`^F15 .*shard "${names[0]}": has 32 bytes instead of 64`));
  await copyFile(aside, first);
  assert.equal(await refusal(main), "undefined");
});
