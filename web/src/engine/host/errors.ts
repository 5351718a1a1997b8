/** The errors a user can meet, by the same names as in the Python package. */
const NAMES = [
  'CancelledError',
  'CheckpointError',
  'ConfigError',
  'ContextError',
  'HostError',
  'KernelError',
  'NumericError',
  'OxinferError',
  'SessionError',
] as const;

export type ErrorName = (typeof NAMES)[number];

/** An error raised on purpose: the message says what is wrong, in which file, and what to do about it. */
export class OxinferError extends Error {
  constructor(name: ErrorName, message: string) {
    super(message);
    this.name = name;
  }
}

/** The host of the files did not give the bytes asked for. */
export const hostError = (message: string): OxinferError => new OxinferError('HostError', message);

/** The kernels cannot run here. */
export const kernelError = (message: string): OxinferError => new OxinferError('KernelError', message);

/** The message of anything that was thrown. */
export const messageOf = (e: unknown): string => (e instanceof Error ? e.message : String(e));

/** What another worker threw: an error of ours has become a plain one on the way, which carries our name. */
export function revived(e: unknown): Error {
  const name = e instanceof Error ? NAMES.find((n) => n === e.name) : undefined;
  if (name && !(e instanceof OxinferError)) return new OxinferError(name, messageOf(e));
  return e instanceof Error ? e : new Error(messageOf(e));
}

/**
 * A Python exception, which Pyodide gives as its whole traceback, as an error with the exception's name and message
 * alone. Anything else comes back as it is.
 */
export function fromPython(e: unknown): unknown {
  if (!(e instanceof Error) || e.name !== 'PythonError') return e;
  const name = NAMES.find((n) => n === (e as Error & { type?: string }).type);
  const message = name && new RegExp(`(?:^|[\\n.])${name}: ([^]*)$`).exec(e.message)?.[1];
  return name && message !== undefined ? new OxinferError(name, message.trimEnd()) : e;
}
