/**
 * Telling the control tokens that a chat template writes from those that somebody typed; the same as
 * py/oxinfer_web/text/control.py.
 *
 * A typed control token gets a guard, one private-use character after its first, before the template is rendered: so it
 * is no control token any more, and what the template does with the text around it stays the same.
 */

/** Some texts, and the longest of them at a place. */
export class Texts {
  readonly texts: ReadonlySet<string>;
  /** Lengths of texts by their first code unit, the longest first. */
  private readonly lengths = new Map<string, number[]>();

  constructor(texts: Iterable<string>) {
    this.texts = new Set(texts);
    for (const { 0: first, length } of this.texts) {
      const lengths = this.lengths.get(first ?? '') ?? [];
      if (!lengths.includes(length)) lengths.push(length);
      this.lengths.set(first ?? '', lengths);
    }
    for (const lengths of this.lengths.values()) lengths.sort((a, b) => b - a);
  }

  /** The longest text that begins at this code unit. */
  at(text: string, start: number): string | undefined {
    for (const length of this.lengths.get(text[start] ?? '') ?? []) {
      const found = text.slice(start, start + length);
      if (this.texts.has(found)) return found;
    }
    return undefined;
  }

  /** Whether any is in a text. */
  isIn(text: string): boolean {
    for (let i = 0; i < text.length; i++) if (this.at(text, i) !== undefined) return true;
    return false;
  }

  /** The value with a guard in every one of the texts that its strings have, overlapping ones too; keys stay. */
  guard(value: unknown, guard: string): unknown {
    if (typeof value === 'string') {
      let guarded = '';
      for (let i = 0; i < value.length; i++)
        guarded += (value[i] ?? '') + (this.at(value, i) === undefined ? '' : guard);
      return guarded;
    }
    if (Array.isArray(value)) return value.map((item: unknown) => this.guard(item, guard));
    if (typeof value !== 'object' || value === null) return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, this.guard(item, guard)]));
  }

  /** A rendered prompt without guards, and where in it these texts begin that have none. */
  unguard(text: string, guard: string): { text: string; starts: Set<number> } {
    const starts = new Set<number>();
    let plain = '';
    for (let i = 0; i < text.length;) {
      const one = text[i] ?? '';
      const guarded = text[i + 1] === guard;
      const found = guarded ? undefined : this.at(text, i);
      if (found !== undefined) starts.add(plain.length);
      const next = found ?? (one === guard ? '' : one);
      plain += next;
      i += guarded ? 2 : (found ?? one).length;
    }
    return { text: plain, starts };
  }
}

/** A private-use character that is in none of these texts. */
export function unusedCharacter(texts: string[]): string {
  for (let code = 0xe000; ; code++) {
    const character = String.fromCharCode(code);
    if (!texts.some((text) => text.includes(character))) return character;
  }
}

/** All strings in a value made of lists and objects, keys not included. */
export function* strings(value: unknown): Generator<string> {
  if (typeof value === 'string') yield value;
  else if (typeof value === 'object' && value !== null) for (const item of Object.values(value)) yield* strings(item);
}
