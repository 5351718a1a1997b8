/**
 * What the Python side (py/oxinfer_web/browser) sees of this worker: kernel memory, the kernels, and the model's files.
 *
 * Calls that happen for every token take numbers and nothing else; requests come as JSON, which is cheaper to hand over
 * than a list of objects.
 */
import type { Files } from './files';
import type { Kernels } from './kernels';
import { load, type LoadItem, type Progress } from './load';
import { Rows, type HostStats, type HostTable } from './rows';
import type { Header } from './source';

/** Row numbers from Python: one as it is, several as a JSON list. */
type Ids = number | string;

/** One open host table. */
export interface JsRows {
  /** By which `oneToken` knows it. */
  number: number;
  held(ids: Ids): boolean;
  fetch(ids: Ids): Promise<void>;
  stage(ids: Ids, values: number, scales: number): void;
  row(id: number): Uint8Array;
}

/** The step of a single token: its rows' places, and the program. */
interface OneToken {
  tables: { rows: number; values: number; scales: number }[];
  ops: number;
  last: number;
  state: number;
}

export interface Host {
  /** The model's address, for messages. */
  folder: string;
  /** Gives up what the call that is being served waits for; its reason is an OxinferError. */
  signal: AbortSignal | undefined;
  /** Whether a kernel thread has died: nothing runs any more. */
  readonly failed: boolean;
  kernel: string;
  threads: number;
  memory(): Uint8Array;
  alloc(nbytes: number, align: number): number;
  writeWords(addr: number, a: number, b: number): void;
  readWord(addr: number): number;
  copy(dst: number, src: number, nbytes: number): void;
  run(ops: number, first: number, last: number, state: number): void;
  kernelSeconds(): number;
  oneToken(request: string): (token: number, position: number) => boolean;
  text(file: string): Promise<string | undefined>;
  index(): Promise<string | undefined>;
  header(file: string): Promise<Header>;
  load(items: string, progress?: Progress): Promise<void>;
  openRows(table: string): JsRows;
  stats(): string;
}

/** The host of one model. onProgress: told of loaded bytes. */
export function createHost(files: Files, kernels: Kernels, onProgress: Progress): Host {
  const opened: Rows[] = [];
  const stats: HostStats = { requests: 0, bytes: 0, rows: 0 };
  const list = (ids: Ids): number[] => (typeof ids === 'number' ? [ids] : (JSON.parse(ids) as number[]));
  const host: Host = {
    signal: undefined,
    get failed() {
      return kernels.failed;
    },
    folder: files.folder,
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
    kernelSeconds: () => kernels.seconds,
    oneToken: (request) => {
      const { tables, ops, last, state } = JSON.parse(request) as OneToken;
      const places = tables.map(({ rows, values, scales }) => ({ rows: opened[rows], values, scales }));
      return (token, position) => {
        const ids = [token];
        for (const { rows } of places) if (!rows?.held(ids)) return false;
        for (const { rows, values, scales } of places) rows?.stage(ids, values, scales);
        kernels.words[state / 4] = 1;
        kernels.words[state / 4 + 1] = position;
        kernels.run(ops, 0, last, state);
        return true;
      };
    },
    text: (file) => files.text(file),
    index: () => files.indexText(),
    header: (file) => files.header(file),
    load: (items, progress = onProgress) => load(files, kernels, JSON.parse(items) as LoadItem[], progress),
    openRows: (table) => {
      const rows = new Rows(files, kernels, JSON.parse(table) as HostTable, stats);
      const number = opened.push(rows) - 1;
      return {
        number,
        held: (ids) => rows.held(list(ids)),
        fetch: (ids) => rows.fetch(list(ids), host.signal),
        stage: (ids, values, scales) => {
          rows.stage(list(ids), values, scales);
        },
        row: (id) => rows.row(id),
      };
    },
    stats: () => JSON.stringify(stats),
  };
  return host;
}
