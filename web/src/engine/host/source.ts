/**
 * A model's folder on a static host: whole files and byte ranges, checked.
 *
 * Everything is asked for with `cache: 'no-store'`: the browser's HTTP cache lets only one request at a time write an
 * entry, so parallel ranges of one shard would wait for each other.
 */
import { hostError, messageOf, OxinferError } from './errors';

const HEADER_GUESS = 16384;
const MAX_HEADER = 100_000_000;
const TRIES = 4;
const BACKOFF_MS = 250;
const NO_RANGES =
  'the server ignores byte ranges (it answers a Range request with the whole file); serve the folder with a server ' +
  'that supports them, such as `oxinfer-web serve`';

/** The start of a safetensors file: its 8-byte length and JSON header, and the size of the whole file in bytes. */
export interface Header {
  size: number;
  bytes: Uint8Array;
}

interface Part {
  body: ReadableStream<Uint8Array>;
  /** Bytes of the whole file, where the server says. */
  size: number | undefined;
}

/** The answer is final: trying again would not change it. */
class Refused extends Error {}

/** Resolves after that time, or when the signal aborts. */
const sleep = (ms: number, signal?: AbortSignal): Promise<void> =>
  new Promise((done) => {
    setTimeout(done, ms);
    signal?.addEventListener('abort', () => {
      done();
    });
  });

export class Source {
  /** The folder's address, with a slash at its end. */
  readonly base: string;
  private readonly headers = new Map<string, Promise<Header>>();
  private index: Promise<string | undefined> | undefined;

  constructor(url: string) {
    this.base = url.endsWith('/') ? url : `${url}/`;
  }

  /** A whole text file; undefined where the host has none (404). Throws HostError. */
  async text(file: string): Promise<string | undefined> {
    return this.retry(file, async () => {
      const response = await this.request(file);
      if (response.status === 404) return undefined;
      this.checkStatus(file, response, 200);
      return response.text();
    });
  }

  /** The shard index; undefined where the folder has none. Asked for once. */
  indexText(): Promise<string | undefined> {
    this.index ??= this.text('model.safetensors.index.json');
    return this.index;
  }

  /** A shard's header. Asked for once. Throws HostError. */
  header(file: string): Promise<Header> {
    let header = this.headers.get(file);
    if (!header) {
      header = this.readHeader(file);
      // A prefetched header may fail before anyone waits for it; whoever does still gets the error.
      header.catch(() => undefined);
      this.headers.set(file, header);
    }
    return header;
  }

  /** Start reading the index and the headers it names, so that they are there when Python asks. */
  prefetch(): void {
    this.indexText()
      .then((text) => {
        if (text === undefined) return this.header('model.safetensors');
        const { weight_map: map } = JSON.parse(text) as { weight_map: Record<string, string> };
        for (const file of new Set(Object.values(map))) if (!file.includes('/')) void this.header(file);
        return undefined;
      })
      // Python reads the same index and reports what is wrong with it.
      .catch(() => undefined);
  }

  /**
   * Bytes [start, start + length) of a file, handed to `sink` in order as they arrive (at: offset from start).
   * A dropped connection is taken up again where it broke off. Throws HostError, or the signal's reason.
   */
  async stream(
    file: string,
    start: number,
    length: number,
    sink: (chunk: Uint8Array, at: number) => void,
    signal?: AbortSignal,
  ): Promise<void> {
    let done = 0;
    const attempt = async (): Promise<void> => {
      if (done === length) return;
      const { body } = await this.range(file, start + done, length - done, false, signal);
      const reader = body.getReader();
      for (;;) {
        const { value, done: end } = await reader.read();
        if (end) break;
        if (done + value.length > length) throw new Refused(`the server sent more than the ${length} bytes asked for`);
        sink(value, done);
        done += value.length;
      }
      if (done < length) throw new Error(`the answer ended after ${done} of ${length} bytes`);
    };
    await this.retry(file, attempt, signal);
  }

