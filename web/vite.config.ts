import { defineConfig, type BuildEnvironmentOptions } from 'vite';

const target = 'es2022';
const API = 'oxinfer-web';

/** The site is plain files under any path; Pyodide, the kernels and the models are put beside it by build.sh. */
const site: BuildEnvironmentOptions = {
  target,
  outDir: 'dist',
  // dist also holds pyodide/, kernels/ and models/, which Vite does not make.
  emptyOutDir: false,
  rolldownOptions: {
    input: { index: 'index.html', bench: 'bench.html', [API]: 'src/engine/client/index.ts' },
    preserveEntrySignatures: 'allow-extension',
    // Pages of other people's import it, so its name has no hash.
    output: { entryFileNames: ({ name }) => (name === API ? '[name].js' : 'assets/[name]-[hash].js') },
  },
};

/** The host alone, in one file, for a Pyodide that somebody else starts. */
const host: BuildEnvironmentOptions = {
  target,
  lib: { entry: 'src/engine/host/index.ts', formats: ['es'], fileName: 'host' },
};

export default defineConfig(({ mode }) => ({
  base: './',
  publicDir: false,
  build: mode === 'host' ? host : site,
  worker: { format: 'es' },
}));
