/**
 * The host: what a Python with our package needs of JavaScript beside it, in any worker and from any place.
 *
 * Kernels and their threads, and a model's files. No DOM, no fixed addresses, no protocol of a page's: one bundle of it
 * (`vite build --mode host`) serves whoever starts Pyodide. Python's `oxinfer_web.open(address)` asks for `openHost` in a
 * module of this name:
 *
 *     pyodide.registerJsModule('oxinfer_host', { openHost: (address) => openHost(address, assets) });
 */
import { Files } from './files';
import { createHost, type Host } from './host';
import type { Build } from './kernels';
import type { Progress } from './load';
import { startKernels, type Assets } from './start';

export { fromPython, hostError, messageOf, OxinferError, revived, type ErrorName } from './errors';
export { Files } from './files';
export { hold } from './hold';
export type { Host } from './host';
export type { Build } from './kernels';
export type { HostStats } from './rows';
export { STALL_SECONDS } from './request';
export { Source } from './source';
export type { Assets } from './start';
export { wasmError } from './wasm';

export interface HostOptions {
  /** Kernel threads; by default one a core, at most 8. */
  threads?: number | undefined;
  /** By default "relaxed" where the browser has relaxed SIMD. */
  kernel?: Build | undefined;
  /** Seconds without a byte, by default 20, after which a request is given up; it is tried once more. */
  stallSeconds?: number | undefined;
  /** Told of loaded bytes. */
  onProgress?: Progress;
  /** Told how many kernel threads there are, once they run. */
  onThreads?: (threads: number) => void;
}

/** Start the kernels for the model in folder `url`, and begin to read its files. Throws OxinferError. */
export async function openHost(url: string, assets: Assets, options: HostOptions = {}): Promise<Host> {
  const files = new Files(url, options.stallSeconds);
  const started = startKernels(assets, options.kernel, options.threads).then((kernels) => {
    options.onThreads?.(kernels.threads);
    return kernels;
  });
  const [kernels] = await Promise.all([started, files.open()]);
  return createHost(files, kernels, options.onProgress ?? (() => undefined));
}
