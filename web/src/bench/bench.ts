/** What scripts use to measure and test the engine in a browser: `window.oxinfer`. */
import { Oxinfer, type Stats } from '../engine';
import type { Build } from '../engine/kernels';
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

interface BenchReport extends Stats {
  model: string;
  kernel: Build;
  threads: number;
  load_ms: number;
  prompt_tokens: number;
  prefill_tok_s: number;
  generated_tokens: number;
  decode_tok_s: number;
  tokens: number[];
}

/** Load the model, let `use` work with it, and close it. */
async function withModel<T>(run: Run & { tokenizer?: boolean }, use: (model: Oxinfer, loadMs: number) => Promise<T>): Promise<T> {
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
      const result = await model.engine.bench({ ids, generate, repeats: REPEATS });
      return {
        model: run.model,
        kernel: model.info.kernel,
        threads: model.info.threads,
        load_ms: loadMs,
        prompt_tokens: ids.length,
        prefill_tok_s: result.prefill_tok_s,
        generated_tokens: result.tokens.length,
        decode_tok_s: result.decode_tok_s,
        tokens: result.tokens,
        ...(await model.stats()),
      };
    }),

  /** The likeliest n tokens after ids. */
  greedy: ({ ids, n, ...run }: Run & { ids: number[]; n: number }): Promise<number[]> =>
    withModel({ ...run, tokenizer: false }, (model) => model.engine.greedy(ids, n)),

  /** Mean negative log-likelihood of ids, in nats a token. */
  nll: ({ ids, ...run }: Run & { ids: number[] }): Promise<number> => withModel(run, (model) => model.engine.nll(ids)),

  /** Logits of the token after ids. */
  logits: ({ ids, ...run }: Run & { ids: number[] }): Promise<number[]> =>
    withModel({ ...run, tokenizer: false }, async (model) => [...(await model.engine.logits(ids))]),

  /** The ids that the model's tokenizer gives. */
  encode: ({ text, ...run }: Run & { text: string }): Promise<number[]> =>
    withModel(run, (model) => model.encode(text)),
};

declare global {
  interface Window {
    ready: boolean;
    oxinfer: typeof api;
  }
}

window.oxinfer = api;
window.ready = true;
