/** Text to token ids and back, with the library's normalizer, pre-tokenizer and model, as the tokenizers package does. */
import {
  BPE,
  ByteFallbackDecoder,
  SequenceDecoder,
  Tokenizer,
  type Decoder,
  type Model,
} from '@huggingface/tokenizers';
import type { AddedToken, TokenizerConfig } from './config';
import { Texts } from './control';
import type { Vocabulary } from './decoder';
import { correctNormalizer } from './normalizer';
import { correct } from './pretokenizer';

/** What is read of tokenizer.json. */
export interface TokenizerJson {
  added_tokens?: AddedToken[];
  model: { vocab: Record<string, unknown> };
}

/** A part of a text: a token that text is cut at, or what is between two. */
interface Section {
  text: string;
  token?: AddedToken;
  /** Whether it begins the whole text. */
  first: boolean;
}

/** Where control tokens are control tokens: everywhere, nowhere, or where they begin at one of these code units. */
export type Accepted = boolean | ReadonlySet<number>;

const SPACES_BEFORE = /\p{White_Space}*$/u;
const SPACES_AFTER = /^\p{White_Space}*/u;
const WORD = '[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\u200c\\u200d]';
const ENDS_WITH_WORD = new RegExp(`${WORD}$`, 'u');
const STARTS_WITH_WORD = new RegExp(`^${WORD}`, 'u');
const BYTE = /^<0x([0-9A-Fa-f]{2})>$/;

export class Encoder implements Vocabulary {
  /** The tokens that are control tokens. */
  readonly control: Texts;

  private readonly tokenizer: Tokenizer;
  private readonly added = new Map<string, AddedToken>();
  /** Added tokens as they are in a text, and in a normalized one. */
  private readonly plain: Texts;
  private readonly normalized = new Map<string, AddedToken>();
  private readonly normalizedTexts: Texts;
  /** What decoders get for tokens that are not found as they are written. */
  private readonly shown = new Map<number, string>();
  private readonly silent = new Set<number>();

  /** Throws what the library throws where it cannot use tokenizer.json. */
  constructor(json: TokenizerJson, config: TokenizerConfig) {
    const added = config.addTo(json.added_tokens ?? [], json.model.vocab);
    const parts = { normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null };
    this.tokenizer = new Tokenizer({ ...parts, ...json, added_tokens: added }, {});
    correctNormalizer(this.tokenizer.normalizer);
    correct(this.tokenizer.pre_tokenizer);
    correctModel(this.tokenizer.model);
    correctDecoder(this.tokenizer.decoder);
    const plain = [];
    for (const token of added) {
      this.added.set(token.content, token);
      // The library adds them to the model's tokens, where a text that is one would be found again.
      if (!Object.hasOwn(json.model.vocab, token.content)) this.tokenizer.model?.tokens_to_ids.delete(token.content);
      if (token.special) this.silent.add(token.id);
      const { normalizer } = this.tokenizer;
      if (token.normalized && normalizer) {
        const normal = normalizer.normalize(token.content);
        this.normalized.set(normal, token);
        this.shown.set(token.id, normal);
      } else plain.push(token.content);
    }
    this.control = new Texts(added.filter((token) => config.isControl(token)).map(({ content }) => content));
    this.plain = new Texts(plain);
    this.normalizedTexts = new Texts(this.normalized.keys());
  }

  /** Token ids of a text; special: with the tokens the tokenizer puts around it (bos). */
  encode(given: string, special: boolean, control: Accepted): number[] {
    const { normalizer, pre_tokenizer: preTokenizer, model, post_processor: postProcessor } = this.tokenizer;
    const tokens: string[] = [];
    for (const { text, token, first } of this.sections(given.toWellFormed(), control)) {
      if (token) {
        tokens.push(token.content);
        continue;
      }
      const normal = normalizer ? normalizer.normalize(text) : text;
      const inner = this.cut(normal, this.normalizedTexts, (found) => this.normalized.get(found), control === true);
      for (const section of inner) {
        const words = { section_index: first && section.first ? 0 : 1 };
        if (section.token) tokens.push(section.token.content);
        else tokens.push(...(model?._call(preTokenizer?.pre_tokenize(section.text, words) ?? [section.text]) ?? []));
      }
    }
    const all = postProcessor ? postProcessor.post_process(tokens, null, special).tokens : tokens;
    return all
      .map((token) => this.added.get(token)?.id ?? model?.tokens_to_ids.get(token) ?? model?.unk_token_id)
      .filter((id) => id !== undefined);
  }

