/** What is wrong when the browser does not take a WebAssembly module. */
import { kernelError, messageOf, OxinferError } from './errors';

/** A module that does nothing. */
const EMPTY = new Uint8Array([0, 0x61, 0x73, 0x6d, 1, 0, 0, 0]);

function forbidden(): boolean {
  try {
    new WebAssembly.Module(EMPTY);
    return false;
  } catch (e) {
    return !(e instanceof RangeError);
  }
}

/** Why `file` could not be compiled or started, and what can be done about it. Errors of ours stay as they are. */
export function wasmError(file: string, e: unknown): OxinferError {
  if (e instanceof OxinferError) return e;
  const message = messageOf(e);
  if (e instanceof RangeError || /memory/i.test(message))
    return kernelError(
      `${file}: this browser has no memory to start it (${message}); close other tabs and load the model again`,
    );
  if (forbidden())
    return kernelError(
      `${file}: this page's Content-Security-Policy forbids WebAssembly; its server has to allow 'wasm-unsafe-eval' in ` +
        'script-src',
    );
  return kernelError(`${file}: ${message}; build the site again and reload the page, or use a current browser`);
}
