/** What the host is given on our own site. */
import type { Assets } from '../host';

/** The kernels in the site's kernels/ folder, and our build's thread script. site: an address that ends in a slash. */
export function siteAssets(site: string): Assets {
  return {
    wasm: async (file) => {
      const response = await fetch(`${site}kernels/${file}`);
      if (!response.ok) throw new Error(`the server answered ${response.status}`);
      return response.arrayBuffer();
    },
    thread: () => new Worker(new URL('../host/thread.ts', import.meta.url), { type: 'module' }),
  };
}
