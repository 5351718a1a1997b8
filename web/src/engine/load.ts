/** Bringing a model's tensors from its host into kernel memory. */
import type { Kernels } from './kernels';
import type { Source } from './source';

const PARALLEL = 4;
/** A request takes no more than this, so that one big file is read in parallel too. */
const SPAN_BYTES = 16 * 2 ** 20;

/** As `runtime.LoadItem` in Python: segments are [file, offset, nbytes, addr]. */
export interface LoadItem {
  segments: [string, number, number, number][];
  /** Address of the record to run once all segments are there, or 0. */
  finish: number;
}

export type Progress = (done: number, total: number) => void;

interface Piece {
  offset: number;
  nbytes: number;
  addr: number;
  item: number;
}

/** A stretch of one file that is read in one request, and the pieces it is made of, in order without gaps. */
interface Span {
  file: string;
  start: number;
  nbytes: number;
  pieces: Piece[];
}

/** Adjacent segments of each file, joined to spans of up to SPAN_BYTES; larger segments are cut. */
export function planSpans(items: LoadItem[]): Span[] {
  const files = new Map<string, Piece[]>();
  items.forEach(({ segments }, item) => {
    for (const [file, offset, nbytes, addr] of segments) {
      const pieces = files.get(file) ?? [];
      files.set(file, pieces);
      for (let at = 0; at < nbytes; at += SPAN_BYTES)
        pieces.push({ offset: offset + at, nbytes: Math.min(SPAN_BYTES, nbytes - at), addr: addr + at, item });
    }
  });
  const spans: Span[] = [];
  for (const [file, pieces] of files) {
    pieces.sort((a, b) => a.offset - b.offset);
    let span: Span | undefined;
    for (const piece of pieces) {
      const fits = span && span.start + span.nbytes === piece.offset && span.nbytes + piece.nbytes <= SPAN_BYTES;
      if (!span || !fits) spans.push((span = { file, start: piece.offset, nbytes: 0, pieces: [] }));
      span.pieces.push(piece);
      span.nbytes += piece.nbytes;
    }
  }
  return spans;
}

/** Read every item into kernel memory and run its finishing record. Throws HostError naming the file. */
export async function load(source: Source, kernels: Kernels, items: LoadItem[], progress: Progress): Promise<void> {
  const spans = planSpans(items);
  const missing = items.map(({ segments }) => segments.reduce((sum, [, , nbytes]) => sum + nbytes, 0));
  const total = missing.reduce((a, b) => a + b, 0);
  let done = 0;

  const finish = (item: number, nbytes: number): void => {
    const left = (missing[item] ?? 0) - nbytes;
    missing[item] = left;
    const record = items[item]?.finish ?? 0;
    if (left === 0 && record !== 0) kernels.run(record, 0, 1, 0);
  };

  const readSpan = async ({ file, start, nbytes, pieces }: Span): Promise<void> => {
    let i = 0;
    await source.stream(file, start, nbytes, (chunk, at) => {
      let used = 0;
      for (let piece = pieces[i]; piece && used < chunk.length; piece = pieces[i]) {
        const into = start + at + used - piece.offset;
        const n = Math.min(chunk.length - used, piece.nbytes - into);
        kernels.bytes.set(chunk.subarray(used, used + n), piece.addr + into);
        used += n;
        finish(piece.item, n);
        if (into + n === piece.nbytes) i++;
      }
      done += chunk.length;
      progress(done, total);
    });
  };

  const worker = async (): Promise<void> => {
    for (let span = spans.shift(); span; span = spans.shift()) await readSpan(span);
  };
  progress(0, total);
  await Promise.all(Array.from({ length: PARALLEL }, worker));
}
