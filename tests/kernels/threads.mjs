// Runs a program on real threads under Node: reads a job as JSON from standard input, writes its result to standard output.
//
// Job: {wasm: file, threads, ops, count, state: addresses, repeats, memory: {address, base64}, reads: [[address, bytes]],
// lose: a thread that is not started}. Result: {status: of each dispatch, data: [base64], stopped: threads that ended}.
import { readFileSync } from 'node:fs';
import { Worker, isMainThread, parentPort, workerData } from 'node:worker_threads';

const once = (worker) => new Promise((resolve) => worker.once('message', resolve));

async function instantiate(module, memory, tid) {
  const { exports } = await WebAssembly.instantiate(module, { env: { memory } });
  exports.__stack_pointer.value = exports.stack_top(tid);
  return exports;
}

if (isMainThread) {
  const job = JSON.parse(readFileSync(0, 'utf8'));
  const module = await WebAssembly.compile(readFileSync(job.wasm));
  const memory = new WebAssembly.Memory({ initial: 4096, maximum: 65536, shared: true });
  const kernels = await instantiate(module, memory, 0);
  const workers = [];
  for (let tid = 1; tid < job.threads; tid++) {
    if (tid === job.lose) continue;
    const worker = new Worker(new URL(import.meta.url), { workerData: { module, memory, tid } });
    await once(worker);
    workers.push(worker);
  }
  const bytes = Buffer.from(memory.buffer);
  const status = [];
  for (let i = 0; i < job.repeats; i++) {
    Buffer.from(job.memory.base64, 'base64').copy(bytes, job.memory.address);
    status.push(kernels.dispatch(job.ops, 0, job.count, job.state, job.threads));
  }
  const ends = Promise.all(workers.map(once));
  kernels.stop_threads();
  const stopped = (await ends).length;
  const data = job.reads.map(([address, n]) => bytes.subarray(address, address + n).toString('base64'));
  process.stdout.write(JSON.stringify({ status, data, stopped }), () => process.exit(0));
} else {
  const { module, memory, tid } = workerData;
  const kernels = await instantiate(module, memory, tid);
  parentPort.postMessage('ready');
  kernels.thread_main(tid);
  parentPort.postMessage('stopped');
}
