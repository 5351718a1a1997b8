/**
 * Run compile_archive.py in Pyodide itself, whose Python has the bytecode that pages will load.
 *
 * node compile_archives.mjs OUT-FOLDER ARCHIVE...
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import process from 'node:process';
import { loadPyodide } from 'pyodide';

const [out, ...archives] = process.argv.slice(2);
const pyodide = await loadPyodide();
pyodide.runPython(readFileSync(join(import.meta.dirname, 'compile_archive.py'), 'utf8'));
const compile = pyodide.globals.get('compile_archive');
for (const archive of archives) {
  pyodide.FS.writeFile('source.zip', readFileSync(archive));
  compile('source.zip', 'target.zip');
  writeFileSync(join(out, basename(archive)), pyodide.FS.readFile('target.zip'));
}
