/**
 * A model's shards, kept in the browser's private file system (OPFS), so that the next visit reads them from disk.
 *
 * A shard is written while it is downloaded, and marked as whole (by an empty file beside it) once its bytes have been
 * checked. One tab at a time has a model's store. Without OPFS, without room, or in a second tab the
 * model comes from its host: loading never depends on the store, nor waits for it.
 */
import { hostError } from './errors';
import { inTime, modelFolder, ROOT, type Place } from './opfs';

const WHOLE = '.whole';
/** A page that was just closed takes a moment to let its store go. */
const LOCK_MS = 3000;
const OPEN_TRIES = 20;
const OPEN_PAUSE_MS = 100;

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
  /** Everything has been written and is as it should be: mark it as whole. */
  finish(): Promise<void>;
  /** What has been written is not to be kept. */
  discard(): Promise<void>;
}

export class ShardStore {
  private readonly handles = new Map<string, FileSystemSyncAccessHandle>();

  private constructor(
    private readonly folder: FileSystemDirectoryHandle,
    private readonly sizes: (file: string) => number | undefined,
  ) {}

  /**
   * The store of a model's version; what older ones left is removed. sizes: of the shards, where the index has them.
   * undefined: no store here.
   */
  static open(place: Place, sizes: (file: string) => number | undefined): Promise<ShardStore | undefined> {
    return inTime(ShardStore.find(place, sizes));
  }

  private static async find(
    place: Place,
    sizes: (file: string) => number | undefined,
  ): Promise<ShardStore | undefined> {
    const { model, version } = place;
    if (!(await lock(`${ROOT}/${model}`))) return undefined;
    const versions = await modelFolder(place);
    for (const name of await names(versions))
      if (name !== version) await versions.removeEntry(name, { recursive: true });
    const folder = await versions.getDirectoryHandle(version, { create: true });
    const store = new ShardStore(folder, sizes);
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
    return this.writing(file, handle);
  }

  private writing(file: string, handle: FileSystemSyncAccessHandle): ShardWriter {
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
        handle.flush();
        await inTime(this.folder.getFileHandle(file + WHOLE, { create: true }));
        this.handles.set(file, handle);
      },
      discard,
    };
  }

  /** Open every shard that is marked as whole; one of another size than the index's is forgotten. */
  private async openWhole(): Promise<void> {
    const there = new Set(await names(this.folder));
    const open = async (file: string): Promise<void> => {
      const handle = await openFile(this.folder, file);
      const size = this.sizes(file);
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
