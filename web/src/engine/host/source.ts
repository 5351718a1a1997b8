/**
 * A folder on a static host: whole files and byte ranges, checked, tried again, and never of two versions.
 *
 * Ranges are asked for with `cache: 'no-store'`: the browser's HTTP cache lets only one request at a time write an entry,
 * so parallel ranges of one shard would wait for each other. Whole files may come from that cache, once the host has
 * said that they have not changed.
 */
import { hostError, messageOf, OxinferError } from './errors';
import { chunksOf, pause, request, STALL_SECONDS, Stalled, type Answer } from './request';
import { condition, differ, partOf, versionOf, type Version } from './version';

const HEADER_GUESS = 16384;
const MAX_HEADER = 100_000_000;
const TRIES = 4;
const STALL_TRIES = 2;
const BACKOFF_MS = 250;
const TRY_AGAIN_LATER = new Set([408, 425, 429]);

const NO_RANGES =
  'the server ignores byte ranges (it answers a Range request with the whole file); serve the folder with a server ' +
  'that supports them, such as `oxinfer-web serve`';
const PACKED =
  'the server compresses the file (Content-Encoding), so that parts of it cannot be read; ' +
  'turn compression off for .safetensors files';
const WEB_PAGE = 'the server answered with a web page (HTML) instead of the file';
const CHANGED = 'the model on the host has changed since it was loaded; load it again';
const HIDDEN =
  'the server does not let pages of other sites see how long the file is; let it send ' +
  '"Access-Control-Expose-Headers: Content-Range, ETag"';

/** The start of a safetensors file: its 8-byte length and JSON header, and the size of the whole file in bytes. */
export interface Header {
  size: number;
  bytes: Uint8Array;
}

export interface SourceOptions {
  /** Seconds without a byte after which a request is given up; it is tried once more. */
  stallSeconds?: number | undefined;
  /** What the reader of an error can do about a file that is not there. */
  advice?: string;
}

/** Told of the bytes of a file that have come; total is 0 where the host does not say. */
export type Told = (done: number, total: number) => void;

/** The answer is final: trying again would not change it. */
class Refused extends Error {}

export class Source {
  /** The folder's address, with a slash at its end. */
  readonly base: string;
  private readonly headers = new Map<string, Promise<Header>>();
  /** Of each file that has been asked for by range: the version that its first answer was of. */
  private readonly versions = new Map<string, Version>();
  private readonly stallSeconds: number;
  private readonly advice: string;
  /** Of another site than the page: it may forbid the page to read it. */
  private readonly foreign: boolean;
  /** Whether ranges are asked for under a condition. Another site would first be asked whether it may be put. */
  private conditional: boolean;
  private reached = false;

  constructor(url: string, { stallSeconds = STALL_SECONDS, advice }: SourceOptions = {}) {
    this.base = url.endsWith('/') ? url : `${url}/`;
    this.stallSeconds = stallSeconds;
    this.advice = advice ?? "is the model's folder complete?";
    this.foreign = new URL(this.base).origin !== location.origin;
    this.conditional = !this.foreign;
  }

  /** A whole file that has to be there, as its answer. Throws HostError, or the signal's reason. */
  open(file: string, init: RequestInit = {}, signal?: AbortSignal): Promise<Answer> {
    return this.retry(file, signal, async () => {
      const answer = await this.request(file, init, signal);
      this.checkStatus(file, answer.response, 200);
      return answer;
    });
  }

  /** The bytes of a whole file that has to be there. Throws HostError, or the signal's reason. */
  whole(
    file: string,
    signal?: AbortSignal,
    told?: Told,
    cache: RequestCache = 'no-cache',
  ): Promise<Uint8Array<ArrayBuffer>> {
    return this.retry(file, signal, async () => {
      const answer = await this.request(file, { cache }, signal);
      this.checkStatus(file, answer.response, 200);
      return gather(answer, told);
    });
  }

  /** Read an answer to its end and forget it, to see that it comes. Throws HostError. */
  async drain(file: string, { body }: Response): Promise<void> {
    try {
      const chunks = chunksOf(body, this.stallSeconds);
      while (!(await chunks.next()).done);
    } catch (e) {
      throw hostError(`${file}: ${await this.gaveUp(file, e, 1)}`);
    }
  }

