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

/** The list of models; empty where the site has none. */
export async function listModels(): Promise<ModelEntry[]> {
  const response = await fetch(INDEX, { cache: 'no-cache' });
  if (!response.ok) return [];
  const entries = (await response.json()) as ModelEntry[];
  const base = new URL(INDEX, document.baseURI);
  return entries.map((entry) => ({ ...entry, folder: new URL(entry.folder, base).href }));
}

/** Bytes as people read them. */
export function formatBytes(bytes: number): string {
  return bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;
}
