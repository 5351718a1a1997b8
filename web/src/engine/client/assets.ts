/** What the host is given on our own site. */
import { Source, type Assets } from '../host';

export const ADVICE = 'put all of the built site on the server';

/** The lock that kernel thread `tid` of a model holds. */
export const threadLock = (lock: string, tid: number): string => `${lock}/thread${tid}`;

/**
 * The kernels in the site's kernels/ folder, and our build's thread script.
 *
 * site: an address that ends in a slash; lock: what the names of the threads' locks begin with; stallSeconds: see Source.
 */
export function siteAssets(site: string, lock: string, stallSeconds?: number): Assets {
  const source = new Source(site, { stallSeconds, advice: ADVICE });
  return {
    wasm: (file) => source.whole(`kernels/${file}`, undefined, undefined, 'default'),
    thread: (tid) =>
      new Worker(new URL('../host/thread.ts', import.meta.url), { type: 'module', name: threadLock(lock, tid) }),
  };
}
