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

/** One open host table; ids are a JSON list. */
export interface JsRows {
  held(ids: string): boolean;
  fetch(ids: string): Promise<void>;
  stage(ids: string, values: number, scales: number): void;
  row(id: number): Uint8Array;
}

export interface Host {
  kernel: string;
  threads: number;
  memory(): Uint8Array;
  alloc(nbytes: number, align: number): number;
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
  const ids = (json: string): number[] => JSON.parse(json) as number[];
  return {
    kernel: kernels.build,
    threads: kernels.threads,
    memory: () => kernels.bytes,
    alloc: (nbytes, align) => kernels.alloc(nbytes, align),
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
        held: (json) => rows.held(ids(json)),
        fetch: (json) => rows.fetch(ids(json)),
        stage: (json, values, scales) => {
          rows.stage(ids(json), values, scales);
        },
        row: (id) => rows.row(id),
      };
    },
    stats: () => JSON.stringify(stats),
  };
}
