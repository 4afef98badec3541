// The order of names, and what has to be known about each of them.

/** What is slow to say about a string is said once, however often a file refers to it. */
export class Text {
  readonly #known = new Map<string, { readonly isText: boolean; readonly isPlain: boolean; readonly bytes: number }>();

  /** Whether it is text in which a zero byte ends nothing. */
  isText(text: string): boolean {
    return this.#facts(text).isText;
  }

  /** How many bytes its UTF-8 has. */
  bytes(text: string): number {
    return text.length < 32 ? UTF8.encode(text).length : this.#facts(text).bytes;
  }

  /** Below, at or above 0: the order of two texts by their code points, which is that of their UTF-8. */
  compare(a: string, b: string): number {
    if (Math.min(a.length, b.length) < 32 || !this.#facts(a).isPlain || !this.#facts(b).isPlain) {
      return compareCodePoints(a, b);
    }
    return a < b ? -1 : a === b ? 0 : 1;
  }

  #facts(text: string) {
    let known = this.#known.get(text);
    if (known === undefined) {
      const isPlain = !/[\ud800-\uffff]/.test(text); // `<` orders by code units: the same up to surrogates
      known = { isText: !text.includes("\0"), isPlain, bytes: UTF8.encode(text).length };
      this.#known.set(text, known);
    }
    return known;
  }
}

const UTF8 = new TextEncoder();

function compareCodePoints(a: string, b: string): number {
  const length = Math.min(a.length, b.length);
  let at = 0;
  while (at < length && a.charCodeAt(at) === b.charCodeAt(at)) {
    at++;
  }
  return at === length ? a.length - b.length : rank(a.charCodeAt(at)) - rank(b.charCodeAt(at));
}

/** Surrogates represent characters after all other units. */
function rank(unit: number): number {
  return unit >= 0xd800 && unit < 0xe000 ? unit + 0x10000 : unit;
}
