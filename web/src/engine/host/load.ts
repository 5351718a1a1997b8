/** Bringing a model's tensors into kernel memory, checked where the index has their shards' sums. */
import { damaged, hasher } from './digest';
import type { Files } from './files';
import type { Kernels } from './kernels';
import type { ShardWriter } from './store';

const PARALLEL = 4;
/** A request for bytes of no known sum takes no more than this, so that one big file is read in parallel too. */
const SPAN_BYTES = 16 * 2 ** 20;
/** A shard is checked and kept, and for that downloaded whole, if at least this part of it is wanted. */
const WHOLE_PART = 0.9;

/** As `runtime.LoadItem` in Python: segments are [file, offset, nbytes, addr]. */
export interface LoadItem {
  segments: [string, number, number, number][];
  /** Address of the record to run once all segments are there, or 0. */
  finish: number;
}

export type Progress = (done: number, total: number) => void;

/** Bytes of a file, and where they go; without an item they are only kept in the store. */
interface Piece {
  offset: number;
  nbytes: number;
  addr: number;
  item: number | undefined;
}

/** A stretch of one file that is read in one request, and the pieces it is made of, in order without gaps. */
interface Span {
  start: number;
  nbytes: number;
  pieces: Piece[];
}

/** What is read of one file, and how. */
interface Reading {
  file: string;
  spans: Span[];
  /** How many spans it still lacks. */
  left: number;
  /** Where the file is kept on its way. */
  writer?: ShardWriter | undefined;
  /** Of the whole file, which is then one span. */
  sha256?: string;
}

/** The pieces that items want of each file, in order of offset. */
function piecesByFile(items: LoadItem[]): Map<string, Piece[]> {
  const files = new Map<string, Piece[]>();
  items.forEach(({ segments }, item) => {
    for (const [file, offset, nbytes, addr] of segments) {
      const pieces = files.get(file) ?? [];
      files.set(file, pieces);
      for (let at = 0; at < nbytes; at += SPAN_BYTES)
        pieces.push({ offset: offset + at, nbytes: Math.min(SPAN_BYTES, nbytes - at), addr: addr + at, item });
    }
  });
  for (const pieces of files.values()) pieces.sort((a, b) => a.offset - b.offset);
  return files;
}

/** The pieces with what lies between them, so that they cover a file of `size` bytes. */
function covering(pieces: Piece[], size: number): Piece[] {
  const out: Piece[] = [];
  let at = 0;
  const fill = (until: number): void => {
    for (; at < until; at += SPAN_BYTES)
      out.push({ offset: at, nbytes: Math.min(SPAN_BYTES, until - at), addr: 0, item: undefined });
  };
  for (const piece of pieces) {
    fill(piece.offset);
    out.push(piece);
    at = piece.offset + piece.nbytes;
  }
  fill(size);
  return out;
}

/** Adjacent pieces joined to spans of up to `limit` bytes. */
function spansOf(pieces: Piece[], limit: number): Span[] {
  const spans: Span[] = [];
  for (const piece of pieces) {
    let span = spans.at(-1);
    if (!span || span.start + span.nbytes !== piece.offset || span.nbytes + piece.nbytes > limit)
      spans.push((span = { start: piece.offset, nbytes: 0, pieces: [] }));
    span.pieces.push(piece);
    span.nbytes += piece.nbytes;
  }
  return spans;
}

/** How one file is read: as the pieces ask, or whole and in one stretch, to be checked or kept. */
async function readingOf(file: string, pieces: Piece[], files: Files): Promise<Reading> {
  const apart = spansOf(pieces, SPAN_BYTES);
  const reading = { file, spans: apart, left: apart.length };
  if (files.has(file)) return reading;
  const { size } = await files.header(file);
  const wanted = pieces.reduce((sum, { nbytes }) => sum + nbytes, 0);
  if (wanted < WHOLE_PART * size) return reading;
  const writer = await files.keep(file, size);
  const { sha256 } = files.listed(file);
  // A sum is made in order, from one request; other files are read by several at once.
  if (sha256 !== undefined) return { file, spans: spansOf(covering(pieces, size), size), left: 1, writer, sha256 };
  if (!writer) return reading;
  const spans = spansOf(covering(pieces, size), SPAN_BYTES);
  return { file, spans, left: spans.length, writer };
}

