/** Bringing a model's tensors into kernel memory: from its host, or from the copy that the browser keeps. */
import type { Kernels } from './kernels';
import type { Source } from './source';
import type { ShardStore, ShardWriter } from './store';

const PARALLEL = 4;
/** A request takes no more than this, so that one big file is read in parallel too. */
const SPAN_BYTES = 16 * 2 ** 20;
/** A shard is kept, and for that downloaded whole, if at least this part of it is wanted. */
const KEEP_PART = 0.9;

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

/** One file's share of the plan. */
interface FilePlan {
  file: string;
  spans: Span[];
  /** Where the file is kept on its way, and how many spans it still lacks. */
  writer?: ShardWriter | undefined;
  left: number;
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

/** Adjacent pieces joined to spans of up to SPAN_BYTES. */
function spansOf(pieces: Piece[]): Span[] {
  const spans: Span[] = [];
  for (const piece of pieces) {
    let span = spans.at(-1);
    if (!span || span.start + span.nbytes !== piece.offset || span.nbytes + piece.nbytes > SPAN_BYTES)
      spans.push((span = { start: piece.offset, nbytes: 0, pieces: [] }));
    span.pieces.push(piece);
    span.nbytes += piece.nbytes;
  }
  return spans;
}

/** How one file is read: as the pieces ask, or whole, if most of it is wanted and the store can keep it. */
async function planFile(
  file: string,
  pieces: Piece[],
  source: Source,
  store: ShardStore | undefined,
): Promise<FilePlan> {
  if (store && !store.has(file)) {
    const { size } = await source.header(file);
    const wanted = pieces.reduce((sum, { nbytes }) => sum + nbytes, 0);
    const writer = wanted >= KEEP_PART * size ? await store.writer(file, size) : undefined;
    if (writer) {
      const spans = spansOf(covering(pieces, size));
      return { file, spans, writer, left: spans.length };
    }
  }
  const spans = spansOf(pieces);
  return { file, spans, left: spans.length };
}

/**
 * Read every item into kernel memory and run its finishing record. Throws HostError naming the file.
 *
 * What the store has is read from it, straight into place; the rest is downloaded, and kept in the store on its way.
 */
export async function load(
  source: Source,
  store: ShardStore | undefined,
  kernels: Kernels,
  items: LoadItem[],
  progress: Progress,
): Promise<void> {
  const files = await Promise.all(
    [...piecesByFile(items)].map(([file, pieces]) => planFile(file, pieces, source, store)),
  );
  const missing = items.map(({ segments }) => segments.reduce((sum, [, , nbytes]) => sum + nbytes, 0));
  const total = missing.reduce((a, b) => a + b, 0);
  const kept: Promise<void>[] = [];
  let done = 0;

  const arrived = ({ item }: Piece, nbytes: number): void => {
    if (item === undefined) return;
    const left = (missing[item] ?? 0) - nbytes;
    missing[item] = left;
    done += nbytes;
    const record = items[item]?.finish ?? 0;
    if (left === 0 && record !== 0) kernels.run(record, 0, 1, 0);
  };

  const readStored = (stored: ShardStore, { file, spans }: FilePlan): void => {
    for (const { pieces } of spans) {
      for (const piece of pieces) {
        stored.read(file, piece.offset, kernels.bytes.subarray(piece.addr, piece.addr + piece.nbytes));
        arrived(piece, piece.nbytes);
      }
      progress(done, total);
    }
  };

  const download = async (plan: FilePlan, { start, nbytes, pieces }: Span): Promise<void> => {
    let i = 0;
    await source.stream(plan.file, start, nbytes, (chunk, at) => {
      plan.writer?.write(chunk, start + at);
      let used = 0;
      for (let piece = pieces[i]; piece && used < chunk.length; piece = pieces[i]) {
        const into = start + at + used - piece.offset;
        const n = Math.min(chunk.length - used, piece.nbytes - into);
        if (piece.item !== undefined) kernels.bytes.set(chunk.subarray(used, used + n), piece.addr + into);
        used += n;
        arrived(piece, n);
        if (into + n === piece.nbytes) i++;
      }
      progress(done, total);
    });
    if (--plan.left > 0 || !plan.writer) return;
    const finished = plan.writer.finish();
    finished.catch(() => undefined); // looked at when everything has arrived
    kept.push(finished);
  };

  progress(0, total);
  const downloads: [FilePlan, Span][] = [];
  for (const plan of files)
    if (store?.has(plan.file)) readStored(store, plan);
    else downloads.push(...plan.spans.map((span): [FilePlan, Span] => [plan, span]));
  const worker = async (): Promise<void> => {
    for (let next = downloads.shift(); next; next = downloads.shift()) await download(...next);
  };
  await Promise.all(Array.from({ length: PARALLEL }, worker));
  await Promise.all(kept);
}
