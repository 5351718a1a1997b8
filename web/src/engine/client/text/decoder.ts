/** Turning tokens into text while they come; the same as py/oxinfer_web/text/pieces.py. */

/** How many tokens before a piece are decoded with it, as a token's text may depend on what is before it. */
const CONTEXT = 4;
const UNFINISHED = '\ufffd';

/** What is known of tokens. */
export interface Vocabulary {
  decode(tokens: number[]): string;
  /** Whether a token stands for one byte. */
  isByte(token: number): boolean;
  /** Whether a token has no text. */
  isSilent(token: number): boolean;
}

/**
 * Gives the text that each further token settles. A character whose bytes are spread over several tokens is held back
 * until it is whole. All pieces together are what `decode` makes of all tokens: where bytes make no character, U+FFFD.
 * So tokens that stand for a byte are held back up to the first that does not, because one wrong byte spoils them all.
 */
export class PieceDecoder {
  /** tokens[0, settled) have been given out. */
  private tokens: number[];
  private settled: number;

  /** prompt: what goes before and is not given again. */
  constructor(
    private readonly vocabulary: Vocabulary,
    prompt: number[],
  ) {
    this.tokens = prompt.filter((token) => !vocabulary.isSilent(token)).slice(-CONTEXT);
    this.settled = this.tokens.length;
  }

  /** Text that is settled after these further tokens. */
  push(tokens: number[]): string {
    return tokens.map((token) => this.one(token)).join('');
  }

  /** What has been held back, unfinished characters as U+FFFD. */
  rest(): string {
    const before = this.vocabulary.decode(this.tokens.slice(0, this.settled));
    const text = this.vocabulary.decode(this.tokens);
    let common = 0;
    while (common < before.length && before[common] === text[common]) common++;
    return text.slice(common);
  }

  private one(token: number): string {
    if (this.vocabulary.isSilent(token)) return '';
    this.tokens.push(token);
    if (this.vocabulary.isByte(token)) return '';
    const text = this.rest();
    if (text.endsWith(UNFINISHED)) return '';
    this.tokens = this.tokens.slice(-CONTEXT);
    this.settled = this.tokens.length;
    return text;
  }
}