  /**
   * A whole text file; undefined where the host has none: it answers 404, or with a web page, as single-page sites do.
   * Throws HostError, or the signal's reason.
   */
  async text(file: string, signal?: AbortSignal): Promise<string | undefined> {
    return this.retry(file, signal, async () => {
      const answer = await this.request(file, { cache: 'no-cache' }, signal);
      const { status, ok } = answer.response;
      if (status === 404 || (ok && isPage(answer.response))) return undefined;
      this.checkStatus(file, answer.response, 200);
      return new TextDecoder().decode(await gather(answer));
    });
  }

  /** A shard's header, asked for once. known: the file's size, where the index has it. Throws HostError. */
  header(file: string, known?: number): Promise<Header> {
    let header = this.headers.get(file);
    if (!header) {
      header = this.readHeader(file, known);
      // A header that is read ahead may fail before anyone waits for it; whoever does still gets the error.
      header.catch(() => undefined);
      this.headers.set(file, header);
    }
    return header;
  }

  /**
   * Bytes [start, start + length) of a file, handed to `sink` in order as they arrive (at: offset from start).
   * A connection that drops or stalls is taken up again where it broke off. Throws HostError, or the signal's reason.
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
      const answer = await this.range(file, start + done, length - done, signal);
      for await (const chunk of answer.chunks) {
        if (done + chunk.length > length) throw new Refused(`the server sent more than the ${length} bytes asked for`);
        sink(chunk, done);
        done += chunk.length;
      }
      if (done < length) throw new Error(`the answer ended after ${done} of ${length} bytes`);
    };
    await this.retry(file, signal, attempt, () => done);
  }

  /** Bytes [start, start + length) of a file. Throws HostError, or the signal's reason. */
  async bytes(file: string, start: number, length: number, signal?: AbortSignal): Promise<Uint8Array> {
    const out = new Uint8Array(length);
    const put = (chunk: Uint8Array, at: number): void => {
      out.set(chunk, at);
    };
    await this.stream(file, start, length, put, signal);
    return out;
  }

  private async readHeader(file: string, known: number | undefined): Promise<Header> {
    const start = await this.retry(file, undefined, async () => gather(await this.range(file, 0, HEADER_GUESS)));
    const size = this.versions.get(file)?.size ?? known;
    if (size === undefined) throw hostError(`${file}: ${HIDDEN}`);
    if (start.length < 8) return { size, bytes: start };
    const wanted = 8 + Number(new DataView(start.buffer).getBigUint64(0, true));
    // An absurd length is for the header's reader to report.
    if (wanted <= start.length || wanted > MAX_HEADER || wanted > size) return { size, bytes: start.slice(0, wanted) };
    const whole = new Uint8Array(wanted);
    whole.set(start);
    whole.set(await this.bytes(file, start.length, wanted - start.length), start.length);
    return { size, bytes: whole };
  }

  /** One range request, its status, place and version checked. A file's first one may give fewer bytes. */
  private async range(file: string, start: number, length: number, signal?: AbortSignal): Promise<Answer> {
    const end = start + length - 1;
    const first = this.versions.get(file);
    const headers: Record<string, string> = { Range: `bytes=${start}-${end}` };
    const onlyIf = this.conditional && first ? condition(first) : undefined;
    if (onlyIf) headers['If-Range'] = onlyIf;
    const answer = await this.request(file, { headers, cache: 'no-store' }, signal);
    const { response } = answer;
    const { status } = response;
    const version = versionOf(response);
    if (first && (status === 200 || status === 206 || status === 416) && differ(first, version))
      throw new Refused(CHANGED);
    if (status === 200 && onlyIf && !isPage(response) && !isPacked(response)) {
      // The same version, but whole: the server does not know its own tag.
      this.conditional = false;
      throw new Error('the server answers If-Range with the whole file');
    }
    if (isPacked(response)) throw new Refused(PACKED);
    if (status === 200 && !isPage(response)) throw new Refused(NO_RANGES);
    if (status === 416)
      throw new Refused(`the file ends before byte ${start}; it is cut short, upload it to the host again`);
    this.checkStatus(file, response, 206);
    const part = partOf(response);
    if (part && (part.start !== start || part.end > end)) throw new Refused(NO_RANGES);
    if (part && first && part.end < end)
      throw new Refused(
        `the file ends at byte ${part.end + 1}, not after ${end + 1}; it is cut short, upload it again`,
      );
    if (!first) this.versions.set(file, version);
    return answer;
  }

