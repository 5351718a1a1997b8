/**
 * What the Python side (runtime/browser.py) sees of this worker: kernel memory, the kernels, and the model's files.
 *
 * Calls that happen for every token take numbers and nothing else; plans come as JSON, which is cheaper to hand over
 * than a list of objects.
 */
import type { Kernels } from './kernels';
import { load, type LoadItem, type Progress } from './load';
import { Rows, type HostStats, type HostTable } from './rows';
import type { Header, Source } from './source';
import type { ShardStore } from './store';

/** Row numbers from Python: one as it is, several as a JSON list. */
type Ids = number | string;

/** One open host table. */
export interface JsRows {
  held(ids: Ids): boolean;
  fetch(ids: Ids): Promise<void>;
  stage(ids: Ids, values: number, scales: number): void;
  row(id: number): Uint8Array;
}

export interface Host {
  kernel: string;
  threads: number;
  memory(): Uint8Array;
  alloc(nbytes: number, align: number): number;
  writeWords(addr: number, a: number, b: number): void;
  readWord(addr: number): number;
  copy(dst: number, src: number, nbytes: number): void;
  run(ops: number, first: number, last: number, state: number): void;
  text(file: string): Promise<string | undefined>;
  index(): Promise<string | undefined>;
  header(file: string): Promise<Header>;
  load(items: string, progress?: Progress): Promise<void>;
  openRows(table: string): JsRows;
  stats(): string;
}

/** The host of one model. store: what the browser keeps of it; onProgress: told of loaded bytes. */
export function createHost(
  source: Source,
  store: ShardStore | undefined,
  kernels: Kernels,
  onProgress: Progress,
): Host {
  const stats: HostStats = { requests: 0, bytes: 0, rows: 0 };
  const list = (ids: Ids): number[] => (typeof ids === 'number' ? [ids] : (JSON.parse(ids) as number[]));
  return {
    kernel: kernels.build,
    threads: kernels.threads,
    memory: () => kernels.bytes,
    alloc: (nbytes, align) => kernels.alloc(nbytes, align),
    writeWords: (addr, a, b) => {
      kernels.words[addr / 4] = a;
      kernels.words[addr / 4 + 1] = b;
    },
    readWord: (addr) => kernels.words[addr / 4] ?? 0,
    copy: (dst, src, nbytes) => {
      kernels.copy(dst, src, nbytes);
    },
    run: (ops, first, last, state) => {
      kernels.run(ops, first, last, state);
    },
    text: (file) => source.text(file),
    index: () => source.indexText(),
    header: (file) => source.header(file),
    load: (items, progress = onProgress) => load(source, store, kernels, JSON.parse(items) as LoadItem[], progress),
    openRows: (table) => {
      const rows = new Rows(source, store, kernels, JSON.parse(table) as HostTable, stats);
      return {
        held: (ids) => rows.held(list(ids)),
        fetch: (ids) => rows.fetch(list(ids)),
        stage: (ids, values, scales) => {
          rows.stage(list(ids), values, scales);
        },
        row: (id) => rows.row(id),
      };
    },
    stats: () => JSON.stringify(stats),
  };
}
