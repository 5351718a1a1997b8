/** The tokenizer worker: a large vocabulary takes a second to read, which passes while Pyodide starts elsewhere. */
import * as Comlink from 'comlink';
import { Files, hold, messageOf, OxinferError } from '../host';
import { throttled } from './progress';
import type { TokenizerApi } from './protocol';
import { Text, TokenizerConfig, type PieceDecoder, type TokenizerJson } from './text';

let text: Text | undefined;
const streams = new Map<number, PieceDecoder>();
let streamCount = 0;

function loaded(): Text {
  if (!text) throw new OxinferError('SessionError', 'no tokenizer is loaded; call load first');
  return text;
}

function stream(number: number): PieceDecoder {
  const found = streams.get(number);
  if (!found) throw new OxinferError('SessionError', `no open stream ${number}`);
  return found;
}

type Json = Record<string, unknown>;

/** A file's JSON object. Throws ConfigError. */
function parsed(file: string, content: string): Json;
function parsed(file: string, content: string | undefined): Json | undefined;
function parsed(file: string, content: string | undefined): Json | undefined {
  if (content === undefined) return undefined;
  let json: unknown;
  try {
    json = JSON.parse(content);
  } catch (e) {
    throw new OxinferError('ConfigError', `${file}: not JSON (${messageOf(e)}); convert the model again`);
  }
  if (typeof json === 'object' && json !== null && !Array.isArray(json)) return json as Json;
  throw new OxinferError('ConfigError', `${file}: not a JSON object; convert the model again`);
}

const api: TokenizerApi = {
  hold,

  async load(url, stallSeconds, onProgress) {
    const files = new Files(url, stallSeconds);
    const optional = async (file: string): Promise<Json | undefined> => parsed(file, await files.optional(file));
    const [tokenizer, config] = await Promise.all([
      files.required('tokenizer.json', throttled(onProgress)),
      TokenizerConfig.read(optional, (file) => files.optional(file)),
    ]);
    const json = parsed('tokenizer.json', tokenizer);
    try {
      text = new Text(json as unknown as TokenizerJson, config);
    } catch (e) {
      const why = messageOf(e);
      throw new OxinferError('ConfigError', `tokenizer.json: cannot be used (${why}); convert the model again`);
    }
  },

  encode: (prompt, controlTokens) => loaded().encode(prompt, controlTokens),

  encodeChat: (messages, controlTokens, variables) => loaded().encodeChat(messages, controlTokens, variables),

  render: (messages, variables, template) => loaded().render(messages, variables, template),

  open(prompt) {
    streams.set(++streamCount, loaded().pieces(prompt));
    return streamCount;
  },

  push: (number, tokens) => stream(number).push(tokens),

  rest: (number) => stream(number).rest(),

  close(number) {
    streams.delete(number);
  },
};

Comlink.expose(api);
