/** Choosing a kernel build, and starting it with its threads. */
import { relaxedSimd, simd } from 'wasm-feature-detect';
import { kernelError, messageOf } from './errors';
import { createMemory, instantiate, Kernels, type Build, type KernelExports } from './kernels';
import type { ThreadStart } from './thread';
import { wasmError } from './wasm';

/** More threads than this gain little: decoding is bound by memory. */
const DEFAULT_MAX_THREADS = 8;
const MAX_THREADS = 16;
/** Long, as Pyodide's own start may keep a busy machine from answering. */
const THREAD_START_MS = 60_000;

/** What the host is given by whoever runs it: it knows no addresses of its own. */
export interface Assets {
  /** The bytes of a kernel build, such as "relaxed-shared.wasm". Rejects if they cannot be had. */
  wasm(file: string): Promise<BufferSource>;
  /** A new worker that runs thread.ts. tid: 1, 2, ... */
  thread(tid: number): Worker;
}

/** The build that this browser runs, or the one asked for. Throws KernelError. */
export async function chooseBuild(wanted: Build | undefined): Promise<Build> {
  if (!(await simd()))
    throw kernelError('this browser has no WebAssembly SIMD, which the kernels need; use a current browser');
  if (wanted === 'simd') return 'simd';
  if (await relaxedSimd()) return 'relaxed';
  if (wanted === 'relaxed')
    throw kernelError('this browser has no relaxed WebAssembly SIMD; choose the kernel build "simd"');
  return 'simd';
}

/** Threads to use: those asked for, by default one a core; one where memory cannot be shared. */
export function chooseThreads(wanted: number | undefined): number {
  if (!crossOriginIsolated) return 1;
  const threads = wanted ?? Math.min(navigator.hardwareConcurrency, DEFAULT_MAX_THREADS);
  return Math.max(1, Math.min(Math.floor(threads), MAX_THREADS));
}

/** Compile the kernels and start them. Throws KernelError, and what `assets` throws. */
export async function startKernels(assets: Assets, wanted?: Build, wantedThreads?: number): Promise<Kernels> {
  const build = await chooseBuild(wanted);
  const shared = crossOriginIsolated;
  const file = `${build}-${shared ? 'shared' : 'single'}.wasm`;
  const memory = createMemory(shared);
  const { module, exports } = await instantiated(assets, file, memory);
  const threads = await startThreads(assets, module, memory, chooseThreads(wantedThreads));
  return new Kernels(memory, exports, build, threads);
}

async function instantiated(
  assets: Assets,
  file: string,
  memory: WebAssembly.Memory,
): Promise<{ module: WebAssembly.Module; exports: KernelExports }> {
  try {
    // Not compileStreaming: it refuses a module that the host serves under another MIME type.
    const module = await WebAssembly.compile(await assets.wasm(file));
    return { module, exports: await instantiate(module, memory, 0) };
  } catch (e) {
    throw wasmError(`kernels/${file}`, e);
  }
}

/** Start threads 1 to n - 1; resolves to how many there are, 1 if any did not start. */
async function startThreads(
  assets: Assets,
  module: WebAssembly.Module,
  memory: WebAssembly.Memory,
  n: number,
): Promise<number> {
  const workers = Array.from({ length: n - 1 }, (_, i) => assets.thread(i + 1));
  try {
    await Promise.all(workers.map((worker, i) => ready(worker, { module, memory, tid: i + 1 })));
    return n;
  } catch (e) {
    for (const worker of workers) worker.terminate();
    console.warn(`oxinfer-web runs on one thread: ${messageOf(e)}`);
    return 1;
  }
}

function ready(worker: Worker, start: ThreadStart): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      reject(new Error('a kernel thread did not start'));
    }, THREAD_START_MS);
    worker.onmessage = () => {
      clearTimeout(timer);
      resolve();
    };
    worker.onerror = (e) => {
      clearTimeout(timer);
      reject(new Error(e.message || 'a kernel thread failed'));
    };
    worker.postMessage(start);
  });
}
