/** One conversation with a model, and its answers. */
import * as Comlink from 'comlink';
import { OxinferError, type ErrorName } from '../host';
import type { Life } from './life';
import type { ChatMessage, Ended, EngineApi, GenerationMessage, Sampling, TokenizerApi } from './protocol';

export type Prompt = string | ChatMessage[] | number[];

export interface GenerateOptions extends Partial<Sampling> {
  /** Ends the answer early; the loop then ends as if the answer were complete, with the reason "cancelled". */
  signal?: AbortSignal;
  /** true: control tokens in the prompt, as "<bos>", are that; by default they are text like any other. */
  controlTokens?: boolean;
  /** What else the chat template reads, as `{ tools: [...] }` or `{ enable_thinking: false }`. */
  variables?: Record<string, unknown>;
}

/** How a prompt becomes token ids. */
export type EncodeOptions = Pick<GenerateOptions, 'controlTokens' | 'variables'>;

/** One generated token, and the text that it settles (possibly none yet); at the end, text without a token. */
export interface Piece {
  token: number | null;
  text: string;
}

/** What a session works with. */
export interface Parts {
  life: Life;
  engine: Comlink.Remote<EngineApi>;
  /** undefined: tokens have no text. */
  tokenizer: Comlink.Remote<TokenizerApi> | undefined;
}

/** How long a stopped answer may take to say how far it got. */
const LAST_WORDS_MS = 500;

/** The pieces of an answer, to be read once with `for await`; then `end` says how it ended. */
export class Generation implements AsyncIterable<Piece> {
  /** undefined while the answer goes on, and after an error. */
  end: Ended | undefined;

  private readonly pieces: AsyncGenerator<Piece>;

  constructor(start: (ended: (end: Ended) => void) => AsyncGenerator<Piece>) {
    this.pieces = start((end) => {
      this.end = end;
    });
  }

  [Symbol.asyncIterator](): AsyncGenerator<Piece> {
    return this.pieces;
  }
}

export class Session {
  private number: Promise<number> | undefined;
  private readonly closing = new AbortController();

  constructor(private readonly parts: Parts) {}

  /**
   * Continue a text, answer a conversation, or continue token ids. A prompt that begins as this session's last one and
   * its answer did is not computed again from the start. A model answers one request at a time, the others wait for
   * their turn. The loop throws OxinferError.
   */
  generate(prompt: Prompt, options: GenerateOptions = {}): Generation {
    return new Generation((ended) => this.answer(prompt, options, ended));
  }

  /** End what it is answering, and give its memory back. */
  async close(): Promise<void> {
    if (this.closing.signal.aborted) return;
    this.closing.abort();
    const { number } = this;
    if (!number || this.parts.life.over) return;
    await this.parts.life.during(async () => this.parts.engine.close(await number));
  }

  private async *answer(
    prompt: Prompt,
    options: GenerateOptions,
    ended: (end: Ended) => void,
  ): AsyncGenerator<Piece, void> {
    const { life, engine, tokenizer } = this.parts;
    if (this.closing.signal.aborted)
      throw new OxinferError('SessionError', 'this session is closed; open another one with model.session()');
    const settings = sampling(options);
    const signal = options.signal ? AbortSignal.any([options.signal, this.closing.signal]) : this.closing.signal;
    const end: Ended = { reason: 'cancelled', promptTokens: 0, cachedTokens: 0, completionTokens: 0 };
    const done = life.answering();
    let messages: Inbox | undefined;
    let stream: number | undefined;
    try {
      const ids = isIds(prompt) ? checked(prompt) : await life.during(() => encode(tokenizer, prompt, options), signal);
      end.promptTokens = ids.length;
      stream = await life.during(async () => tokenizer?.open(isChat(prompt) ? [] : ids), signal);
      this.number ??= life.during(() => engine.open());
      const number = await this.number;
      messages = new Inbox(life, signal, end);
      const port = messages.other;
      void life
        .during(() => engine.generate(number, ids, settings, Comlink.transfer(port, [port])))
        .catch(() => undefined);
      let last = await messages.next();
      for (; last.kind === 'token'; last = await messages.next()) {
        const { token } = last;
        end.completionTokens++;
        yield { token, text: await this.text(stream, token) };
      }
      const rest = await this.text(stream);
      if (rest) yield { token: null, text: rest };
      if (last.kind === 'error') throw new OxinferError(last.name as ErrorName, last.message);
      Object.assign(end, last.end);
      ended(end);
    } catch (e) {
      if (!signal.aborted || life.over) throw e;
      ended(end);
    } finally {
      done();
      messages?.close();
      const open = stream;
      if (open !== undefined) void life.during(async () => tokenizer?.close(open)).catch(() => undefined);
    }
  }

