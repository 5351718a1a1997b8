/** Tables that stay on the host: their rows are fetched by byte range when they are needed. */
import { hostError } from './errors';
import type { Files } from './files';
import type { Kernels } from './kernels';

const PARALLEL = 6;
const CACHE_BYTES = 32 * 2 ** 20;

/** As `runtime.HostTable` in Python: parts are [first row, file, offset of that row], in rising order. */
export interface HostTable {
  name: string;
  rows: number;
  rowBytes: number;
  scaleBytes: number;
  values: [number, string, number][];
  scales: [number, string, number][];
}

/** Since the start: reads of the host or of the browser's copy, their bytes, and rows (those found in the cache not). */
export interface HostStats {
  requests: number;
  bytes: number;
  rows: number;
}

/** `count` pieces of `nbytes` that lie one after the other in a file, for the rows from `row` on. */
interface Range {
  file: string;
  offset: number;
  row: number;
  count: number;
}

/** A range to read: `nbytes` a row, which go to byte `at` of the row. */
interface Job {
  range: Range;
  nbytes: number;
  at: number;
}

export class Rows {
  /** Row -> value bytes then scale bytes; the order of the map is the order of use, oldest first. */
  private readonly cache = new Map<number, Uint8Array>();
  private readonly capacity: number;

  constructor(
    private readonly files: Files,
    private readonly kernels: Kernels,
    private readonly table: HostTable,
    private readonly stats: HostStats,
  ) {
    this.capacity = Math.floor(CACHE_BYTES / (table.rowBytes + table.scaleBytes));
  }

  /** Whether `stage` can give all of these rows now; what the browser's copy has is read at once. Throws HostError. */
  held(ids: number[]): boolean {
    if (ids.every((id) => this.cache.has(id))) return true;
    const { fetched, jobs } = this.missing(ids);
    if (!jobs.every(({ range }) => this.files.has(range.file))) return false;
    for (const job of jobs) {
      const bytes = new Uint8Array(job.range.count * job.nbytes);
      this.files.read(job.range.file, job.range.offset, bytes);
      this.arrived(job, bytes, fetched);
    }
    this.keep(ids, fetched);
    return true;
  }

  /**
   * Make these rows available: those not held are fetched in one batch, adjacent ones together. Throws HostError, or the
   * signal's reason.
   */
  async fetch(ids: number[], signal?: AbortSignal): Promise<void> {
    const { fetched, jobs } = this.missing(ids);
    const worker = async (): Promise<void> => {
      for (let job = jobs.shift(); job; job = jobs.shift()) {
        const { range, nbytes } = job;
        this.arrived(job, await this.files.bytes(range.file, range.offset, range.count * nbytes, signal), fetched);
      }
    };
    await Promise.all(Array.from({ length: PARALLEL }, worker));
    this.keep(ids, fetched);
  }

  /** The byte ranges that hold those of the rows that are not in the cache, and room for them. Throws HostError. */
  private missing(ids: number[]): { fetched: Map<number, Uint8Array>; jobs: Job[] } {
    const { rows, rowBytes, scaleBytes, values, scales, name } = this.table;
    const wanted = [...new Set(ids)];
    const bad = wanted.find((id) => !(id >= 0 && id < rows));
    if (bad !== undefined) throw hostError(`${name}: row ${bad} of ${rows}; the tokenizer belongs to another model`);
    const lacking = wanted.filter((id) => !this.cache.has(id)).sort((a, b) => a - b);
    const jobs = [
      ...ranges(lacking, values, rowBytes).map((range) => ({ range, nbytes: rowBytes, at: 0 })),
      ...ranges(lacking, scales, scaleBytes).map((range) => ({ range, nbytes: scaleBytes, at: rowBytes })),
    ];
    return { fetched: new Map(lacking.map((id) => [id, new Uint8Array(rowBytes + scaleBytes)])), jobs };
  }

  /** Take the bytes of one range apart into its rows. */
  private arrived({ range, nbytes, at }: Job, bytes: Uint8Array, fetched: Map<number, Uint8Array>): void {
    this.stats.requests++;
    this.stats.bytes += bytes.length;
    for (let i = 0; i < range.count; i++)
      fetched.get(range.row + i)?.set(bytes.subarray(i * nbytes, (i + 1) * nbytes), at);
  }

  /** Copy the rows, in order, to kernel memory: row i's values at values + i * rowBytes, its scales likewise. */
  stage(ids: number[], values: number, scales: number): void {
    const { rowBytes, scaleBytes } = this.table;
    const memory = this.kernels.bytes;
    ids.forEach((id, i) => {
      const row = this.row(id);
      memory.set(row.subarray(0, rowBytes), values + i * rowBytes);
      if (scaleBytes) memory.set(row.subarray(rowBytes), scales + i * scaleBytes);
    });
  }

  /** Value bytes then scale bytes of one row. Throws HostError for a row that has to be fetched first. */
  row(id: number): Uint8Array {
    const row = this.cache.get(id);
    if (!row) throw hostError(`${this.table.name}: row ${id} has not been fetched`);
    return row;
  }

  /** Put the rows of a batch at the young end of the cache, and drop old ones beyond its capacity. */
  private keep(ids: number[], fetched: Map<number, Uint8Array>): void {
    this.stats.rows += fetched.size;
    const wanted = new Set(ids);
    for (const id of wanted) {
      const row = fetched.get(id) ?? this.row(id);
      this.cache.delete(id);
      this.cache.set(id, row);
    }
    const surplus = this.cache.size - Math.max(this.capacity, wanted.size);
    for (const id of [...this.cache.keys()].slice(0, Math.max(surplus, 0))) this.cache.delete(id);
  }
}

/** The byte ranges that hold these rows (rising), adjacent rows of one part joined. */
function ranges(rows: number[], parts: [number, string, number][], nbytes: number): Range[] {
  const out: Range[] = [];
  let part = 0;
  for (const row of rows) {
    let next = parts[part + 1];
    while (next && next[0] <= row) next = parts[++part + 1];
    const here = parts[part];
    if (!here) break;
    const [first, file, start] = here;
    const offset = start + (row - first) * nbytes;
    const last = out.at(-1);
    if (last?.file === file && last.row + last.count === row && last.offset + last.count * nbytes === offset)
      last.count++;
    else out.push({ file, offset, row, count: 1 });
  }
  return out;
}
