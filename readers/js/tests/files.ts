// Files for the tests: the golden ones of the project, and a server that sends one in many ways.

import { readFile } from "node:fs/promises";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { fileURLToPath } from "node:url";

// this file runs in readers/js/build/readers/js/tests
export const PACKAGE = new URL("../../../../", import.meta.url);
export const GOLDEN = new URL("../../tests/golden/1.0.qfb", PACKAGE);
export const BLOCKS = new URL("../../tests/golden/1.0-blocks.qfb", PACKAGE);

export const pathOf = fileURLToPath;

export async function golden(): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await readFile(GOLDEN));
}

/** The offset of the data segment of a file. */
export function dataOffset(file: Uint8Array): number {
  return Number(new DataView(file.buffer, file.byteOffset).getBigUint64(24, true));
}

export interface Served {
  readonly address: string;
  /** The Range header of each request; "" if there was none. */
  readonly ranges: string[];
  /** Bytes sent. */
  sent: number;
  close(): Promise<void>;
}

export type Answer = (request: IncomingMessage, response: ServerResponse, file: Uint8Array, served: Served) => void;

/** A server of one file on this machine. */
export async function serve(file: Uint8Array, answer: Answer = ranges): Promise<Served> {
  const server = createServer((request, response) => {
    served.ranges.push(request.headers.range ?? "");
    answer(request, response, file, served);
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address() as AddressInfo;
  const served: Served = {
    address: `http://127.0.0.1:${port}/model.qfb`,
    ranges: [],
    sent: 0,
    close: () => new Promise((done) => (server.close(() => done()), server.closeAllConnections())),
  };
  return served;
}

/** The asked range of a file, as the standard has it. */
export function asked(request: IncomingMessage, file: Uint8Array): { start: number; end: number } | undefined {
  const found = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "");
  return found ? { start: Number(found[1]), end: Math.min(Number(found[2]) + 1, file.length) } : undefined;
}

/** Sends ranges, with `headers` in place of the right ones. */
export function ranges(
  request: IncomingMessage,
  response: ServerResponse,
  file: Uint8Array,
  served: Served,
  headers: Record<string, string | undefined> = {},
): void {
  const range = asked(request, file);
  if (!range) {
    return whole(request, response, file, served);
  }
  const { start, end } = range;
  if (start >= file.length) {
    response.writeHead(416, { "Content-Range": `bytes */${file.length}` }).end();
    return;
  }
  const right = { "Content-Range": `bytes ${start}-${end - 1}/${file.length}`, "ETag": '"1"' };
  const all = Object.entries({ ...right, ...headers }).filter((pair): pair is [string, string] => pair[1] !== undefined);
  response.writeHead(206, Object.fromEntries(all)).end(file.subarray(start, end));
  served.sent += end - start;
}

/** Ignores ranges. */
export function whole(_: IncomingMessage, response: ServerResponse, file: Uint8Array, served: Served): void {
  response.writeHead(200).end(file);
  served.sent += file.length;
}
