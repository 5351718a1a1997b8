/**
 * The engine's public API: a model in a page, from a folder of static files.
 *
 *     const model = await Oxinfer.load('models/gemma3-270m-q4/', { onProgress });
 *     for await (const { text } of model.generate('The capital of France is')) output.append(text);
 *     model.close();
 */
import * as Comlink from 'comlink';
import { OxinferError, type Build, type ErrorName } from '../host';
import type {
  ChatMessage,
  EngineApi,
  GenerationMessage,
  ModelInfo,
  Sampling,
  Stats,
  TokenizerApi,
  KVPrecision,
} from './protocol';

export { OxinferError, type Build } from '../host';
export type { BenchResult, ChatMessage, ModelInfo, Sampling, Stats } from './protocol';

export interface LoadOptions {
  /** Kernel threads; by default one a core, at most 8. One where the page is not cross-origin isolated. */
  threads?: number;
  /** The kernel build; by default "relaxed" where the browser has relaxed SIMD. */
  kernel?: Build;
  /** Positions that a prompt and its answer may take together. */
  maxContext?: number;
  /** Precision of the KV cache, by default "f32"; "f16" takes half the memory. */
  kv?: KVPrecision;
  /** false: no tokenizer is read; the model then takes token ids and gives tokens without text. */
  tokenizer?: boolean;
  /** Address of the folder with pyodide/ and kernels/; by default the one that oxinfer-web.js is in. */
  site?: string;
  /** Told of loaded bytes and bytes in all, some ten times a second. */
  onProgress?: (done: number, total: number) => void;
  /** Gives the loading up; `load` then rejects with the signal's reason. */
  signal?: AbortSignal;
}

export interface GenerateOptions extends Partial<Sampling> {
  /** Ends the answer early; the loop then ends as if the answer were complete. */
  signal?: AbortSignal;
}

/** One generated token, and the text that it settles (possibly none yet); at the end, text without a token. */
export interface Piece {
  token: number | null;
  text: string;
}

/** The folder of this module: the build puts it at the site's root. */
const HOME = import.meta.url.replace(/[^/]*$/, '');
const DEFAULTS: Sampling = { maxTokens: 256, temperature: 0, topK: 64, topP: 0.95, seed: null };

export class Oxinfer {
  private constructor(
    /** The engine worker's own calls, for measuring and testing. */
    readonly engine: Comlink.Remote<EngineApi>,
    private readonly tokenizer: Comlink.Remote<TokenizerApi>,
    private readonly workers: Worker[],
    readonly info: ModelInfo,
  ) {}

  /** Load the model in folder `url`. Rejects with an OxinferError that says what is wrong and what to do. */
  static async load(url: string, options: LoadOptions = {}): Promise<Oxinfer> {
    const { threads, kernel, maxContext, kv, onProgress, signal } = options;
    signal?.throwIfAborted();
    const here = document.baseURI;
    const folder = new URL(url.endsWith('/') ? url : `${url}/`, here).href;
    const engineWorker = new Worker(new URL('./engine.ts', import.meta.url), { type: 'module' });
    const tokenizerWorker = new Worker(new URL('./tokenizer.ts', import.meta.url), { type: 'module' });
    const workers = [engineWorker, tokenizerWorker];
    const engine = Comlink.wrap<EngineApi>(engineWorker);
    const tokenizer = Comlink.wrap<TokenizerApi>(tokenizerWorker);
    const site = options.site === undefined ? HOME : new URL(`${options.site}/`.replace(/\/+$/, '/'), here).href;
    const progress = Comlink.proxy((done: number, total: number) => onProgress?.(done, total));
    const ended = new Promise<never>((_, reject) => {
      signal?.addEventListener('abort', () => {
        reject(signal.reason as Error);
      });
      for (const worker of workers)
        worker.onerror = (e) => {
          reject(new OxinferError('OxinferError', `a worker failed: ${e.message || 'its script did not load'}`));
        };
    });
    try {
      const loading = Promise.all([
        engine.load({ url: folder, site, kernel, threads, maxContext, kv }, progress),
        options.tokenizer === false ? undefined : tokenizer.load(folder),
      ]);
      const [info] = await Promise.race([loading, ended]);
      return new Oxinfer(engine, tokenizer, workers, info);
    } catch (e) {
      for (const worker of workers) worker.terminate();
      throw e;
    }
  }

  /** The ids of a text, special tokens that the model wants at the start included; or of a conversation. */
  encode(prompt: string | ChatMessage[]): Promise<number[]> {
    return typeof prompt === 'string' ? this.tokenizer.encode(prompt) : this.tokenizer.encodeChat(prompt);
  }

  /**
   * Continue a text, answer a conversation, or continue token ids. One at a time. A prompt that begins as the last one
   * and its answer did is not computed again from the start. Throws OxinferError.
   */
  async *generate(prompt: string | ChatMessage[] | number[], options: GenerateOptions = {}): AsyncGenerator<Piece> {
    const { signal, ...sampling } = options;
    const ids = isIds(prompt) ? prompt : await this.encode(prompt);
    const stream = await this.tokenizer.open(ids);
    const { port1: port, port2 } = new MessageChannel();
    const messages = inbox(port);
    const stop = (): void => {
      port.postMessage('stop');
    };
    signal?.addEventListener('abort', stop);
    if (signal?.aborted) stop();
    let started = false;
    try {
      await this.engine.generate(ids, { ...DEFAULTS, ...sampling }, Comlink.transfer(port2, [port2]));
      started = true;
      for await (const message of messages) {
        if (message.kind === 'end') break;
        if (message.kind === 'error') throw new OxinferError(message.name as ErrorName, message.message);
        yield { token: message.token, text: await this.tokenizer.push(stream, [message.token]) };
      }
      const rest = await this.tokenizer.rest(stream);
      if (rest) yield { token: null, text: rest };
    } finally {
      signal?.removeEventListener('abort', stop);
      // The loop may have been left early: the worker is free again once it has said so.
      stop();
      if (started) await messages.ended;
      port.close();
      void this.tokenizer.close(stream);
    }
  }

  /** The text of token ids, in the pieces in which `generate` would give it. */
  async pieces(ids: number[]): Promise<string[]> {
    const stream = await this.tokenizer.open([]);
    const pieces = [];
    for (const id of ids) pieces.push(await this.tokenizer.push(stream, [id]));
    pieces.push(await this.tokenizer.rest(stream));
    void this.tokenizer.close(stream);
    return pieces;
  }

  /** Bytes of kernel memory, and what the host tables have fetched. */
  stats(): Promise<Stats> {
    return this.engine.stats();
  }

  /** End the workers and give all memory back. */
  close(): void {
    for (const worker of this.workers) worker.terminate();
  }
}

const isIds = (prompt: string | ChatMessage[] | number[]): prompt is number[] => typeof prompt[0] === 'number';

/** A port's messages one after another; `ended` resolves when the last has arrived, read or not. */
function inbox(port: MessagePort): AsyncIterable<GenerationMessage> & { ended: Promise<void> } {
  const waiting: GenerationMessage[] = [];
  let wake: () => void = () => undefined;
  let close: () => void = () => undefined;
  const ended = new Promise<void>((resolve) => {
    close = resolve;
  });
  port.onmessage = ({ data }: MessageEvent<GenerationMessage>) => {
    waiting.push(data);
    if (data.kind !== 'token') close();
    wake();
  };
  async function* read(): AsyncGenerator<GenerationMessage> {
    for (;;) {
      const next = waiting.shift();
      if (next) yield next;
      else
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
    }
  }
  return { ended, [Symbol.asyncIterator]: read };
}
