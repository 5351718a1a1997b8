/**
 * A model's shards, kept in the browser's private file system (OPFS), so that the next visit reads them from disk.
 *
 * A shard is written while it is downloaded, its sha256 is compared with the index's, and only then is it marked as whole
 * (by an empty file beside it). Without OPFS, without room, or while another tab has the shard, the model is simply not
 * kept: loading never depends on the store.
 */
import { hostError } from './errors';
import type { Source } from './source';

const ROOT = 'oxinfer-models';
const WHOLE = '.whole';

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
    createSyncAccessHandle(options?: { mode: 'read-only' }): Promise<FileSystemSyncAccessHandle>;
  }
}

interface IndexMetadata {
  metadata?: { shards?: Record<string, { size?: number; sha256?: string }> };
}

const hex = (bytes: ArrayBuffer): string =>
  [...new Uint8Array(bytes)].map((b) => b.toString(16).padStart(2, '0')).join('');

const digest = async (data: BufferSource): Promise<string> => hex(await crypto.subtle.digest('SHA-256', data));

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
    private readonly names: Set<string>,
    private readonly about: Record<string, { size?: number; sha256?: string }>,
  ) {}

  /** The store of a model, for the index it has now; what an older index left is removed. undefined: no store here. */
  static async open(source: Source): Promise<ShardStore | undefined> {
    try {
      const index = await source.indexText();
      if (index === undefined) return undefined;
      const { metadata } = JSON.parse(index) as IndexMetadata;
      const text = new TextEncoder();
      const [model, version] = await Promise.all([digest(text.encode(source.base)), digest(text.encode(index))]);
      const root = await navigator.storage.getDirectory();
      const versions = await (
        await root.getDirectoryHandle(ROOT, { create: true })
      ).getDirectoryHandle(model.slice(0, 32), { create: true });
      const names = async (folder: FileSystemDirectoryHandle): Promise<string[]> => {
        const out: string[] = [];
        for await (const name of folder.keys()) out.push(name);
        return out;
      };
      const folder = await versions.getDirectoryHandle(version.slice(0, 32), { create: true });
      for (const name of await names(versions))
        if (name !== version.slice(0, 32)) await versions.removeEntry(name, { recursive: true });
      const store = new ShardStore(folder, new Set(await names(folder)), metadata?.shards ?? {});
      await store.openWhole();
      return store;
    } catch {
      return undefined;
    }
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
  async writer(file: string, size: number): Promise<ShardWriter | undefined> {
    try {
      const { quota = 0, usage = 0 } = await navigator.storage.estimate();
      if (quota - usage < size) return undefined;
      const handle = await (await this.folder.getFileHandle(file, { create: true })).createSyncAccessHandle();
      handle.truncate(0);
      return this.writing(file, size, handle);
    } catch {
      return undefined;
    }
  }

  private writing(file: string, size: number, handle: FileSystemSyncAccessHandle): ShardWriter {
    let failed = false;
    const discard = async (): Promise<void> => {
      handle.close();
      await this.folder.removeEntry(file);
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
        await this.folder.getFileHandle(file + WHOLE, { create: true });
        this.handles.set(file, handle);
      },
    };
  }

  /** Open every shard that is marked as whole; one that another tab is using is left out. */
  private async openWhole(): Promise<void> {
    const files = [...this.names].filter((name) => this.names.has(name + WHOLE));
    await Promise.all(
      files.map(async (file) => {
        try {
          // Where there is such a mode, several tabs can read the same shard.
          const handle = await (await this.folder.getFileHandle(file)).createSyncAccessHandle({ mode: 'read-only' });
          const size = this.about[file]?.size;
          if (size === undefined || handle.getSize() === size) this.handles.set(file, handle);
          else handle.close();
        } catch {
          // In use elsewhere: read from the host instead.
        }
      }),
    );
  }
}
