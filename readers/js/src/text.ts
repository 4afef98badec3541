// The order of names, and which of them are text.

/** -1, 0 or 1: the order of two texts by their code points, which is that of their UTF-8. Not that of `<`. */
export function compare(a: string, b: string): number {
  if (a === b) {
    return 0;
  }
  const length = Math.min(a.length, b.length);
  let at = 0;
  while (at < length && a.charCodeAt(at) === b.charCodeAt(at)) {
    at++;
  }
  if (at === length) {
    return Math.sign(a.length - b.length);
  }
  return rank(a.charCodeAt(at)) < rank(b.charCodeAt(at)) ? -1 : 1;
}

/** Surrogates stand for what comes after all other units. */
function rank(unit: number): number {
  return unit >= 0xd800 && unit < 0xe000 ? unit + 0x10000 : unit;
}

/** Whether strings are text in which a zero byte ends nothing; asked once for each, however often it is used. */
export class Text {
  readonly #known = new Map<string, boolean>();

  isText(text: string): boolean {
    let known = this.#known.get(text);
    if (known === undefined) {
      known = !text.includes("\0");
      this.#known.set(text, known);
    }
    return known;
  }
}
