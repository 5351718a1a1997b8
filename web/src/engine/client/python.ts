/**
 * Starting Pyodide with our package, both from the site itself.
 *
 * Pyodide reads its files itself, waits for ever where one does not come, and only warns where one is not right. So what
 * it fetches and instantiates is watched from here; what it imports, which cannot be watched, is asked for once more if
 * that fails or takes long.
 */
import type { PyodideAPI } from 'pyodide';
import { hostError, messageOf, OxinferError, Source, STALL_SECONDS, wasmError } from '../host';
import { ADVICE } from './assets';

type LoadPyodide = (options: { indexURL: string; lockFileURL: string }) => Promise<PyodideAPI>;
/** Where what the browser has been told to do goes wrong; never resolves. */
type Fails = (e: unknown) => void;

const FOLDER = 'pyodide/';
const MODULES = ['pyodide.mjs', 'pyodide.asm.mjs'].map((file) => FOLDER + file);

/**
 * Load Pyodide from the pyodide/ folder of `site` (an address ending in a slash) and let micropip install our wheel by
 * its lock file. Rejects with an OxinferError where a file is missing or stalls, or where the browser cannot run Python.
 */
export async function startPython(site: string, stallSeconds = STALL_SECONDS): Promise<PyodideAPI> {
  const source = new Source(site, { stallSeconds, advice: ADVICE });
  const ended = new AbortController();
  const { signal } = ended;
  const failed = new Promise<never>((_, reject) => {
    watchFetch(site, source, signal, reject);
    watchWasm(signal, reject);
    watchModules(source, stallSeconds, signal).catch(reject);
  });
  try {
    return await Promise.race([start(site + FOLDER), failed]);
  } catch (e) {
    if (e instanceof OxinferError) throw e;
    // A failed import does not say what the server answered.
    for (const file of MODULES) await source.whole(file);
    throw hostError(`${FOLDER}: Python does not start (${messageOf(e)}); ${ADVICE}, and use a current browser`);
  } finally {
    ended.abort();
  }
}

async function start(folder: string): Promise<PyodideAPI> {
  const { loadPyodide } = (await import(/* @vite-ignore */ `${folder}pyodide.mjs`)) as { loadPyodide: LoadPyodide };
  const pyodide = await loadPyodide({ indexURL: folder, lockFileURL: `${folder}pyodide-lock.json` });
  await pyodide.loadPackage('micropip', { messageCallback: () => undefined });
  await pyodide.runPythonAsync('import micropip\nawait micropip.install("oxinfer-web")');
  return pyodide;
}

/** See that whatever is fetched of the folder is there and comes. */
function watchFetch(site: string, source: Source, ended: AbortSignal, fails: Fails): void {
  const plain = self.fetch.bind(self);
  ended.addEventListener('abort', () => {
    self.fetch = plain;
  });
  self.fetch = async (input, init) => {
    const url = input instanceof Request ? input.url : String(input);
    if (!url.startsWith(site + FOLDER)) return plain(input, init);
    const file = url.slice(site.length);
    try {
      // Pyodide gets the answer itself, not a new one of its bytes: the browser keeps compiled code by it.
      const { response } = await source.open(file, init);
      source.drain(file, response.clone()).catch(fails);
      return response;
    } catch (e) {
      const error = init?.integrity ? await wrongSum(source, file, e) : e;
      fails(error);
      throw error;
    }
  };
}

/** Why a file of a known sum was refused: the browser says as much of one that is not there as of a wrong one. */
async function wrongSum(source: Source, file: string, e: unknown): Promise<unknown> {
  try {
    await source.whole(file);
  } catch (found) {
    return found;
  }
  return hostError(`${file}: it is not the file that pyodide-lock.json names (${messageOf(e)}); ${ADVICE}`);
}

/** See that what is compiled and started there is. Another MIME type than application/wasm does not matter. */
function watchWasm(ended: AbortSignal, fails: Fails): void {
  const plain = WebAssembly.instantiateStreaming;
  ended.addEventListener('abort', () => {
    WebAssembly.instantiateStreaming = plain;
  });
  WebAssembly.instantiateStreaming = async (source, imports) => {
    const response = await source;
    const wasm = response.headers.get('Content-Type') === 'application/wasm';
    try {
      return await (wasm ? plain(response, imports) : WebAssembly.instantiate(await response.arrayBuffer(), imports));
    } catch (e) {
      fails(wasmError('pyodide/pyodide.asm.wasm', e));
      throw e;
    }
  };
}

/** As long as Python has not started, ask for its modules now and then. Throws HostError if one does not come. */
async function watchModules(source: Source, seconds: number, ended: AbortSignal): Promise<void> {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
    if (ended.aborted) return;
    for (const file of MODULES) await source.whole(file, ended, undefined, 'no-store');
  }
}
