/** SHA-256, of bytes that come bit by bit too; in places without crypto.subtle (plain http) as well. */
import { createSHA256, sha256 as whole, type IHasher } from 'hash-wasm';
import { hostError, type OxinferError } from './errors';
import { wasmError } from './wasm';

const asOurs = (e: unknown): never => {
  throw wasmError('sha256', e);
};

/** A sum that is made step by step. Throws KernelError where the browser runs no WebAssembly. */
export const hasher = (): Promise<IHasher> => createSHA256().catch(asOurs);

/** The sum of these bytes, in hex. Throws KernelError where the browser runs no WebAssembly. */
export const sha256 = (data: Uint8Array | string): Promise<string> => whole(data).catch(asOurs);

/** Twice bytes have come that are not those of which the index has the sum. */
export const damaged = (file: string): OxinferError =>
  hostError(
    `${file}: its sha256 is not the index's, in two downloads; the folder on the host is damaged, or of two versions: ` +
      'upload all of it again',
  );
