/** Which version of a file an answer is of, as far as its host says. */

/** As `Content-Range` has it: the part that came, last byte included, and the size of the whole file. */
interface Part {
  start: number;
  end: number;
}

export interface Version {
  etag: string | undefined;
  modified: string | undefined;
  /** Bytes of the whole file. */
  size: number | undefined;
}

const RANGE = /^bytes (?:(\d+)-(\d+)|\*)\/(\d+|\*)$/;

/** The part of the file that an answer has; undefined where the host hides it. */
export function partOf({ headers }: Response): Part | undefined {
  const [, start, end] = RANGE.exec(headers.get('Content-Range') ?? '') ?? [];
  return start === undefined ? undefined : { start: Number(start), end: Number(end) };
}

export function versionOf(response: Response): Version {
  const { headers } = response;
  const size = RANGE.exec(headers.get('Content-Range') ?? '')?.[3];
  return {
    etag: headers.get('ETag') ?? undefined,
    modified: headers.get('Last-Modified') ?? undefined,
    size: size === undefined || size === '*' ? undefined : Number(size),
  };
}

/** Whether the answers are surely of different versions: what only one of them says does not count. */
export function differ(a: Version, b: Version): boolean {
  const other = (x?: string | number, y?: string | number): boolean => x !== undefined && y !== undefined && x !== y;
  if (other(a.size, b.size)) return true;
  // An answer that was compressed on its way may have a weak tag, or another date, for the same file.
  const [x, y] = [a, b].map(({ etag }) => etag?.replace(/^W\//, ''));
  return x !== undefined && y !== undefined ? x !== y : other(a.modified, b.modified);
}

/** What `If-Range` may say: a strong tag, or a date. */
export const condition = ({ etag, modified }: Version): string | undefined =>
  etag?.startsWith('"') ? etag : (modified ?? undefined);
