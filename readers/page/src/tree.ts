// The table's rows folded by module path: runs of nodes that share a prefix, in the order of the graph.

import { differs, type Entry } from "./entries.js";

export interface Group {
  readonly kind: "group";
  readonly key: string;
  readonly label: string;
  readonly depth: number;
  readonly entries: readonly Entry[];
  readonly children: readonly Row[];
}

export interface Leaf {
  readonly kind: "node";
  readonly label: string;
  readonly depth: number;
  readonly entry: Entry;
}

export type Row = Group | Leaf;

/** A module that is one of its own few nodes, such as a convolution with its sums, needs no row of its own. */
const FEW = 4;

/** The tree of entries in their order. A node without a path, between two of one module, belongs to that module. */
export function treeOf(entries: readonly Entry[]): Row[] {
  const paths = entries.map(({ path }) => path);
  const isScoped = entries.some(({ node }) => node.scope);
  const isOutside = entries.map(({ node, path }) => (isScoped ? !node.scope : path.length < 2));
  for (let at = entries.length - 2, next = paths.at(-1)!; at > 0; at--) {
    if (isOutside[at]) {
      paths[at] = next; // for now: the one after it
    } else {
      next = paths[at]!;
    }
  }
  isOutside.forEach((outside, at) => {
    if (outside && at > 0 && at + 1 < paths.length) {
      paths[at] = [...common(paths[at - 1]!.slice(0, -1), paths[at]!), entries[at]!.node.name];
    }
  });
  return rows(entries, paths, 0, entries.length, 0, 0);
}

function common(a: readonly string[], b: readonly string[]): string[] {
  const end = a.findIndex((part, index) => b[index] !== part);
  return a.slice(0, end < 0 ? a.length : end);
}

function rows(entries: readonly Entry[], paths: readonly (readonly string[])[], from: number, to: number, depth: number, used: number): Row[] {
  const found: Row[] = [];
  for (let at = from; at < to; ) {
    const key = paths[at]![used];
    let end = at + 1;
    while (key !== undefined && end < to && paths[end]![used] === key) {
      end++;
    }
    const shared = paths.slice(at + 1, end).reduce<readonly string[]>((a, b) => common(a, b), paths[at]!);
    const isOne = end - at <= FEW && paths.slice(at, end).some((path) => path.length === shared.length);
    if (isOne) {
      for (const [index, entry] of entries.slice(at, end).entries()) {
        found.push({ kind: "node", label: paths[at + index]!.slice(used).join(".") || entry.node.name, depth, entry });
      }
    } else {
      const shortest = paths.slice(at, end).reduce((least, { length }) => Math.min(least, length - 1), shared.length);
      const length = Math.max(used + 1, shortest);
      found.push({
        kind: "group",
        key: `${at}:${shared.slice(0, length).join(".")}`,
        label: paths[at]!.slice(used, length).join("."),
        depth,
        entries: entries.slice(at, end),
        children: rows(entries, paths, at, end, depth + 1, length),
      });
    }
    at = end;
  }
  return found;
}

/** The rows that are not in a folded group. */
export function visible(tree: readonly Row[], folded: ReadonlySet<string>, into: Row[] = []): Row[] {
  for (const row of tree) {
    into.push(row);
    if (row.kind === "group" && !folded.has(row.key)) {
      visible(row.children, folded, into);
    }
  }
  return into;
}

export function* groups(tree: readonly Row[]): Generator<Group> {
  for (const row of tree) {
    if (row.kind === "group") {
      yield row;
      yield* groups(row.children);
    }
  }
}

export const hasDifference = (group: Group): boolean => group.entries.some(({ status }) => differs(status));