/**
 * Read every item into kernel memory and run its finishing record. Throws HostError naming the file, or the signal's
 * reason.
 *
 * What is on disk is read from there, straight into place; the rest is downloaded, and kept on its way. A shard of which
 * the index has the sha256 is checked before anything is made of it; a wrong one is downloaded once more.
 */
export async function load(
  files: Files,
  kernels: Kernels,
  items: LoadItem[],
  progress: Progress,
  signal?: AbortSignal,
): Promise<void> {
  const readings = await Promise.all([...piecesByFile(items)].map(([file, pieces]) => readingOf(file, pieces, files)));
  const missing = items.map(({ segments }) => segments.reduce((sum, [, , nbytes]) => sum + nbytes, 0));
  const total = missing.reduce((a, b) => a + b, 0);
  // Whatever fails first ends the other downloads.
  const failed = new AbortController();
  const ended = signal ? AbortSignal.any([signal, failed.signal]) : failed.signal;
  const kept: Promise<void>[] = [];
  let done = 0;

  const count = (nbytes: number): void => {
    done += nbytes;
    progress(done, total);
  };

  /** Bytes of a piece are in place, and to be trusted. */
  const placed = ({ item }: Piece, nbytes: number): void => {
    if (item === undefined) return;
    const left = (missing[item] ?? 0) - nbytes;
    missing[item] = left;
    const record = items[item]?.finish ?? 0;
    if (left === 0 && record !== 0) kernels.run(record, 0, 1, 0);
  };

  const fromDisk = ({ file, spans }: Reading): void => {
    for (const { pieces } of spans)
      for (const piece of pieces) {
        files.read(file, piece.offset, kernels.bytes.subarray(piece.addr, piece.addr + piece.nbytes));
        placed(piece, piece.nbytes);
        count(piece.nbytes);
      }
  };

  /** Download a span into place; `seen` is told of every chunk, `each` of the pieces' bytes in it. */
  const download = async (
    { file, writer }: Reading,
    { start, nbytes, pieces }: Span,
    seen: (chunk: Uint8Array) => void,
    each: (piece: Piece, nbytes: number) => void,
  ): Promise<void> => {
    let i = 0;
    const sink = (chunk: Uint8Array, at: number): void => {
      seen(chunk);
      writer?.write(chunk, start + at);
      let used = 0;
      for (let piece = pieces[i]; piece && used < chunk.length; piece = pieces[i]) {
        const into = start + at + used - piece.offset;
        const n = Math.min(chunk.length - used, piece.nbytes - into);
        if (piece.item !== undefined) kernels.bytes.set(chunk.subarray(used, used + n), piece.addr + into);
        used += n;
        each(piece, n);
        if (into + n === piece.nbytes) i++;
      }
    };
    await files.stream(file, start, nbytes, sink, ended);
  };

  const unchecked = (reading: Reading, span: Span): Promise<void> =>
    download(
      reading,
      span,
      () => undefined,
      (piece, n) => {
        placed(piece, n);
        if (piece.item !== undefined) count(n);
      },
    );

  const checked = async (reading: Reading, span: Span): Promise<void> => {
    const hash = await hasher();
    for (let tries = 1; ; tries++) {
      let counted = 0;
      hash.init();
      await download(
        reading,
        span,
        (chunk) => hash.update(chunk),
        ({ item }, n) => {
          if (item === undefined) return;
          counted += n;
          count(n);
        },
      );
      if (hash.digest('hex') === reading.sha256) break;
      count(-counted);
      if (tries < 2) continue;
      await reading.writer?.discard();
      throw damaged(reading.file);
    }
    for (const piece of span.pieces) placed(piece, piece.nbytes);
  };

  count(0);
  const downloads: [Reading, Span][] = [];
  for (const reading of readings)
    if (files.has(reading.file)) fromDisk(reading);
    else downloads.push(...reading.spans.map((span): [Reading, Span] => [reading, span]));
  const worker = async (): Promise<void> => {
    for (let next = downloads.shift(); next; next = downloads.shift()) {
      const [reading, span] = next;
      await (reading.sha256 === undefined ? unchecked : checked)(reading, span);
      if (--reading.left === 0 && reading.writer) kept.push(reading.writer.finish());
    }
  };
  try {
    await Promise.all(Array.from({ length: PARALLEL }, worker));
    await Promise.all(kept);
  } catch (e) {
    failed.abort(e);
    throw e;
  }
}