  /** Bytes [start, start + length) of a file. Throws HostError, or the signal's reason. */
  async bytes(file: string, start: number, length: number, signal?: AbortSignal): Promise<Uint8Array> {
    const out = new Uint8Array(length);
    const sink = (chunk: Uint8Array, at: number): void => {
      out.set(chunk, at);
    };
    await this.stream(file, start, length, sink, signal);
    return out;
  }

  private async readHeader(file: string): Promise<Header> {
    const { size, bytes } = await this.retry(file, async () => {
      const part = await this.range(file, 0, HEADER_GUESS, true);
      if (part.size === undefined)
        throw new Refused('the server does not say how long the file is; let it expose the Content-Range header');
      return { size: part.size, bytes: new Uint8Array(await new Response(part.body as BodyInit).arrayBuffer()) };
    });
    if (bytes.length < 8) return { size, bytes };
    const wanted = 8 + Number(new DataView(bytes.buffer).getBigUint64(0, true));
    // An absurd length is for the header's reader to report.
    if (wanted <= bytes.length || wanted > MAX_HEADER || wanted > size) return { size, bytes: bytes.slice(0, wanted) };
    const whole = new Uint8Array(wanted);
    whole.set(bytes);
    whole.set(await this.bytes(file, bytes.length, wanted - bytes.length), bytes.length);
    return { size, bytes: whole };
  }

  /** One range request, its status and Content-Range checked. `atMost`: a shorter file may give fewer bytes. */
  private async range(
    file: string,
    start: number,
    length: number,
    atMost = false,
    signal?: AbortSignal,
  ): Promise<Part> {
    const end = start + length - 1;
    const response = await this.request(file, { Range: `bytes=${start}-${end}` }, signal);
    if (response.status === 200) {
      await response.body?.cancel();
      throw new Refused(NO_RANGES);
    }
    if (response.status === 416)
      throw new Refused(`the file ends before byte ${start}; it is cut short, upload it to the host again`);
    this.checkStatus(file, response, 206);
    const range = /^bytes (\d+)-(\d+)\/(\d+|\*)$/.exec(response.headers.get('Content-Range') ?? '');
    if (range) {
      const size = range[3] === '*' ? undefined : Number(range[3]);
      const short = Number(range[2]) < end;
      if (Number(range[1]) !== start || Number(range[2]) > end) throw new Refused(NO_RANGES);
      if (short && !atMost)
        throw new Refused(
          `the file ends at byte ${Number(range[2]) + 1}, not after ${end + 1}; it is cut short, upload it again`,
        );
      if (response.body) return { body: response.body, size };
    }
    // A host of another origin may hide Content-Range; the length then says whether it is all there.
    const given = response.headers.get('Content-Length');
    if (response.body && !atMost && (given === null || Number(given) === length))
      return { body: response.body, size: undefined };
    throw new Refused(`the server answered range ${start}-${end} without a usable Content-Range header`);
  }

  private request(file: string, headers: Record<string, string> = {}, signal?: AbortSignal): Promise<Response> {
    return fetch(this.base + file, { headers, cache: 'no-store', signal: signal ?? null });
  }

  private checkStatus(file: string, response: Response, wanted: number): void {
    if (response.status === wanted) return;
    if (response.status === 404)
      throw new Refused(`not found at ${this.base}${file} (404); is the model's folder complete?`);
    const message = `the server answered ${response.status} ${response.statusText}`.trim();
    if (response.status >= 500 || response.status === 429) throw new Error(message);
    throw new Refused(`${message}; check the address and the server`);
  }

  /** Run `attempt` until it succeeds, a few times with growing pauses. Throws HostError naming the file. */
  private async retry<T>(file: string, attempt: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    for (let n = 1; ; n++) {
      try {
        return await attempt();
      } catch (e) {
        signal?.throwIfAborted();
        // What the sink throws has nothing to do with the connection.
        if (e instanceof OxinferError) throw e;
        if (e instanceof Refused) throw hostError(`${file}: ${e.message}`);
        if (n === TRIES)
          throw hostError(
            `${file}: ${messageOf(e)}, ${TRIES} times; check the connection to ${this.base} and try again`,
          );
        await sleep(BACKOFF_MS * 2 ** (n - 1), signal);
        signal?.throwIfAborted();
      }
    }
  }
}
