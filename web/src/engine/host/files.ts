/**
 * A model's files: from disk where the browser has kept them, from their host where it has not.
 *
 * Shards and their rows come from the store (one tab at a time has it) or by byte range. A small file that the index lists
 * with its sha256 is kept too, and is what the index says; the others are asked for anew at every visit.
 */
import { damaged, sha256 } from './digest';
import { keepSmall, placeOf, readSmall, type Place } from './opfs';
import { Source, type Header, type Told } from './source';
import { ShardStore, type ShardWriter } from './store';

const INDEX = 'model.safetensors.index.json';
const SINGLE = 'model.safetensors';
const SETTINGS = ['config.json', 'generation_config.json'];

/** What the index may say of a file. */
export interface Listed {
  size?: number;
  sha256?: string;
}

/** What is read here of the index; Python reports what is wrong with it. */
interface Index {
  metadata?: { shards?: Record<string, Listed>; files?: Record<string, Listed> };
  weight_map?: Record<string, string>;
}

export class Files {
  private readonly source: Source;
  private readonly texts = new Map<string, Promise<string | undefined>>();
  private index: Index = {};
  private store: ShardStore | undefined;

  /** url: the model's folder; stallSeconds: without a byte, after which a request is given up. */
  constructor(url: string, stallSeconds?: number) {
    this.source = new Source(url, { stallSeconds });
  }

  /** Read ahead what Python asks for first, and open the store. Never throws: whoever asks for a file gets its error. */
  async open(): Promise<void> {
    for (const file of SETTINGS) this.text(file).catch(() => undefined);
    const place = await this.place().catch(() => undefined);
    for (const file of new Set(Object.values(this.index.weight_map ?? { '': SINGLE })))
      if (!file.includes('/')) this.header(file).catch(() => undefined);
    if (place) this.store = await ShardStore.open(place, (file) => this.listed(file).size);
  }

  /** The address of the model's folder. */
  get folder(): string {
    return this.source.base;
  }

  /** The shard index; undefined where the folder has none. Throws HostError. */
  indexText(): Promise<string | undefined> {
    return this.text(INDEX);
  }

  /** A small text file, asked for once; undefined where the folder has none. Throws HostError. */
  text(file: string): Promise<string | undefined> {
    let text = this.texts.get(file);
    if (!text) this.texts.set(file, (text = this.source.text(file)));
    return text;
  }

  /** A small text file that has to be there. told: of its bytes as they come. Throws HostError. */
  async required(file: string, told?: Told): Promise<string> {
    const text = await this.texts.get(file);
    if (text !== undefined) return text;
    const decoder = new TextDecoder();
    const place = await this.place();
    const sum = this.index.metadata?.files?.[file]?.sha256;
    if (!place || !sum) return decoder.decode(await this.source.whole(file, undefined, told));
    const kept = await readSmall(place, file);
    if (kept && (await sha256(kept)) === sum) {
      told?.(kept.length, kept.length);
      return decoder.decode(kept);
    }
    for (let n = 0; n < 2; n++) {
      const bytes = await this.source.whole(file, undefined, told);
      if ((await sha256(bytes)) !== sum) continue;
      void keepSmall(place, file, bytes);
      return decoder.decode(bytes);
    }
    throw damaged(file);
  }

  /** As `required`, but undefined where the folder has none. Throws HostError. */
  async optional(file: string): Promise<string | undefined> {
    await this.place();
    return this.index.metadata?.files?.[file] ? this.required(file) : this.text(file);
  }

  /** A shard's header. Throws HostError. */
  header(file: string): Promise<Header> {
    return this.source.header(file, this.listed(file).size);
  }

  /** What the index says of a shard. */
  listed(file: string): Listed {
    return this.index.metadata?.shards?.[file] ?? {};
  }

  /** Whether a shard is on disk, for `read`; for others there is `stream`. */
  has(file: string): boolean {
    return this.store?.has(file) ?? false;
  }

  /** Read bytes of a shard that is on disk, from `offset` on, straight into `into`. Throws HostError. */
  read(file: string, offset: number, into: Uint8Array): void {
    this.store?.read(file, offset, into);
  }

  /** Bytes of a shard from the host, as `Source.stream`. Throws HostError, or the signal's reason. */
  stream(...range: Parameters<Source['stream']>): Promise<void> {
    return this.source.stream(...range);
  }

  /** Bytes of a shard from the host. Throws HostError, or the signal's reason. */
  bytes(...range: Parameters<Source['bytes']>): Promise<Uint8Array> {
    return this.source.bytes(...range);
  }

  /** Begin to keep a shard of `size` bytes. undefined: it cannot be kept. */
  async keep(file: string, size: number): Promise<ShardWriter | undefined> {
    return this.store?.writer(file, size);
  }

  /** Read the index; where this version of the model is kept, undefined for a folder without an index. */
  private async place(): Promise<Place | undefined> {
    const text = await this.indexText();
    if (text === undefined) return undefined;
    try {
      this.index = JSON.parse(text) as Index;
    } catch {
      return undefined;
    }
    return placeOf(this.source.base, text);
  }
}
