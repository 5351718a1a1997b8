/** Tables that stay on the host: their rows are fetched by byte range when they are needed. */
import { hostError } from './errors';
import type { Kernels } from './kernels';
import type { Source } from './source';

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

/** Since the start: requests made, their bytes, and rows fetched (rows found in the cache count for nothing). */
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

export class Rows {
  /** Row -> value bytes then scale bytes; the order of the map is the order of use, oldest first. */
  private readonly cache = new Map<number, Uint8Array>();
  private readonly capacity: number;

  constructor(
    private readonly source: Source,
    private readonly kernels: Kernels,
    private readonly table: HostTable,
    private readonly stats: HostStats,
  ) {
    this.capacity = Math.floor(CACHE_BYTES / (table.rowBytes + table.scaleBytes));
  }

  /** Whether `stage` can give all of these rows now. */
  held(ids: number[]): boolean {
    return ids.every((id) => this.cache.has(id));
  }

  /** Make these rows available: those not held are fetched in one batch, adjacent ones together. Throws HostError. */
  async fetch(ids: number[]): Promise<void> {
    const { rows, rowBytes, scaleBytes, values, scales, name } = this.table;
    const wanted = [...new Set(ids)];
    const bad = wanted.find((id) => !(id >= 0 && id < rows));
    if (bad !== undefined) throw hostError(`${name}: row ${bad} of ${rows}; the tokenizer belongs to another model`);
    const missing = wanted.filter((id) => !this.cache.has(id)).sort((a, b) => a - b);
    const fetched = new Map(missing.map((id) => [id, new Uint8Array(rowBytes + scaleBytes)]));

    const jobs = [
      ...ranges(missing, values, rowBytes).map((range) => ({ range, nbytes: rowBytes, at: 0 })),
      ...ranges(missing, scales, scaleBytes).map((range) => ({ range, nbytes: scaleBytes, at: rowBytes })),
    ];
    const worker = async (): Promise<void> => {
      for (let job = jobs.shift(); job; job = jobs.shift()) {
        const { range, nbytes, at } = job;
        const bytes = await this.source.bytes(range.file, range.offset, range.count * nbytes);
        this.stats.requests++;
        this.stats.bytes += bytes.length;
        for (let i = 0; i < range.count; i++)
          fetched.get(range.row + i)?.set(bytes.subarray(i * nbytes, (i + 1) * nbytes), at);
      }
    };
    await Promise.all(Array.from({ length: PARALLEL }, worker));
    this.stats.rows += missing.length;
    this.keep(wanted, fetched);
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
  private keep(wanted: number[], fetched: Map<number, Uint8Array>): void {
    for (const id of wanted) {
      const row = fetched.get(id) ?? this.row(id);
      this.cache.delete(id);
      this.cache.set(id, row);
    }
    const surplus = this.cache.size - Math.max(this.capacity, wanted.length);
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
