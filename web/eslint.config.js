import js from '@eslint/js';
import { createNodeResolver, importX } from 'eslint-plugin-import-x';
import tseslint from 'typescript-eslint';

/** Nothing in `target` may import from `from`. */
const wall = (target, from, message, except = []) => ({
  target: `src/${target}`,
  from: `src/${from}`,
  except,
  message,
});

/** The host runs in any worker, and from any place. */
const host = {
  files: ['src/engine/host/**/*.ts'],
  rules: {
    'no-restricted-imports': ['error', { name: 'comlink', message: 'how the client talks is its own affair' }],
    'no-restricted-globals': ['error', 'document', 'window'],
    'no-restricted-syntax': [
      'error',
      { selector: 'MetaProperty', message: 'addresses are given to the host (Assets)' },
    ],
  },
};

export default tseslint.config(
  { ignores: ['dist/', 'node_modules/', 'demo/'] },
  js.configs.recommended,
  {
    files: ['**/*.ts'],
    extends: [tseslint.configs.strictTypeChecked, tseslint.configs.stylisticTypeChecked],
    plugins: { 'import-x': importX },
    settings: {
      'import-x/extensions': ['.ts'],
      'import-x/parsers': { '@typescript-eslint/parser': ['.ts'] },
      'import-x/resolver-next': [createNodeResolver({ extensions: ['.ts', '.js'] })],
    },
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      // Byte counts and names go into messages as they are.
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }],
      'import-x/no-cycle': 'error',
      'import-x/no-restricted-paths': [
        'error',
        {
          basePath: import.meta.dirname,
          zones: [
            wall('engine', 'app', 'the engine knows no page'),
            wall('engine', 'bench', 'the engine knows no page'),
            wall('engine/host', 'engine/client', 'the host serves any client'),
            wall('engine/client', 'engine/host', "the host's door is engine/host/index.ts", ['index.ts']),
            wall('app', 'engine', "the engine's door is engine/client/index.ts", ['client/index.ts']),
            wall('bench', 'engine', "the engine's door is engine/client/index.ts", ['client/index.ts']),
          ],
        },
      ],
    },
  },
  host,
);
