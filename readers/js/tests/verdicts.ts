// node verdicts.js FILES [--no-verify]: reads damaged files, which stand in one file (or, with "-", come from stdin),
// each after its size as a u32. Prints the verdict about each, a line.

import { createReadStream } from "node:fs";
import { argv, stdin, stdout } from "node:process";
import { verdict } from "./touch.js";

const source = argv[2] === "-" ? stdin : createReadStream(argv[2]!);
let pending = Buffer.alloc(0);
for await (const chunk of source) {
  pending = Buffer.concat([pending, chunk as Buffer]);
  let at = 0;
  while (pending.length >= at + 4 && pending.length >= at + 4 + pending.readUInt32LE(at)) {
    const end = at + 4 + pending.readUInt32LE(at);
    stdout.write(`${await verdict(pending.subarray(at + 4, end), { verify: argv[3] !== "--no-verify" })}\n`);
    at = end;
  }
  pending = pending.subarray(at);
}
