// The one error of this package.

/** Where an error happened, what to do about it, and the number of the rule of spec.md that the file breaks. */
export interface ErrorDetails {
  readonly where?: string;
  readonly hint?: string;
  readonly rule?: string;
  readonly cause?: unknown;
}

/**
 * A file cannot be read, or a tensor cannot be used as asked. Nothing else is thrown on account of a file.
 *
 * `what` is the finding, `where` the place (file, tensor, byte), `hint` what to do; `rule` is the number of the rule of
 * spec.md that is broken ("F9", "V20"), or empty. `message` is all of it in one line.
 */
export class QfbError extends Error {
  readonly what: string;
  readonly hint: string;
  readonly rule: string;
  #where: string;

  constructor(what: string, { where = "", hint = "", rule = "", cause }: ErrorDetails = {}) {
    super("", cause === undefined ? undefined : { cause });
    this.name = "QfbError";
    this.what = what;
    this.hint = hint;
    this.rule = rule;
    this.#where = where;
    this.#compose();
  }

  get where(): string {
    return this.#where;
  }

  /** The same error, placed: an outer layer knows the file, an inner one only the table. */
  at(where: string): this {
    this.#where = this.#where ? `${where}: ${this.#where}` : where;
    this.#compose();
    return this;
  }

  #compose(): void {
    const place = this.#where ? `${this.#where}: ` : "";
    this.message = printable(place + this.what + (this.hint ? `; ${this.hint}` : ""));
  }
}

/** The text with control characters written out: a name from a hostile file must not drive a terminal. */
function printable(text: string): string {
  const invisible = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
  return text.replace(invisible, (letter) => `\\u{${letter.codePointAt(0)!.toString(16)}}`);
}

/** What `work` gives; a QfbError that it throws learns where it happened. */
export function placed<Result>(where: string, work: () => Result): Result {
  try {
    return work();
  } catch (error) {
    throw error instanceof QfbError ? error.at(where) : error;
  }
}

/** What `make` makes; a QfbError if it is more than there is room for. */
export function inMemory<Result>(make: () => Result): Result {
  try {
    return make();
  } catch (error) {
    throw new QfbError("does not fit into memory", { cause: error });
  }
}

/** Untrusted text, to be shown in a message: quoted, short, and without control characters. */
export function quoted(text: string): string {
  return JSON.stringify(text.length > 200 ? `${text.slice(0, 200)}…` : text);
}
