/** SHA-256, of bytes that come bit by bit too; in places without crypto.subtle (plain http) as well. */
import { createSHA256, sha256 } from 'hash-wasm';
import { hostError, type OxinferError } from './errors';

export { createSHA256, sha256 };

/** Twice bytes have come that are not those of which the index has the sum. */
export const damaged = (file: string): OxinferError =>
  hostError(
    `${file}: its sha256 is not the index's, in two downloads; the folder on the host is damaged, or of two versions: ` +
      'upload all of it again',
  );
