/**
 * The life of a model and its workers. Whatever becomes of them, every call made here settles.
 *
 * A worker that is ended, or runs out of memory, says nothing: it holds a Web Lock as long as it lives, and the page,
 * which asks for the same lock, gets it when the worker is gone.
 */
import * as Comlink from 'comlink';
import { OxinferError, revived } from '../host';
import type { WorkerApi } from './protocol';

export type State = 'loading' | 'ready' | 'answering' | 'closed' | 'failed';

/** Long, as a busy machine takes its time. */
const START_MS = 60_000;

export class Life {
  /** What the names of the model's locks begin with. */
  readonly lock = `oxinfer-web/${performance.timeOrigin}/${Math.random()}`;
  private phase: Exclude<State, 'answering'> = 'loading';
  private answers = 0;
  private cause = '';
  private readonly workers: Worker[] = [];
  private readonly waiting = new Set<(reason: Error) => void>();

  get state(): State {
    return this.phase === 'ready' && this.answers > 0 ? 'answering' : this.phase;
  }

  /** Why there is nothing to be had any more; undefined while there is. */
  get over(): OxinferError | undefined {
    if (this.phase === 'closed') return new OxinferError('SessionError', 'the model is closed; load it again to go on');
    if (this.phase === 'failed') return new OxinferError('KernelError', `the model has failed: ${this.cause}`);
    return undefined;
  }

  /** Take charge of a worker. what: how messages name it. */
  adopt<T extends WorkerApi>(worker: Worker, what: string): Comlink.Remote<T> {
    this.workers.push(worker);
    worker.onerror = (e) => {
      this.fail(`the ${what} broke (${e.message || 'its script did not load'}); load the model again`);
    };
    const remote = Comlink.wrap<T>(worker);
    void this.start(remote, what);
    return remote;
  }

  private async start(remote: Comlink.Remote<WorkerApi>, what: string): Promise<void> {
    const slow = setTimeout(() => {
      this.fail(`the ${what} did not start; check the connection and load the model again`);
    }, START_MS);
    const lock = `${this.lock}/${what}`;
    await remote.hold(lock);
    clearTimeout(slow);
    this.watch(lock, what);
  }

  /** The model fails when the worker that holds a lock is gone. what: how messages name it. */
  watch(lock: string, what: string): void {
    const gone = (): void => {
      this.fail(
        `the ${what} is gone, as happens when the device has no memory left; load the model again, or a smaller one`,
      );
    };
    // A page that leaves gets no lock any more.
    if ('locks' in navigator) navigator.locks.request(lock, gone).catch(() => undefined);
  }

  /** Loading is done. */
  ready(): void {
    if (this.phase === 'loading') this.phase = 'ready';
  }

  /** An answer begins; call what comes back when it ends. */
  answering(): () => void {
    this.answers++;
    return () => {
      this.answers--;
    };
  }

  /**
   * Settles as `call` does, or rejects as soon as the model ends (OxinferError) or the signal aborts (its reason),
   * without waiting for the call any longer.
   */
  during<T>(call: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      const { over } = this;
      if (over) {
        reject(over);
        return;
      }
      if (signal?.aborted) {
        reject(signal.reason as Error);
        return;
      }
      const forget = this.whenOver(reject);
      const stop = (): void => {
        reject(signal?.reason as Error);
      };
      signal?.addEventListener('abort', stop);
      call()
        .then(resolve, (e: unknown) => {
          reject(revived(e));
        })
        .finally(() => {
          forget();
          signal?.removeEventListener('abort', stop);
        });
    });
  }

  /** Be told when the model ends; the function that comes back takes that back. */
  whenOver(told: (reason: Error) => void): () => void {
    this.waiting.add(told);
    return () => this.waiting.delete(told);
  }

  /** Nobody wants the model any more. */
  close(): void {
    this.end('closed');
  }

  /** The model cannot go on. cause: what happened and what to do. */
  fail(cause: string): void {
    if (this.over) return;
    this.cause = cause;
    this.end('failed');
  }

  private end(phase: 'closed' | 'failed'): void {
    if (this.over) return;
    this.phase = phase;
    for (const worker of this.workers) worker.terminate();
    const told = [...this.waiting];
    this.waiting.clear();
    const reason = this.over as Error | undefined;
    if (reason) for (const tell of told) tell(reason);
  }
}
