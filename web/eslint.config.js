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

export default tseslint.config({ ignores: ['dist/', 'node_modules/', 'demo/'] }, js.configs.recommended, {
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
});
