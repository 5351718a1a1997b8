// A thread of kernels.html. Messages are [name, ...arguments]; each is answered with {result} or {error}.
let memory, kernels, readerExports, threads;

async function instantiate(module, tid) {
  kernels = (await WebAssembly.instantiate(module, { env: { memory } })).exports;
  kernels.__stack_pointer.value = kernels.stack_top(tid);
}

const calls = {
  async start(module, shared, tid, n) {
    [memory, threads] = [shared, n];
    await instantiate(module, tid);
    return kernels.__heap_base.value >>> 0;
  },

  async join(module, shared, tid) {
    memory = shared;
    await instantiate(module, tid);
    setTimeout(() => kernels.thread_main(tid)); // once this call is answered; it never returns
  },

  async startReader(module, shared) {
    readerExports = (await WebAssembly.instantiate(module, { env: { memory: shared } })).exports;
  },

  read(addr, nbytes, times) {
    const start = performance.now();
    for (let i = 0; i < times; i++) readerExports.read(addr, addr + nbytes);
    return (performance.now() - start) / times;
  },

  write(addr, bytes) {
    new Uint8Array(memory.buffer).set(bytes, addr);
  },

  /** Fill with one 32-bit word, or with noise. */
  fill(addr, nbytes, word) {
    const words = new Uint32Array(memory.buffer, addr, nbytes / 4);
    if (word !== null) words.fill(word);
    else for (let i = 0, x = 1; i < words.length; i++) words[i] = x = (Math.imul(x, 1664525) + 1013904223) ^ (x >>> 15);
  },

  /** Milliseconds of one run of the first `count` records at `ops`, the mean of `times`. */
  dispatch(ops, count, state, times) {
    const start = performance.now();
    for (let i = 0; i < times; i++)
      if (kernels.dispatch(ops, 0, count, state, threads) !== 0) throw new Error('a kernel thread does not answer');
    return (performance.now() - start) / times;
  },
};

onmessage = async ({ data: [name, ...args] }) => {
  try {
    postMessage({ result: await calls[name](...args) });
  } catch (e) {
    postMessage({ error: String(e) });
  }
};
