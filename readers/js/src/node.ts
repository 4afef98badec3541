// What Node has and browsers have not: files, and hashes in parts. As types no package is needed: this is all of it.

export interface NodeFile {
  stat(): Promise<{ readonly size: number; readonly ino: number; readonly mtimeMs: number }>;
  read(buffer: Uint8Array, offset: number, length: number, position: number): Promise<{ readonly bytesRead: number }>;
  close(): Promise<void>;
}

interface NodeStat {
  isFile(): boolean;
  isDirectory(): boolean;
  isSymbolicLink(): boolean;
}

interface NodeModules {
  "node:fs/promises": {
    readonly constants: { readonly O_RDONLY: number; readonly O_NOFOLLOW?: number };
    stat(path: string | URL): Promise<NodeStat>;
    lstat(path: string | URL): Promise<NodeStat>;
    realpath(path: string | URL): Promise<string>;
    open(path: string | URL, flags: number): Promise<NodeFile>;
  };
  "node:path": {
    dirname(path: string): string;
    join(...parts: string[]): string;
  };
  "node:crypto": {
    readonly webcrypto: { readonly subtle: { digest(name: "SHA-256", bytes: Uint8Array): Promise<ArrayBuffer> } };
    createHash(name: "sha256"): { update(bytes: Uint8Array): unknown; digest(): Uint8Array };
  };
}

/** A module of Node; undefined where this is not Node. Bundlers do not see that something is imported. */
export async function importNode<Name extends keyof NodeModules>(name: Name): Promise<NodeModules[Name] | undefined> {
  const { process } = globalThis as { process?: { versions?: { node?: string } } };
  if (process?.versions?.node === undefined) {
    return undefined;
  }
  return (await import(/* webpackIgnore: true */ /* @vite-ignore */ name)) as NodeModules[Name];
}
