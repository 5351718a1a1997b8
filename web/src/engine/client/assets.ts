/** What the host is given on our own site. */
import type { Assets } from '../host';

/** The lock that kernel thread `tid` of a model holds. */
export const threadLock = (lock: string, tid: number): string => `${lock}/thread${tid}`;

/**
 * The kernels in the site's kernels/ folder, and our build's thread script.
 *
 * site: an address that ends in a slash; lock: what the names of the threads' locks begin with.
 */
export function siteAssets(site: string, lock: string): Assets {
  return {
    wasm: async (file) => {
      const response = await fetch(`${site}kernels/${file}`);
      if (!response.ok) throw new Error(`the server answered ${response.status}`);
      return response.arrayBuffer();
    },
    thread: (tid) =>
      new Worker(new URL('../host/thread.ts', import.meta.url), { type: 'module', name: threadLock(lock, tid) }),
  };
}