  /** The text that a further token settles; without one what is left, unfinished characters included. */
  private async text(stream: number | undefined, token?: number): Promise<string> {
    const { life, tokenizer } = this.parts;
    if (stream === undefined || !tokenizer) return '';
    return life.during(() => (token === undefined ? tokenizer.rest(stream) : tokenizer.push(stream, [token])));
  }
}

/** The messages of one answer, in order; the last is an end or an error, and comes whatever happens. */
class Inbox {
  /** For the engine. */
  readonly other: MessagePort;
  private readonly port: MessagePort;
  private readonly waiting: GenerationMessage[] = [];
  private wake: () => void = () => undefined;
  private readonly forget: () => void;
  private over: Error | undefined;
  private timer: ReturnType<typeof setTimeout> | undefined;

  /** end: what is said of the answer where it is stopped and the engine does not say. */
  constructor(
    life: Life,
    private readonly signal: AbortSignal,
    private readonly end: Ended,
  ) {
    const { port1, port2 } = new MessageChannel();
    this.port = port1;
    this.other = port2;
    port1.onmessage = ({ data }: MessageEvent<GenerationMessage>) => {
      this.put(data);
    };
    this.forget = life.whenOver((reason) => {
      this.over = reason;
      this.wake();
    });
    signal.addEventListener('abort', this.stop);
    if (signal.aborted) this.stop();
  }

  /** Rejects when the model ends. */
  async next(): Promise<GenerationMessage> {
    for (;;) {
      if (this.over) throw this.over;
      const next = this.waiting.shift();
      if (next) return next;
      await new Promise<void>((resolve) => {
        this.wake = resolve;
      });
    }
  }

  /** Nothing more is wanted. */
  close(): void {
    this.forget();
    this.signal.removeEventListener('abort', this.stop);
    clearTimeout(this.timer);
    this.port.postMessage('stop');
    this.port.close();
  }

  private readonly stop = (): void => {
    this.port.postMessage('stop');
    this.timer = setTimeout(() => {
      this.put({ kind: 'end', end: this.end });
    }, LAST_WORDS_MS);
  };

  private put(message: GenerationMessage): void {
    this.waiting.push(message);
    this.wake();
  }
}

const isIds = (prompt: Prompt): prompt is number[] => typeof prompt !== 'string' && typeof prompt[0] !== 'object';

/** An answer to a conversation is a text of its own; everything else continues the prompt's. */
const isChat = (prompt: Prompt): boolean => typeof prompt !== 'string' && !isIds(prompt);

/** The ids of a text, special tokens that the model wants at the start included; or of a conversation. */
export async function encode(
  tokenizer: Comlink.Remote<TokenizerApi> | undefined,
  prompt: string | ChatMessage[],
  { controlTokens = false, variables }: EncodeOptions,
): Promise<number[]> {
  return typeof prompt === 'string'
    ? needed(tokenizer).encode(prompt, controlTokens)
    : needed(tokenizer).encodeChat(prompt, controlTokens, variables);
}

/** Throws a SessionError where there is no tokenizer. */
export function needed(tokenizer: Parts['tokenizer']): Comlink.Remote<TokenizerApi> {
  if (!tokenizer) throw new OxinferError('SessionError', 'the model was loaded without a tokenizer; give token ids');
  return tokenizer;
}

function checked(ids: number[]): number[] {
  const bad = ids.findIndex((id) => !Number.isSafeInteger(id));
  if (bad >= 0)
    throw new OxinferError('SessionError', `the prompt's token ${bad} is ${ids[bad]}; ids are whole numbers`);
  return ids;
}

/** The settings, checked: JSON, by which Python gets them, knows finite numbers only. */
function sampling(given: Partial<Sampling>): Sampling {
  const { maxTokens = null, temperature = null, topK = null, topP = null, minP = null, seed = null } = given;
  const settings: Sampling = { maxTokens, temperature, topK, topP, minP, seed };
  for (const [name, value] of Object.entries(settings) as [string, number | null][])
    if (value !== null && !Number.isFinite(value))
      throw new OxinferError('SessionError', `${name} is ${value}; it must be a number`);
  if (maxTokens !== null && !(Number.isInteger(maxTokens) && maxTokens >= 0))
    throw new OxinferError('SessionError', `maxTokens is ${maxTokens}; it must be a whole number`);
  return settings;
}
