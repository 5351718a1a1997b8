/** The engine worker: Pyodide, the kernels' first thread, and the model's files meet here. */
import * as Comlink from 'comlink';
import { fromPython, messageOf, openHost, OxinferError, type Host } from '../host';
import { siteAssets } from './assets';
import type { EngineApi, GenerationMessage, KVPrecision, ModelInfo, Stats } from './protocol';
import { startPython } from './python';

/** py/oxinfer_web/conversations.py: requests and answers are JSON. */
interface Page {
  info(): string;
  stats(): string;
  generate(ids: string, sampling: string, onToken: (token: number) => boolean): Promise<void>;
  bench(request: string): Promise<string>;
  greedy(ids: string, n: number): Promise<string>;
  nll(ids: string): Promise<number>;
  logits(ids: string): Promise<{ toJs(): Uint8Array; destroy(): void }>;
}

const PROGRESS_MS = 100;

let page: Page | undefined;
let busy = false;

/** Run `call` on the loaded model, one call at a time. */
async function withModel<T>(call: (page: Page) => Promise<T>): Promise<T> {
  if (!page) throw new OxinferError('SessionError', 'no model is loaded; call load first');
  if (busy) throw new OxinferError('SessionError', 'the model is busy with another request; wait for it or stop it');
  busy = true;
  try {
    return await call(page);
  } catch (e) {
    throw fromPython(e);
  } finally {
    busy = false;
  }
}

/** Hand progress on at most every PROGRESS_MS, and at the end. */
function throttled(report: (done: number, total: number) => void): (done: number, total: number) => void {
  let last = -Infinity;
  return (done, total) => {
    const now = performance.now();
    if (now - last < PROGRESS_MS && done < total) return;
    last = now;
    report(done, total);
  };
}

const api: EngineApi = {
  async load({ url, site, kernel, threads, maxContext, kv }, onProgress) {
    const [python, host] = await Promise.all([
      startPython(`${site}pyodide/`),
      openHost(url, siteAssets(site), { kernel, threads, onProgress: throttled(onProgress) }),
    ]);
    const module = python.pyimport('oxinfer_web.conversations') as {
      open_page(host: Host, maxContext: number | undefined, kv: KVPrecision): Promise<Page>;
    };
    try {
      page = await module.open_page(host, maxContext, kv ?? 'f32');
      return JSON.parse(page.info()) as ModelInfo;
    } catch (e) {
      throw fromPython(e);
    }
  },

  generate(ids, sampling, port) {
    let stopped = false;
    const say = (message: GenerationMessage): void => {
      port.postMessage(message);
    };
    port.onmessage = () => {
      stopped = true;
    };
    withModel((p) =>
      p.generate(JSON.stringify(ids), JSON.stringify(sampling), (token) => {
        if (!stopped) say({ kind: 'token', token });
        return !stopped;
      }),
    ).then(
      () => {
        say({ kind: 'end' });
      },
      (e: unknown) => {
        say({ kind: 'error', name: e instanceof Error ? e.name : 'Error', message: messageOf(e) });
      },
    );
  },

  stats: () => withModel((p) => Promise.resolve(JSON.parse(p.stats()) as Stats)),
  bench: (request) => withModel(async (p) => JSON.parse(await p.bench(JSON.stringify(request))) as never),
  greedy: (ids, n) => withModel(async (p) => JSON.parse(await p.greedy(JSON.stringify(ids), n)) as number[]),
  nll: (ids) => withModel((p) => p.nll(JSON.stringify(ids))),
  logits: (ids) =>
    withModel(async (p) => {
      const proxy = await p.logits(JSON.stringify(ids));
      const bytes = proxy.toJs();
      proxy.destroy();
      return new Float32Array(bytes.slice().buffer);
    }),
};

Comlink.expose(api);
