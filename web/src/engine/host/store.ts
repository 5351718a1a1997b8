/**
 * A model's shards, kept in the browser's private file system (OPFS), so that the next visit reads them from disk.
 *
 * A shard is written while it is downloaded, its sha256 is compared with the index's, and only then is it marked as whole
 * (by an empty file beside it). One tab at a time has a model's store. Without OPFS, without room, or in a second tab the
 * model comes from its host: loading never depends on the store, nor waits for it.
 */
import { hostError } from './errors';
import type { Source } from './source';

const ROOT = 'oxinfer-models';
const WHOLE = '.whole';
/** A page that was just closed takes a moment to let its store go. */
const LOCK_MS = 3000;
const OPEN_TRIES = 20;
const OPEN_PAUSE_MS = 100;
const PATIENCE_MS = 6000;

// TypeScript has these among its worker types only, which exclude those of a page.
declare global {
  interface FileSystemSyncAccessHandle {
    read(into: Uint8Array, options: { at: number }): number;
    write(data: Uint8Array, options: { at: number }): number;
    truncate(size: number): void;
    getSize(): number;
    flush(): void;
    close(): void;
  }
  interface FileSystemFileHandle {
    createSyncAccessHandle(): Promise<FileSystemSyncAccessHandle>;
  }
}

interface IndexMetadata {
  metadata?: { shards?: Record<string, { size?: number; sha256?: string }> };
}

const hex = (bytes: ArrayBuffer): string =>
  [...new Uint8Array(bytes)].map((b) => b.toString(16).padStart(2, '0')).join('');

const digest = async (data: BufferSource): Promise<string> => hex(await crypto.subtle.digest('SHA-256', data));

/** What work resolves to; undefined if it fails, or is not done in time. */
const inTime = async <T>(work: Promise<T>): Promise<T | undefined> =>
  Promise.race([
    work.catch(() => undefined),
    new Promise<undefined>((resolve) => {
      setTimeout(resolve, PATIENCE_MS, undefined);
    }),
  ]);

/** Whether this worker now has the lock of that name, which it keeps until it ends. */
const lock = (name: string): Promise<boolean> =>
  new Promise((resolve) => {
    const hold = (): Promise<never> => {
      resolve(true);
      return new Promise(() => undefined);
    };
    navigator.locks.request(name, { signal: AbortSignal.timeout(LOCK_MS) }, hold).catch(() => {
      resolve(false);
    });
  });

/** A shard's file, opened; the page that had it before may take a moment to let it go. */
async function openFile(folder: FileSystemDirectoryHandle, file: string): Promise<FileSystemSyncAccessHandle> {
  const handle = await folder.getFileHandle(file);
  for (let n = 1; ; n++) {
    try {
      return await handle.createSyncAccessHandle();
    } catch (e) {
      if (n === OPEN_TRIES) throw e;
      await new Promise((resolve) => setTimeout(resolve, OPEN_PAUSE_MS));
    }
  }
}

const names = async (folder: FileSystemDirectoryHandle): Promise<string[]> => {
  const out: string[] = [];
  for await (const name of folder.keys()) out.push(name);
  return out;
};

/** A shard being downloaded into the store. */
export interface ShardWriter {
  /** Put a chunk at its place. After a failure (no room) further chunks are ignored. */
  write(chunk: Uint8Array, at: number): void;
  /** Everything has been written: check it and mark it as whole. Throws HostError if the bytes are not the index's. */
  finish(): Promise<void>;
}

export class ShardStore {
  private readonly handles = new Map<string, FileSystemSyncAccessHandle>();

  private constructor(
    private readonly folder: FileSystemDirectoryHandle,
    private readonly about: Record<string, { size?: number; sha256?: string }>,
  ) {}

  /** The store of a model, for the index it has now; what an older index left is removed. undefined: no store here. */
  static open(source: Source): Promise<ShardStore | undefined> {
    return inTime(ShardStore.find(source));
  }

  private static async find(source: Source): Promise<ShardStore | undefined> {
    const index = await source.indexText();
    if (index === undefined) return undefined;
    const { metadata } = JSON.parse(index) as IndexMetadata;
    const text = new TextEncoder();
    const hashes = await Promise.all([source.base, index].map((part) => digest(text.encode(part))));
    const [model = '', version = ''] = hashes.map((hash) => hash.slice(0, 32));
    if (!(await lock(`${ROOT}/${model}`))) return undefined;
    const root = await (await navigator.storage.getDirectory()).getDirectoryHandle(ROOT, { create: true });
    const versions = await root.getDirectoryHandle(model, { create: true });
    for (const name of await names(versions))
      if (name !== version) await versions.removeEntry(name, { recursive: true });
    const folder = await versions.getDirectoryHandle(version, { create: true });
    const store = new ShardStore(folder, metadata?.shards ?? {});
    await store.openWhole();
    return store;
  }

  /** Whether the whole shard can be read from here. */
  has(file: string): boolean {
    return this.handles.has(file);
  }

  /** Read bytes of a shard that the store has, from `offset` on, straight into `into`. Throws HostError. */
  read(file: string, offset: number, into: Uint8Array): void {
    const got = this.handles.get(file)?.read(into, { at: offset });
    if (got !== into.length)
      throw hostError(`${file}: the copy in this browser is damaged; clear this site's data and load the model again`);
  }

  /** Begin to keep a shard of `size` bytes. undefined: it cannot be kept. */
  writer(file: string, size: number): Promise<ShardWriter | undefined> {
    return inTime(this.begin(file, size));
  }

  private async begin(file: string, size: number): Promise<ShardWriter | undefined> {
    const { quota = 0, usage = 0 } = await navigator.storage.estimate();
    if (quota - usage < size) return undefined;
    const handle = await (await this.folder.getFileHandle(file, { create: true })).createSyncAccessHandle();
    handle.truncate(0);
    return this.writing(file, size, handle);
  }

  private writing(file: string, size: number, handle: FileSystemSyncAccessHandle): ShardWriter {
    let failed = false;
    const discard = async (): Promise<void> => {
      handle.close();
      await inTime(this.folder.removeEntry(file));
    };
    return {
      write: (chunk, at) => {
        if (failed) return;
        try {
          failed = handle.write(chunk, { at }) !== chunk.length;
        } catch {
          failed = true; // the disk is full: the model still loads, it is only not kept
        }
      },
      finish: async () => {
        if (failed) return discard();
        const wanted = this.about[file]?.sha256;
        if (wanted) {
          const bytes = new Uint8Array(size);
          handle.read(bytes, { at: 0 });
          if ((await digest(bytes)) !== wanted) {
            await discard();
            throw hostError(`${file}: its sha256 is not the index's, the download is damaged; load the model again`);
          }
        }
        handle.flush();
        await inTime(this.folder.getFileHandle(file + WHOLE, { create: true }));
        this.handles.set(file, handle);
      },
    };
  }

  /** Open every shard that is marked as whole; one of another size than the index's is forgotten. */
  private async openWhole(): Promise<void> {
    const there = new Set(await names(this.folder));
    const open = async (file: string): Promise<void> => {
      const handle = await openFile(this.folder, file);
      const size = this.about[file]?.size;
      if (size === undefined || handle.getSize() === size) {
        this.handles.set(file, handle);
        return;
      }
      handle.close();
      await this.folder.removeEntry(file + WHOLE);
    };
    const whole = [...there].filter((file) => there.has(file + WHOLE));
    await Promise.all(whole.map((file) => open(file).catch(() => undefined)));
  }
}