  /** The text of token ids, special tokens left out. */
  decode(ids: number[]): string {
    const tokens = ids
      .filter((id) => !this.isSilent(id))
      .map((id) => this.shown.get(id) ?? this.tokenizer.id_to_token(id) ?? '');
    return tokens.length > 0 ? (this.tokenizer.decoder?.decode(tokens) ?? tokens.join(' ')) : '';
  }

  isByte(id: number): boolean {
    return BYTE.test(this.tokenizer.id_to_token(id) ?? '');
  }

  isSilent(id: number): boolean {
    return this.silent.has(id) || this.tokenizer.id_to_token(id) === undefined;
  }

  private sections(text: string, control: Accepted): Section[] {
    if (typeof control === 'boolean') return this.cut(text, this.plain, (found) => this.added.get(found), control);
    const all = new Texts([...this.plain.texts, ...this.control.texts]);
    return this.cut(text, all, (found) => this.added.get(found), control);
  }

  /** Cut a text at tokens, the longest at each place, with the spaces that they take. */
  private cut(
    text: string,
    texts: Texts,
    tokenOf: (found: string) => AddedToken | undefined,
    control: Accepted,
  ): Section[] {
    const sections: Section[] = [];
    let end = 0;
    for (let i = 0; i < text.length;) {
      const found = texts.at(text, i);
      const token = found === undefined ? undefined : tokenOf(found);
      if (found === undefined || !token) {
        i++;
        continue;
      }
      const [before, after] = [text.slice(0, i), text.slice(i + found.length)];
      const accepted = typeof control === 'boolean' ? control : control.has(i);
      const inWord = token.single_word && (ENDS_WITH_WORD.test(before) || STARTS_WITH_WORD.test(after));
      if (!inWord && (accepted || !this.control.texts.has(token.content))) {
        const start = token.lstrip ? Math.max(end, before.length - (SPACES_BEFORE.exec(before)?.[0].length ?? 0)) : i;
        if (end < start) sections.push({ text: text.slice(end, start), first: end === 0 });
        sections.push({ text: found, token, first: false });
        end = i + found.length + (token.rstrip ? (SPACES_AFTER.exec(after)?.[0].length ?? 0) : 0);
      }
      i += found.length;
    }
    if (end < text.length) sections.push({ text: text.slice(end), first: end === 0 });
    return sections;
  }
}

/** Make the library's model leave out what it has no token for before it joins what is left and right of it. */
function correctModel(model: Model | null): void {
  if (!(model instanceof BPE) || model.unk_token || model.byte_fallback || model.end_of_word_suffix) return;
  const whole = model.bpe.bind(model);
  const has = (character: string): boolean => model.tokens_to_ids.has(character);
  model.bpe = (word) => whole(Array.from(word).every(has) ? word : Array.from(word).filter(has).join(''));
}

/** Make the library's decoder give, for a run of bytes that are no text, one U+FFFD a byte. */
function correctDecoder(decoder: Decoder | null): void {
  if (decoder instanceof SequenceDecoder) for (const step of decoder.decoders) correctDecoder(step);
  else if (decoder instanceof ByteFallbackDecoder) decoder.decode_chain = joinBytes;
}

function joinBytes(tokens: string[]): string[] {
  const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  const texts: string[] = [];
  let bytes: number[] = [];
  const flush = (): void => {
    if (bytes.length === 0) return;
    try {
      texts.push(utf8.decode(Uint8Array.from(bytes)));
    } catch {
      texts.push('\ufffd'.repeat(bytes.length));
    }
    bytes = [];
  };
  for (const token of tokens) {
    const byte = BYTE.exec(token)?.[1];
    if (byte === undefined) {
      flush();
      texts.push(token);
    } else bytes.push(parseInt(byte, 16));
  }
  flush();
  return texts;
}
