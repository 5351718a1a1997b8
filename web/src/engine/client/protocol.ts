/** What the page and the engine worker say to each other. */
import type { Build, HostStats } from '../host';

/** Precision of the KV cache. "f16" halves its memory; NLL of a reference text stays within 0.5 %. */
export type KVPrecision = 'f32' | 'f16';

export interface EngineOptions {
  /** The model's folder. */
  url: string;
  /** Where the site's pyodide/ and kernels/ are, ending in a slash. */
  site: string;
  /** What the names of the model's locks begin with. */
  lock: string;
  kernel?: Build;
  threads?: number;
  /** Positions that a conversation may have; by default as many as the model was made for, within limits. */
  maxContext?: number;
  kv?: KVPrecision;
  /** See LoadOptions. */
  stallSeconds?: number;
}

/** Bytes of kernel memory. */
export interface MemoryStats {
  weights: number;
  kv: number;
  buffers: number;
  total: number;
}

export interface ModelInfo {
  modelType: string;
  kernel: Build;
  threads: number;
  maxContext: number;
  vocabSize: number;
  /** Tokens that end an answer. */
  eos: number[];
  /** How the model's makers would have it sampled, as far as its generation_config.json says (temperature 0 is greedy). */
  defaults: Partial<Record<'maxTokens' | 'temperature' | 'topK' | 'topP' | 'minP', number>>;
}

export interface Stats {
  memory: MemoryStats;
  host: HostStats;
}

/** Settings of an answer; null takes what the model's makers recommend (ModelInfo.defaults), or what stands here. */
export interface Sampling {
  /** 256. */
  maxTokens: number | null;
  /** 0, which takes the likeliest token every time. */
  temperature: number | null;
  /** The likeliest tokens that are chosen among: 64, and at most that. */
  topK: number | null;
  /** The part of their probability that is chosen among: 1. */
  topP: number | null;
  /** How likely a token has to be, beside the likeliest: 0. */
  minP: number | null;
  /** Makes an answer repeatable; null is another answer every time. */
  seed: number | null;
}

/** How an answer ended, and what it came to. */
export interface Ended {
  /** The model ended its answer; maxTokens or the context were used up; or the answer was stopped. */
  reason: 'stop' | 'length' | 'cancelled';
  promptTokens: number;
  /** Those of the prompt that did not have to be computed again; 0 for an answer stopped before it began. */
  cachedTokens: number;
  completionTokens: number;
}

/** From the engine worker, through the port of one generation; any message back is a wish to stop. */
export type GenerationMessage =
  { kind: 'token'; token: number } | { kind: 'end'; end: Ended } | { kind: 'error'; name: string; message: string };

export interface BenchRequest {
  ids: number[];
  generate: number;
  repeats: number;
  /** Whether to time each kind of op too, in a pass of its own. */
  profile?: boolean;
}

export interface BenchResult {
  prefill_tok_s: number;
  decode_tok_s: number;
  overhead_ms: number;
  tokens: number[];
  /** With `profile`: milliseconds a token by kind of op, in "prefill" and in "decode". */
  kinds: Record<string, Record<string, number>>;
}

/** What every worker of a model can be asked. */
export interface WorkerApi {
  /** Hold the Web Lock of that name until the worker is gone, however it goes; resolves when it is held. */
  hold(lock: string): Promise<void>;
}

/** Requests that run the model wait for each other. */
export interface EngineApi extends WorkerApi {
  /** onFailed: told, before the call in question rejects, that the engine can serve no more calls. */
  load(
    options: EngineOptions,
    onProgress: (done: number, total: number) => void,
    onThreads: (threads: number) => void,
    onFailed: (message: string) => void,
  ): Promise<ModelInfo>;
  /** Open a conversation: its number. */
  open(): number;
  close(conversation: number): Promise<void>;
  generate(conversation: number, ids: number[], sampling: Sampling, port: MessagePort): void;
  stats(): Stats;
  bench(request: BenchRequest): Promise<BenchResult>;
  /** The likeliest continuation of n tokens, whatever it says. */
  greedy(ids: number[], n: number): Promise<number[]>;
  /** Mean negative log-likelihood, in nats, of each token but the first. */
  nll(ids: number[]): Promise<number>;
  /** Logits of the token after ids. */
  logits(ids: number[]): Promise<Float32Array>;
}

export interface ChatMessage {
  role: 'system' | 'user' | 'assistant';
  content: string;
}

export interface TokenizerApi extends WorkerApi {
  load(url: string, stallSeconds: number | undefined, onProgress: (done: number, total: number) => void): Promise<void>;
  /** controlTokens: whether control tokens in the text are that, and not text. */
  encode(text: string, controlTokens: boolean): number[];
  /**
   * The ids of a conversation as the model's chat template writes it, with the answer opened; variables: what else the
   * template reads, as `tools`. Throws ConfigError.
   */
  encodeChat(messages: ChatMessage[], controlTokens: boolean, variables?: Record<string, unknown>): number[];
  /** The prompt that the chat template makes, or another: its name or itself. Throws ConfigError. */
  render(messages: ChatMessage[], variables: Record<string, unknown>, template?: string): string;
  /** Begin turning tokens into text; returns the stream's number. */
  open(prompt: number[]): number;
  /** Text that is settled after these further tokens. */
  push(stream: number, tokens: number[]): string;
  /** What is left at the end, unfinished characters included. */
  rest(stream: number): string;
  close(stream: number): void;
}
