/** Turning tokens into text as they come. */

/** Decoding a token needs a few before it: some tokenizers drop the space at the start of a text. */
const CONTEXT = 4;
const UNFINISHED = '\ufffd';

/**
 * Gives the text that each further token settles. A character whose bytes are spread over several tokens is held back
 * until it is whole.
 */
export class StreamDecoder {
  /** tokens[0, settled) have been given out. */
  private tokens: number[];
  private settled: number;

  constructor(
    private readonly decode: (tokens: number[]) => string,
    prompt: number[],
  ) {
    this.tokens = prompt.slice(-CONTEXT);
    this.settled = this.tokens.length;
  }

  /** Text that is settled after these further tokens. */
  push(tokens: number[]): string {
    this.tokens.push(...tokens);
    const text = this.tail();
    if (text === '' || text.endsWith(UNFINISHED)) return '';
    this.tokens = this.tokens.slice(-CONTEXT);
    this.settled = this.tokens.length;
    return text;
  }

  /** What is left, unfinished characters included. */
  finish(): string {
    return this.tail();
  }

  private tail(): string {
    const before = this.decode(this.tokens.slice(0, this.settled));
    return this.decode(this.tokens).slice(before.length);
  }
}
