/** The engine worker: Pyodide, the kernels' first thread, and the model's files meet here. */
import * as Comlink from 'comlink';
import { fromPython, hold, messageOf, openHost, OxinferError, type Host } from '../host';
import { siteAssets } from './assets';
import type { Ended, EngineApi, GenerationMessage, KVPrecision, ModelInfo, Stats } from './protocol';
import { throttled } from './progress';
import { startPython } from './python';

/** py/oxinfer_web/conversations.py: requests and answers are JSON. */
interface Conversations {
  info(): string;
  stats(): string;
  open(): number;
  close(number: number): void;
  generate(
    number: number,
    ids: string,
    sampling: string,
    onToken: (token: number) => void,
    stopped: () => boolean,
  ): Promise<string>;
  readonly probe: Probe;
}

/** py/oxinfer_web/probe.py */
interface Probe {
  bench(request: string): Promise<string>;
  greedy(ids: string, n: number): Promise<string>;
  nll(ids: string): Promise<number>;
  logits(ids: string): Promise<{ toJs(): Uint8Array; destroy(): void }>;
}

interface Model {
  conversations: Conversations;
  probe: Probe;
  host: Host;
  onFailed: (message: string) => unknown;
}

let model: Model | undefined;
/** The conversation that is being served. */
let answering: number | undefined;
/** The last request's end. */
let turn: Promise<unknown> = Promise.resolve();

function loaded(): Model {
  if (!model) throw new OxinferError('SessionError', 'no model is loaded; call load first');
  return model;
}

/** What a Python traceback, or any other error, comes to. */
const lastLine = (e: unknown): string => messageOf(e).trimEnd().split('\n').at(-1) ?? '';

/** Run `call` when the requests before it are done. */
function inTurn<T>(call: (model: Model) => Promise<T>): Promise<T> {
  const result = turn.then(async () => {
    const { host, onFailed } = loaded();
    try {
      return await call(loaded());
    } catch (e) {
      const error = fromPython(e);
      // What nobody raised on purpose leaves Python, or the kernels, in a state that nobody knows.
      if (!(error instanceof OxinferError))
        await onFailed(`the engine broke (${lastLine(error)}); load the model again`);
      else if (host.failed) await onFailed(error.message);
      throw error;
    }
  });
  turn = result.catch(() => undefined);
  return result;
}

const api: EngineApi = {
  hold,

  async load({ url, site, lock, kernel, threads, maxContext, kv, stallSeconds }, onProgress, onThreads, onFailed) {
    const [python, host] = await Promise.all([
      startPython(site, stallSeconds),
      openHost(url, siteAssets(site, lock, stallSeconds), {
        kernel,
        threads,
        stallSeconds,
        onProgress: throttled(onProgress),
        onThreads,
      }),
    ]);
    const module = python.pyimport('oxinfer_web.conversations') as {
      load(host: Host, maxContext: number | undefined, kv: KVPrecision): Promise<Conversations>;
    };
    try {
      const conversations = await module.load(host, maxContext, kv ?? 'f32');
      model = { conversations, probe: conversations.probe, host, onFailed };
      return JSON.parse(conversations.info()) as ModelInfo;
    } catch (e) {
      throw fromPython(e);
    }
  },

  open: () => loaded().conversations.open(),

  async close(conversation) {
    const close = ({ conversations }: Model): Promise<void> => {
      conversations.close(conversation);
      return Promise.resolve();
    };
    await (conversation === answering ? inTurn(close) : close(loaded()));
  },

  generate(conversation, ids, sampling, port) {
    const say = (message: GenerationMessage): void => {
      port.postMessage(message);
    };
    const stop = new AbortController();
    port.onmessage = () => {
      stop.abort(new OxinferError('CancelledError', 'stopped'));
    };
    const answer = async ({ conversations, host }: Model): Promise<void> => {
      host.signal = stop.signal;
      answering = conversation;
      try {
        const end = await conversations.generate(
          conversation,
          JSON.stringify(ids),
          JSON.stringify(sampling),
          (token) => {
            say({ kind: 'token', token });
          },
          () => stop.signal.aborted,
        );
        say({ kind: 'end', end: JSON.parse(end) as Ended });
      } finally {
        host.signal = undefined;
        answering = undefined;
      }
    };
    inTurn((model) => (stop.signal.aborted ? Promise.resolve() : answer(model))).catch((e: unknown) => {
      say({ kind: 'error', name: e instanceof Error ? e.name : 'Error', message: messageOf(e) });
    });
  },

  stats: () => JSON.parse(loaded().conversations.stats()) as Stats,
  bench: (request) => inTurn(async ({ probe }) => JSON.parse(await probe.bench(JSON.stringify(request))) as never),
  greedy: (ids, n) => inTurn(async ({ probe }) => JSON.parse(await probe.greedy(JSON.stringify(ids), n)) as number[]),
  nll: (ids) => inTurn(({ probe }) => probe.nll(JSON.stringify(ids))),
  logits: (ids) =>
    inTurn(async ({ probe }) => {
      const proxy = await probe.logits(JSON.stringify(ids));
      const bytes = proxy.toJs();
      proxy.destroy();
      return new Float32Array(bytes.slice().buffer);
    }),
};

Comlink.expose(api);
