/** Starting Pyodide with our package, both from the site itself. */
import type { PyodideAPI } from 'pyodide';

type LoadPyodide = (options: { indexURL: string; lockFileURL: string }) => Promise<PyodideAPI>;

/** Load Pyodide from `folder` (an address ending in a slash) and let micropip install our wheel by its lock file. */
export async function startPython(folder: string): Promise<PyodideAPI> {
  const { loadPyodide } = (await import(/* @vite-ignore */ `${folder}pyodide.mjs`)) as { loadPyodide: LoadPyodide };
  const pyodide = await loadPyodide({ indexURL: folder, lockFileURL: `${folder}pyodide-lock.json` });
  await pyodide.loadPackage('micropip', { messageCallback: () => undefined });
  await pyodide.runPythonAsync('import micropip\nawait micropip.install("oxinfer-web")');
  return pyodide;
}
