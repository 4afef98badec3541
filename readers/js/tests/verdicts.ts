// node verdicts.js FILES [--no-verify]: reads damaged files, which stand in one file, each after its size as a u32.
// Prints the verdict about each, a line.

import { readFile } from "node:fs/promises";
import { argv } from "node:process";
import { verdict } from "./touch.js";

const files = await readFile(argv[2]!);
const lines: string[] = [];
for (let at = 0; at < files.length; ) {
  const size = files.readUInt32LE(at);
  lines.push(await verdict(files.subarray(at + 4, at + 4 + size), { verify: argv[3] !== "--no-verify" }));
  at += 4 + size;
}
console.log(lines.join("\n"));
