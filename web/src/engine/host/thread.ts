/**
 * One kernel thread besides the engine worker's own: it joins the memory and then never leaves the kernels' loop.
 *
 * A worker that was given a name holds the Web Lock of that name.
 */
import { hold } from './hold';
import { instantiate } from './kernels';

export interface ThreadStart {
  module: WebAssembly.Module;
  memory: WebAssembly.Memory;
  tid: number;
}

self.onmessage = async ({ data }: MessageEvent<ThreadStart>) => {
  const kernels = await instantiate(data.module, data.memory, data.tid);
  if (self.name) await hold(self.name);
  self.postMessage('ready');
  kernels.thread_main(data.tid);
  self.close();
};
