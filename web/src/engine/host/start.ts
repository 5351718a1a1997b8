/** Choosing a kernel build, and starting it with its threads. */
import { relaxedSimd, simd } from 'wasm-feature-detect';
import { kernelError, messageOf } from './errors';
import { createMemory, instantiate, Kernels, type Build } from './kernels';
import type { ThreadStart } from './thread';

/** More threads than this gain little: decoding is bound by memory. */
const DEFAULT_MAX_THREADS = 8;
const MAX_THREADS = 16;
/** Long, as Pyodide's own start may keep a busy machine from answering. */
const THREAD_START_MS = 60_000;

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

/** Fetch, compile and start the kernels. folder: address of the .wasm files. Throws KernelError. */
export async function startKernels(folder: string, wanted?: Build, wantedThreads?: number): Promise<Kernels> {
  const build = await chooseBuild(wanted);
  const shared = crossOriginIsolated;
  const file = `${build}-${shared ? 'shared' : 'single'}.wasm`;
  const module = await compile(folder + file, file);
  const memory = createMemory(shared);
  const exports = await instantiate(module, memory, 0);
  const threads = await startThreads(module, memory, chooseThreads(wantedThreads));
  return new Kernels(memory, exports, build, threads);
}

async function compile(url: string, file: string): Promise<WebAssembly.Module> {
  try {
    const response = await fetch(url);
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    // Not compileStreaming: it refuses a module that the host serves under another MIME type.
    return await WebAssembly.compile(await response.arrayBuffer());
  } catch (e) {
    throw kernelError(`kernels/${file}: ${messageOf(e)}; build the site again and reload the page`);
  }
}

/** Start threads 1 to n - 1; resolves to how many there are, 1 if any did not start. */
async function startThreads(module: WebAssembly.Module, memory: WebAssembly.Memory, n: number): Promise<number> {
  const workers = Array.from(
    { length: n - 1 },
    () => new Worker(new URL('./thread.ts', import.meta.url), { type: 'module' }),
  );
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
