/** The models that this site offers. */

/** One entry of models/index.json, as the demo script writes it. */
export interface ModelEntry {
  id: string;
  name: string;
  /** Address of the model's folder, relative to the index. */
  folder: string;
  bytes: number;
  license: string;
  /** Whether the model has learnt to answer; others continue a text. */
  chat: boolean;
  description: string;
}

const INDEX = 'models/index.json';
const LIST_MS = 20_000;

/** The list of models; empty where the site has none. Rejects with an error that names the list. */
export async function listModels(): Promise<ModelEntry[]> {
  const here = new URL(INDEX, document.baseURI);
  const response = await fetch(here, { cache: 'no-cache', signal: AbortSignal.timeout(LIST_MS) }).catch(
    (e: unknown) => {
      throw new Error(`${INDEX}: ${(e as Error).message}; check the connection to ${here.origin} and reload the page`);
    },
  );
  if (response.status === 404) return [];
  const advice = `put the models' folder on the server (./build.sh demo makes one), or enter a model's address`;
  if (!response.ok) throw new Error(`${INDEX}: the server answered ${response.status}; ${advice}`);
  const entries = parsed(await response.text());
  if (!entries) throw new Error(`${INDEX}: the server answered with something else than a list of models; ${advice}`);
  return entries.map((entry) => ({ ...entry, folder: new URL(entry.folder, here).href }));
}

function parsed(text: string): ModelEntry[] | undefined {
  try {
    const list: unknown = JSON.parse(text);
    return Array.isArray(list) ? (list as ModelEntry[]) : undefined;
  } catch {
    return undefined;
  }
}

/** Bytes as people read them. */
export function formatBytes(bytes: number): string {
  return bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;
}
