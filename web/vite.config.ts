import { defineConfig } from 'vite';

/** The site is plain files under any path; Pyodide, the kernels and the models are put beside it by build.sh. */
export default defineConfig({
  base: './',
  publicDir: false,
  build: {
    target: 'es2022',
    outDir: 'dist',
    // dist also holds pyodide/, kernels/ and models/, which Vite does not make.
    emptyOutDir: false,
    rolldownOptions: { input: ['index.html', 'bench.html'] },
  },
  worker: { format: 'es' },
});
