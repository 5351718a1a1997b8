/** What scripts use to measure and test the engine in a browser: `window.oxinfer`. */
import {
  Oxinfer,
  type BenchResult,
  type Build,
  type ChatMessage,
  type EncodeOptions,
  type ModelInfo,
  type Stats,
} from '../engine/client';
import { promptText } from './text';

const REPEATS = 3;

/** A model to load: its folder, and how to run it. */
interface Run {
  model: string;
  threads?: number;
  kernel?: Build;
  maxContext?: number;
}

interface BenchOptions extends Run {
  promptTokens?: number;
  generate?: number;
}

interface ProbeOptions extends Run {
  ids: number[];
  generate?: number;
}

/** logits: of the token after ids; tokens: the greedy continuation; nll: the mean over ids, in nats a token.
 *  memory and host are those after logits and tokens, before nll. */
interface Probe extends Stats, ModelInfo {
  logits: number[];
  tokens: number[];
  nll: number;
}

interface BenchReport extends Stats {
  model: string;
  kernel: Build;
  threads: number;
  load_ms: number;
  prompt_tokens: number;
  prefill_tok_s: number;
  generated_tokens: number;
  decode_tok_s: number;
  /** Of a decoded token's time, what is spent outside the kernels, in Python and JavaScript. */
  overhead_ms: number;
  tokens: number[];
}

interface TextOptions {
  prompts?: ({ prompt: string | ChatMessage[] } & EncodeOptions)[];
  renders?: { messages: ChatMessage[]; variables: Record<string, unknown>; template?: string }[];
  tokens?: number[][];
}

/** ids: of each prompt; rendered: prompts, or the error; pieces: of tokens that come one by one. */
interface TextReport {
  ids: number[][];
  rendered: string[];
  pieces: string[][];
}

/** What the benchmark has `open` keep for `measure`. */
let held: Oxinfer | undefined;

function opened(): Oxinfer {
  if (!held) throw new Error('no model is open');
  return held;
}

/** Load the model, let `use` work with it, and close it. */
async function withModel<T>(
  run: Run & { tokenizer?: boolean },
  use: (model: Oxinfer, loadMs: number) => Promise<T>,
): Promise<T> {
  const start = performance.now();
  const model = await Oxinfer.load(run.model, run);
  try {
    return await use(model, performance.now() - start);
  } finally {
    model.close();
  }
}

const api = {
  /** Prefill and decode speed, best of three after a warm-up; greedy, the end of an answer ignored. */
  bench: ({ promptTokens = 128, generate = 48, ...run }: BenchOptions): Promise<BenchReport> =>
    withModel({ maxContext: promptTokens + generate, ...run }, async (model, loadMs) => {
      const ids = (await model.encode(promptText(promptTokens))).slice(0, promptTokens);
      const result = await model.call((engine) => engine.bench({ ids, generate, repeats: REPEATS }));
      return {
        model: run.model,
        kernel: model.info.kernel,
        threads: model.info.threads,
        load_ms: loadMs,
        prompt_tokens: ids.length,
        prefill_tok_s: result.prefill_tok_s,
        generated_tokens: result.tokens.length,
        decode_tok_s: result.decode_tok_s,
        overhead_ms: result.overhead_ms,
        tokens: result.tokens,
        ...(await model.stats()),
      };
    }),

  /** Load a model for `measure`; without a tokenizer it takes ids only. */
  open: async (run: Run & { tokenizer?: boolean }): Promise<ModelInfo> => {
    held?.close();
    held = await Oxinfer.load(run.model, run);
    return held.info;
  },

  /** The first `count` ids of the prompt text, and the text that they are. */
  prompt: async (count: number): Promise<{ ids: number[]; text: string }> => {
    const ids = (await opened().encode(promptText(count))).slice(0, count);
    return { ids, text: (await opened().pieces(ids)).join('') };
  },

  /** Speed of the open model over one pass, after one to warm up. */
  measure: async (request: { ids: number[]; generate: number; profile?: boolean }): Promise<BenchResult & Stats> => ({
    ...(await opened().call((engine) => engine.bench({ ...request, repeats: 1 }))),
    ...(await opened().stats()),
  }),

  /** Load a model and begin to answer; milliseconds from opening the page to the end of loading and the first token. */
  firstToken: async ({ prompt, ...run }: Run & { prompt: string }): Promise<{ loaded: number; first: number }> => {
    held = await Oxinfer.load(run.model, run);
    const loaded = performance.now();
    for await (const { token } of held.generate(prompt, { maxTokens: 1 }))
      if (token !== null) return { loaded, first: performance.now() };
    throw new Error('the model gave no token');
  },

  /** Let the open model answer, as before an idle page; the number of its tokens. */
  answer: async ({ prompt, tokens }: { prompt: string; tokens: number }): Promise<number> => {
    let count = 0;
    for await (const { token } of opened().generate(prompt, { maxTokens: tokens })) count += token === null ? 0 : 1;
    return count;
  },

  /** What a model makes of ids: for checking one build, host or thread count against another. */
  probe: ({ ids, generate = 0, ...run }: ProbeOptions): Promise<Probe> =>
    withModel({ ...run, tokenizer: false }, async (model) => {
      const logits = [...(await model.call((engine) => engine.logits(ids)))];
      const tokens = generate > 0 ? await model.call((engine) => engine.greedy(ids, generate)) : [];
      const stats = await model.stats();
      return { ...model.info, logits, tokens, ...stats, nll: await model.call((engine) => engine.nll(ids)) };
    }),

  /** What the model's tokenizer and chat templates make of many things. `given` is JSON: it may have half characters. */
  text: ({ given, ...run }: Run & { given: string }): Promise<TextReport> =>
    withModel(run, async (model) => {
      const { prompts = [], renders = [], tokens = [] } = JSON.parse(given) as TextOptions;
      return {
        ids: await Promise.all(prompts.map(({ prompt, ...options }) => model.encode(prompt, options))),
        rendered: await Promise.all(
          renders.map(({ messages, variables, template }) =>
            model.render(messages, variables, template).catch((e: unknown) => String(e)),
          ),
        ),
        pieces: await Promise.all(tokens.map((ids) => model.pieces(ids))),
      };
    }),
};

declare global {
  interface Window {
    ready: boolean;
    oxinfer: typeof api;
  }
}

window.oxinfer = api;
window.ready = true;
