/** The kernels' memory and the calls into them, from the thread that owns them. */
import { kernelError } from './errors';

/** Bytes; the sizes below are in WASM pages. */
const WASM_PAGE = 65536;
/** 64 MiB: at least what any build's static data needs. */
const INITIAL = 1024;
const GROW = 256;
/** Some browsers refuse to reserve 4 GiB; then less is asked for. */
const MAXIMA = [65536, 49152, 32768, 16384];
const LIMIT = 2 ** 32 - WASM_PAGE;

export type Build = 'relaxed' | 'simd';

/** What the module exports; addresses and counts are u32. */
export interface KernelExports {
  run(ops: number, first: number, last: number, state: number, tid: number, n: number): void;
  dispatch(ops: number, first: number, last: number, state: number, n: number): number;
  thread_main(tid: number): void;
  stop_threads(): void;
  stack_top(tid: number): number;
  copy(dst: number, src: number, nbytes: number): void;
  __stack_pointer: WebAssembly.Global<'i32'>;
  __heap_base: WebAssembly.Global<'i32'>;
}

/** Instantiate the module for one thread and give that thread its own stack. */
export async function instantiate(
  module: WebAssembly.Module,
  memory: WebAssembly.Memory,
  tid: number,
): Promise<KernelExports> {
  const { exports } = await WebAssembly.instantiate(module, { env: { memory } });
  const kernels = exports as unknown as KernelExports;
  // Every instance starts with the same stack pointer: left alone, threads would overwrite each other's locals.
  kernels.__stack_pointer.value = kernels.stack_top(tid);
  return kernels;
}

/** A memory that can grow as far as the browser allows. Throws KernelError. */
export function createMemory(shared: boolean): WebAssembly.Memory {
  for (const maximum of MAXIMA) {
    try {
      return new WebAssembly.Memory({ initial: INITIAL, maximum, shared });
    } catch (e) {
      if (!(e instanceof RangeError)) throw e;
    }
  }
  throw kernelError('this browser gives the page no memory; close other tabs and load the model again');
}

export class Kernels {
  private heap: number;
  private view: Uint8Array;
  /** Spent in `run` so far. */
  seconds = 0;
  /** Whether a thread has died. */
  failed = false;
  /** All of the memory as u32, a new array whenever `bytes` is. */
  words: Uint32Array;

  constructor(
    readonly memory: WebAssembly.Memory,
    private readonly exports: KernelExports,
    readonly build: Build,
    readonly threads: number,
  ) {
    this.heap = exports.__heap_base.value >>> 0;
    this.view = new Uint8Array(memory.buffer);
    this.words = new Uint32Array(memory.buffer);
  }

  /** All of the memory; the array is another one after `alloc` has grown it. */
  get bytes(): Uint8Array {
    return this.view;
  }

  /** Address of nbytes of zeroed memory, held as long as the kernels are. Throws KernelError. */
  alloc(nbytes: number, align: number): number {
    const addr = Math.ceil(this.heap / align) * align;
    const end = addr + nbytes;
    const missing = Math.ceil((end - this.view.length) / WASM_PAGE);
    if (missing > 0) this.grow(missing, nbytes, end);
    this.heap = end;
    return addr;
  }

  /** Run records [first, last) of a program on all threads. Throws KernelError if a thread has died. */
  run(ops: number, first: number, last: number, state: number): void {
    const start = performance.now();
    this.dispatch(ops, first, last, state);
    this.seconds += (performance.now() - start) / 1000;
  }

  private dispatch(ops: number, first: number, last: number, state: number): void {
    if (this.threads === 1) this.exports.run(ops, first, last, state, 0, 1);
    else {
      this.failed ||= this.exports.dispatch(ops, first, last, state, this.threads) !== 0;
      if (this.failed)
        throw kernelError('a kernel thread has stopped answering; load the model again, or use one thread');
    }
  }

  /** memmove inside the memory. */
  copy(dst: number, src: number, nbytes: number): void {
    this.exports.copy(dst, src, nbytes);
  }

  /** Let the other threads end. */
  stop(): void {
    if (this.threads > 1) this.exports.stop_threads();
  }

  private grow(missing: number, nbytes: number, end: number): void {
    const spare = Math.floor((LIMIT - this.view.length) / WASM_PAGE);
    try {
      if (end > LIMIT) throw new RangeError();
      this.memory.grow(Math.min(Math.max(missing, GROW), spare));
    } catch (e) {
      if (!(e instanceof RangeError)) throw e;
      throw kernelError(
        `no memory left for ${nbytes} bytes (${this.heap} in use); choose a smaller model, a smaller context, or ` +
          'close other tabs',
      );
    }
    this.view = new Uint8Array(this.memory.buffer);
    this.words = new Uint32Array(this.memory.buffer);
  }
}
