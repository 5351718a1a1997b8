/**
 * The engine's public API: a model in a page, from a folder of static files.
 *
 *     const model = await Oxinfer.load('models/gemma3-270m-q4/', { onProgress });
 *     for await (const { text } of model.generate('The capital of France is')) output.append(text);
 *     model.close();
 */
import * as Comlink from 'comlink';
import { version } from '../../../package.json';
import type { Build } from '../host';
import { threadLock } from './assets';
import { Life, type State } from './life';
import { together } from './progress';
import type { ChatMessage, EngineApi, KVPrecision, ModelInfo, Stats, TokenizerApi } from './protocol';
import {
  encode,
  needed,
  Session,
  type EncodeOptions,
  type GenerateOptions,
  type Generation,
  type Parts,
  type Prompt,
} from './session';

export { OxinferError, type Build } from '../host';
export type { State } from './life';
export type { BenchResult, ChatMessage, Ended, ModelInfo, Sampling, Stats } from './protocol';
export type { EncodeOptions, GenerateOptions, Generation, Piece, Prompt, Session } from './session';

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
  /** Seconds without a byte, by default 20, after which a request is given up; it is tried once more. */
  stallSeconds?: number;
  /** Told of loaded bytes and bytes in all, the tokenizer's included, some ten times a second. */
  onProgress?: (done: number, total: number) => void;
  /** Gives the loading up; `load` then rejects with the signal's reason. */
  signal?: AbortSignal;
}

/** The folder of this module: the build puts it at the site's root. */
const HOME = import.meta.url.replace(/[^/]*$/, '');

export class Oxinfer {
  /** The package's version, that of the wheel in the same site. */
  static readonly version: string = version;

  /** The session of `generate`. */
  private readonly main: Session;

  private constructor(
    private readonly parts: Parts,
    readonly info: ModelInfo,
  ) {
    this.main = this.session();
  }

  /** Load the model in folder `url`. Rejects with an OxinferError that says what is wrong and what to do. */
  static async load(url: string, options: LoadOptions = {}): Promise<Oxinfer> {
    const { threads, kernel, maxContext, kv, stallSeconds, onProgress, signal } = options;
    signal?.throwIfAborted();
    const here = document.baseURI;
    const folder = new URL(url.endsWith('/') ? url : `${url}/`, here).href;
    const site = options.site === undefined ? HOME : new URL(`${options.site}/`.replace(/\/+$/, '/'), here).href;
    const life = new Life();
    const engine = life.adopt<EngineApi>(
      new Worker(new URL('./engine.ts', import.meta.url), { type: 'module' }),
      'engine',
    );
    const tokenizer =
      options.tokenizer === false
        ? undefined
        : life.adopt<TokenizerApi>(
            new Worker(new URL('./tokenizer.ts', import.meta.url), { type: 'module' }),
            'tokenizer',
          );
    const [engineTold, tokenizerTold] = together((done, total) => onProgress?.(done, total));
    const threadsRun = Comlink.proxy((n: number) => {
      for (let tid = 1; tid < n; tid++) life.watch(threadLock(life.lock, tid), 'kernel thread');
    });
    const failed = Comlink.proxy((message: string) => {
      life.fail(message);
    });
    try {
      const loading = (): Promise<[ModelInfo, unknown]> =>
        Promise.all([
          engine.load(
            { url: folder, site, lock: life.lock, kernel, threads, maxContext, kv, stallSeconds },
            Comlink.proxy(engineTold),
            threadsRun,
            failed,
          ),
          tokenizer?.load(folder, stallSeconds, Comlink.proxy(tokenizerTold)),
        ]);
      const [info] = await life.during(loading, signal);
      life.ready();
      return new Oxinfer({ life, engine, tokenizer }, info);
    } catch (e) {
      life.close();
      throw e;
    }
  }

  /** "answering" while any of its sessions is; "failed" when it has to be loaded again. */
  get state(): State {
    return this.parts.life.state;
  }

  /** The ids of a text, special tokens that the model wants at the start included; or of a conversation. */
  encode(prompt: string | ChatMessage[], options: EncodeOptions = {}): Promise<number[]> {
    return this.parts.life.during(() => encode(this.parts.tokenizer, prompt, options));
  }

  /** The prompt that a chat template, by default the model's, makes of a conversation; variables: what else it reads. */
  render(messages: ChatMessage[], variables: Record<string, unknown> = {}, template?: string): Promise<string> {
    return this.parts.life.during(async () => needed(this.parts.tokenizer).render(messages, variables, template));
  }

  /** See `Session.generate`; for pages with one conversation. */
  generate(prompt: Prompt, options: GenerateOptions = {}): Generation {
    return this.main.generate(prompt, options);
  }

  /** A conversation of its own beside the others: it keeps what it has computed. Close it to give its memory back. */
  session(): Session {
    return new Session(this.parts);
  }

  /** The text of token ids, in the pieces in which `generate` would give it. */
  pieces(ids: number[]): Promise<string[]> {
    const { life, tokenizer } = this.parts;
    return life.during(async () => {
      if (!tokenizer) return ids.map(() => '');
      const stream = await tokenizer.open([]);
      const pieces = [];
      for (const id of ids) pieces.push(await tokenizer.push(stream, [id]));
      pieces.push(await tokenizer.rest(stream));
      await tokenizer.close(stream);
      return pieces;
    });
  }

  /** Bytes of kernel memory, and what the host tables have fetched. */
  stats(): Promise<Stats> {
    return this.call((engine) => engine.stats());
  }

  /** The engine worker's own calls, for measuring and testing. */
  call<T>(use: (engine: Comlink.Remote<EngineApi>) => Promise<T>): Promise<T> {
    return this.parts.life.during(() => use(this.parts.engine));
  }

  /** End the workers and give all memory back; whatever still waits for an answer gets an error. */
  close(): void {
    this.parts.life.close();
  }
}
