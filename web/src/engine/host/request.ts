/** One HTTP request that cannot hang: it is given up when no byte comes for a while, or when its signal says so. */

/** Seconds without a byte after which a request is given up. */
export const STALL_SECONDS = 20;
const LATE_MS = 200;

/** The browser's own, whoever may put another in its place to watch it. */
const fetch = globalThis.fetch.bind(globalThis);

export interface Limits {
  stallSeconds: number;
  signal?: AbortSignal | undefined;
}

/** No byte has come for too long. */
export class Stalled extends Error {}

/** A response whose body arrives within the limits; `chunks` may be left early. */
export interface Answer {
  response: Response;
  chunks: AsyncGenerator<Uint8Array, void>;
}

/** What work comes to, unless it takes too long: then throws Stalled, and ends what `stop` can end. */
function inTime<T>(work: Promise<T>, seconds: number, stop?: AbortController): Promise<T> {
  return new Promise((resolve, reject) => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const wait = (): void => {
      const due = performance.now() + 1000 * seconds;
      timer = setTimeout(() => {
        // Where this thread was busy, or the machine slept, nobody has looked whether a byte is there.
        if (performance.now() - due > LATE_MS) {
          wait();
          return;
        }
        const stalled = new Stalled(`no byte has come for ${seconds} s`);
        stop?.abort(stalled);
        reject(stalled);
      }, 1000 * seconds);
    };
    wait();
    work.then(resolve, reject).finally(() => {
      clearTimeout(timer);
    });
  });
}

/** A body's bytes as they come. Throws Stalled, and what the connection throws. */
export async function* chunksOf(
  body: ReadableStream<Uint8Array> | null,
  seconds: number,
  stop?: AbortController,
): AsyncGenerator<Uint8Array, void> {
  const reader = body?.getReader();
  try {
    for (;;) {
      const next = await (reader && inTime(reader.read(), seconds, stop));
      if (!next || next.done) return;
      yield next.value;
    }
  } finally {
    reader?.cancel().catch(() => undefined);
  }
}

/** Ask for `url`; resolves with the head of the answer. Throws Stalled, the signal's reason, and what fetch throws. */
export async function request(url: string, init: RequestInit, { stallSeconds, signal }: Limits): Promise<Answer> {
  signal?.throwIfAborted();
  const stop = new AbortController();
  const either = signal ? AbortSignal.any([stop.signal, signal]) : stop.signal;
  const response = await inTime(fetch(url, { ...init, signal: either }), stallSeconds, stop);
  return { response, chunks: chunksOf(response.body, stallSeconds, stop) };
}

/** Wait, unless the signal ends it: then rejects with its reason. */
export const pause = (ms: number, signal?: AbortSignal): Promise<void> =>
  new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener(
      'abort',
      () => {
        clearTimeout(timer);
        reject(signal.reason as Error);
      },
      { once: true },
    );
  });
