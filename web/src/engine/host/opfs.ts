/** The browser's private file system (OPFS), where it has one: a folder for each version of a model. */
import { sha256 } from './digest';

export const ROOT = 'oxinfer-models';
const SMALL = 'small';
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

/** Where a model's files are kept: by its address, and by what its index says now. */
export interface Place {
  model: string;
  version: string;
}

export async function placeOf(base: string, index: string): Promise<Place> {
  const [model = '', version = ''] = await Promise.all([base, index].map((part) => sha256(part)));
  return { model: model.slice(0, 32), version: version.slice(0, 32) };
}

/** The folder of all of a model's versions. */
export async function modelFolder({ model }: Place): Promise<FileSystemDirectoryHandle> {
  const root = await (await navigator.storage.getDirectory()).getDirectoryHandle(ROOT, { create: true });
  return root.getDirectoryHandle(model, { create: true });
}

/** What work resolves to; undefined if it fails, or is not done in time. */
export const inTime = async <T>(work: Promise<T>): Promise<T | undefined> =>
  Promise.race([
    work.catch(() => undefined),
    new Promise<undefined>((resolve) => {
      setTimeout(resolve, PATIENCE_MS, undefined);
    }),
  ]);

async function smallFile(place: Place, file: string, create: boolean): Promise<FileSystemFileHandle> {
  const version = await (await modelFolder(place)).getDirectoryHandle(place.version, { create });
  return (await version.getDirectoryHandle(SMALL, { create })).getFileHandle(file, { create });
}

/** A small file as it was kept, whole or not; undefined if it was not. */
export const readSmall = (place: Place, file: string): Promise<Uint8Array<ArrayBuffer> | undefined> =>
  inTime(
    smallFile(place, file, false)
      .then((handle) => handle.getFile())
      .then(async (kept) => new Uint8Array(await kept.arrayBuffer())),
  );

/** Keep a small file, if that can be done. Whoever reads it has to check it: another tab may keep it at this moment. */
export const keepSmall = (place: Place, file: string, bytes: Uint8Array): Promise<void> =>
  inTime(
    smallFile(place, file, true).then(async (handle) => {
      const access = await handle.createSyncAccessHandle();
      try {
        access.truncate(0);
        access.write(bytes, { at: 0 });
        access.flush();
      } finally {
        access.close();
      }
    }),
  );
