// What a page shows of a model: made by qfmt/view/description.py, or by from_file.ts from a `.qfb`.

/** JSON has no infinities: "inf", "-inf" and "nan"; integers beyond 2⁵³ are text, too. */
export type Numeric = number | string;

/** Keys and values: no record, because two long keys may be shortened alike. */
export type Pairs<Value> = readonly (readonly [string, Value])[];

/** What differs in constants, by their places: names may be shortened alike, too. */
export type Changes = Readonly<Record<number, string>>;

export interface Grid {
  readonly min: number;
  readonly max: number;
  /** How many scales there are; `scale` has them all, or the least and the greatest. */
  readonly count: number;
  readonly type: string;
  readonly scale: readonly Numeric[];
  readonly zero: readonly Numeric[];
  readonly block?: readonly number[];
  readonly axis?: number;
  readonly extras?: readonly string[];
  readonly observed?: { readonly observer: string; readonly min: readonly Numeric[]; readonly max: readonly Numeric[] };
  readonly error?: string;
}

export interface Statistics {
  readonly error?: string;
  readonly elements?: number;
  readonly min?: Numeric;
  readonly max?: Numeric;
  /** The left end of the first bin, the width of each, and how many values are in each. */
  readonly first?: number;
  readonly width?: number;
  readonly bins?: readonly number[];
  /** How many of the codes of the type occur. */
  readonly used?: number;
  readonly codes?: number;
  /** How many values are at quant_min and at quant_max. */
  readonly low?: number;
  readonly high?: number;
  /** How many channels are zero everywhere; and the largest distance from the zero point in each. */
  readonly dead?: number;
  readonly peaks?: readonly number[];
}

export interface TensorFacts {
  readonly name: string;
  readonly dtype: string;
  readonly shape: readonly (number | string | null)[] | null;
  readonly aliases?: readonly string[];
  readonly grid?: Grid;
  /** Of constants only. */
  stats?: Statistics;
  values?: readonly Numeric[];
  /** Of a file in the page: reads the array, and fills `stats` and `values`. */
  load?: () => Promise<void>;
  /** The stored values, if the page has the file. */
  array?: () => Promise<ArrayLike<number | bigint>>;
}

export interface Proof {
  readonly low: readonly Numeric[];
  readonly high: readonly Numeric[];
  readonly compared: string;
  readonly differs: number;
  readonly largest: Numeric;
}

export interface NodeFacts {
  readonly operator: string;
  readonly version: number;
  readonly name: string;
  readonly scope: string;
  readonly from: string;
  readonly rule: string;
  /** Places in `tensors`; -1 where an optional one is absent. */
  readonly inputs: readonly number[];
  readonly outputs: readonly number[];
  readonly attributes: Pairs<unknown>;
  readonly proof?: Proof;
  readonly hazard?: { readonly channels: number; readonly everywhere: boolean; readonly overflow: Readonly<Record<string, number>> };
}

export interface Description {
  readonly name: string;
  readonly size: number | null;
  readonly content: string;
  readonly graph: string;
  readonly producer: string;
  readonly engine: string;
  readonly source: Pairs<string>;
  readonly metadata: Pairs<string>;
  readonly noGraph: string;
  readonly vectors: number;
  readonly inputs: readonly number[];
  readonly outputs: readonly number[];
  readonly tensors: readonly TensorFacts[];
  readonly nodes: readonly NodeFacts[];
  readonly faults: readonly string[];
  readonly proofs: {
    readonly sums?: number;
    readonly reaches?: number;
    readonly broken?: readonly string[];
    readonly unknown?: readonly string[];
  };
  readonly comparison?: Comparison;
}

export type Comparison = Difference | Verified;

/** Two files: a row for each node of either, the places in both (or -1), and what differs. */
export interface Difference {
  readonly kind: "diff";
  readonly other: Description;
  readonly equal: boolean;
  readonly sameContent: boolean;
  readonly rows: readonly (readonly [number, number, readonly string[]])[];
  readonly tensors: Changes;
  /** Of those that only the other file has. */
  readonly otherTensors: Changes;
  readonly words: readonly string[];
}

export interface Counts {
  readonly outputs: number;
  readonly equal: number;
  readonly tie: number;
  readonly close: number;
  readonly saturated: number;
  readonly overflow: number;
  readonly stated: number;
  readonly wrong: number;
  readonly largest: Numeric;
  readonly differences: readonly string[];
}

/** A file and its source: what `qfmt verify` counted. */
export interface Verified {
  readonly kind: "verify";
  readonly source: string;
  readonly engine: string;
  readonly version: string;
  readonly ok: boolean;
  readonly exact: boolean;
  readonly first: string;
  readonly inputs: string;
  readonly skipped: string;
  readonly nodes: readonly (Counts | null)[];
  readonly tensors: Changes;
  readonly outputs: readonly { readonly name: string; readonly outputs: number; readonly equal: number; readonly argmax_equal: number; readonly argmax_total: number }[];
  readonly words: readonly string[];
}