  private async request(file: string, init: RequestInit, signal: AbortSignal | undefined): Promise<Answer> {
    const answer = await request(this.base + file, init, { stallSeconds: this.stallSeconds, signal });
    this.reached = true;
    return answer;
  }

  private head(file: string): Promise<Response | undefined> {
    return this.request(file, { method: 'HEAD', cache: 'no-store' }, undefined).then(
      ({ response }) => response,
      () => undefined,
    );
  }

  private checkStatus(file: string, response: Response, wanted: number): void {
    const { status, statusText } = response;
    if (status === 404) throw new Refused(`not found at ${this.base}${file} (404); ${this.advice}`);
    if (response.ok && isPage(response)) throw new Refused(`${WEB_PAGE} at ${this.base}${file}; ${this.advice}`);
    if (status === wanted) return;
    const message = `the server answered ${status} ${statusText}`.trim();
    if (status >= 500 || TRY_AGAIN_LATER.has(status)) throw new Error(message);
    throw new Refused(`${message}; check the address and the server`);
  }

  /**
   * Run `attempt` until it succeeds, a few times with growing pauses; they are counted anew whenever bytes have come
   * (`progress`). Throws HostError naming the file, or the signal's reason.
   */
  private async retry<T>(
    file: string,
    signal: AbortSignal | undefined,
    attempt: () => Promise<T>,
    progress: () => number = () => 0,
  ): Promise<T> {
    let before = 0;
    let tries = 0;
    let stalls = 0;
    for (;;) {
      try {
        return await attempt();
      } catch (e) {
        signal?.throwIfAborted();
        // What the sink throws has nothing to do with the connection.
        if (e instanceof OxinferError) throw e;
        if (e instanceof Refused) throw hostError(`${file}: ${e.message}`);
        if (progress() > before) tries = stalls = 0;
        before = progress();
        tries++;
        if (e instanceof Stalled) stalls++;
        if (tries === TRIES || stalls === STALL_TRIES) throw hostError(`${file}: ${await this.gaveUp(file, e, tries)}`);
        await pause(BACKOFF_MS * 2 ** (tries - 1), signal);
      }
    }
  }

  private async gaveUp(file: string, e: unknown, tries: number): Promise<string> {
    // A range that comes compressed is an error that says nothing; the head of the whole file does.
    const head = this.reached && e instanceof TypeError ? await this.head(file) : undefined;
    if (head && isPacked(head)) return PACKED;
    if (this.foreign && !this.reached && !(e instanceof Stalled))
      return (
        `nothing can be read from ${new URL(this.base).origin}, a site other than this page's (${messageOf(e)}): either ` +
        'it lets no other site read its files (CORS), then have it send "Access-Control-Allow-Origin: *", or put the ' +
        "model's folder beside this page; or it cannot be reached from here"
      );
    return `${messageOf(e)}${tries > 1 ? `, ${tries} times` : ''}; check the connection to ${this.base} and try again`;
  }
}

const isPage = ({ headers }: Response): boolean => /^text\/html\b/i.test(headers.get('Content-Type') ?? '');

const isPacked = ({ headers }: Response): boolean =>
  /gzip|deflate|br|zstd|compress/i.test(headers.get('Content-Encoding') ?? '');

/** All of an answer's bytes. */
async function gather({ response, chunks }: Answer, told?: Told): Promise<Uint8Array<ArrayBuffer>> {
  // Compressed, the length says nothing about the bytes to come.
  const total = isPacked(response) ? 0 : Number(response.headers.get('Content-Length') ?? 0);
  const parts: Uint8Array[] = [];
  let length = 0;
  told?.(0, total);
  for await (const chunk of chunks) {
    parts.push(chunk);
    length += chunk.length;
    told?.(length, total);
  }
  const out = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}
