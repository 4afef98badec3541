// A file at an address, of which only what is needed is fetched: the first bytes, which hold header and metadata, and
// then each array when it is asked for. A server that knows no ranges sends all of it: then it is kept, up to a limit.

import { QfbError } from "./errors.js";
import { memory, type Source } from "./sources.js";

export interface HttpOptions {
  /** Takes the place of `fetch`. */
  readonly fetch?: typeof globalThis.fetch;
  /** Sent with every request. */
  readonly headers?: ConstructorParameters<typeof Headers>[0];
  /** Ends requests that are under way, and forbids others. */
  readonly signal?: AbortSignal;
  /** The most bytes that are downloaded at once if the server does not send ranges. Default: 1 GiB. */
  readonly maxDownload?: number;
}

/** Bytes of the first request; the metadata of most networks fit into them. */
const FIRST = 1 << 16;

export async function openHttp(address: string, options: HttpOptions): Promise<Source> {
  const response = await request(address, options, 0, FIRST);
  const range = response.status === 206 ? contentRange(response) : undefined;
  if (response.status === 416) {
    return memory(new Uint8Array(0), address);
  }
  if (range === undefined) {
    return download(address, options, response);
  }
  const { start, total } = range;
  if (start !== 0) {
    throw new QfbError("the server does not send the requested range");
  }
  const version = versionOf(response);
  const first = await body(response, Math.min(FIRST, total));
  return {
    name: address,
    size: total,
    async read(offset, length) {
      if (offset + length <= first.length) {
        return first.slice(offset, offset + length);
      }
      const response = await request(address, options, offset, length);
      const range = response.status === 206 ? contentRange(response) : undefined;
      if (range?.start !== offset || range.total !== total || versionOf(response) !== version) {
        throw new QfbError("the server sent a different file or range than before", { hint: "open it again" });
      }
      return body(response, length);
    },
  };
}

async function request(address: string, options: HttpOptions, start: number, length: number): Promise<Response> {
  return send(address, options, { "Range": `bytes=${start}-${start + length - 1}`, "Accept-Encoding": "identity" });
}

async function send(address: string, options: HttpOptions, headers: Record<string, string>): Promise<Response> {
  const { fetch = globalThis.fetch, signal } = options;
  const all = new Headers(options.headers);
  Object.entries(headers).forEach(([name, value]) => all.set(name, value));
  const response = await fetch(address, { headers: all, ...(signal && { signal }) });
  if (!response.ok && response.status !== 416) {
    await response.body?.cancel();
    throw new QfbError(`the server answers ${response.status} ${response.statusText}`.trimEnd());
  }
  return response;
}

/** The whole file: that of a server without ranges, or one whose ranges the browser does not tell to other origins. */
async function download(address: string, options: HttpOptions, response: Response): Promise<Source> {
  if (response.status === 206) {
    await response.body?.cancel();
    response = await send(address, options, {});
  }
  const limit = options.maxDownload ?? 2 ** 30;
  if (response.status !== 200) {
    await response.body?.cancel();
    throw new QfbError(`the server answers ${response.status} to a request for the whole file`);
  }
  return memory(await body(response, limit, true), address, true);
}

/** First byte and size of the file, where the server says both. */
function contentRange(response: Response): { start: number; total: number } | undefined {
  const found = /^bytes (\d{1,15})-(\d{1,15})\/(\d{1,15})$/.exec(response.headers.get("content-range") ?? "");
  return found === null ? undefined : { start: Number(found[1]), total: Number(found[3]) };
}

/** What changes when the file does. */
function versionOf(response: Response): string {
  return `${response.headers.get("etag")} ${response.headers.get("last-modified")}`;
}

/** The bytes of an answer, never more than `limit`: a server may send without end. `isLess`: it may be fewer. */
async function body(response: Response, limit: number, isLess = false): Promise<Uint8Array> {
  const parts: Uint8Array[] = [];
  let size = 0;
  const reader = response.body?.getReader();
  for (let part = await reader?.read(); part?.value !== undefined; part = await reader!.read()) {
    size += part.value.length;
    if (size > limit) {
      await reader!.cancel();
      const hint = isLess ? "`maxDownload` allows more; a server with range requests needs less" : "";
      throw new QfbError(`the server sends more than ${limit} bytes`, { hint });
    }
    parts.push(part.value);
  }
  if (size < limit && !isLess) {
    throw new QfbError(`the server sends ${size} bytes instead of ${limit}`, { hint: "try again" });
  }
  if (parts.length === 1) {
    return parts[0]!;
  }
  const bytes = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}
