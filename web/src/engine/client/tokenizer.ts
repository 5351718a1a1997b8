/** The tokenizer worker: a large vocabulary takes a second to read, which passes while Pyodide starts elsewhere. */
import { Template } from '@huggingface/jinja';
import { Tokenizer } from '@huggingface/tokenizers';
import * as Comlink from 'comlink';
import { StreamDecoder } from './decoder';
import { Files, hold, messageOf, OxinferError } from '../host';
import { throttled, type Report } from './progress';
import type { TokenizerApi } from './protocol';

/** What is read of tokenizer_config.json; a special token is its text or an object with it. */
interface TokenizerConfig {
  chat_template?: string;
  bos_token?: string | { content: string } | null;
  eos_token?: string | { content: string } | null;
}

let tokenizer: Tokenizer | undefined;
let config: TokenizerConfig = {};
const streams = new Map<number, StreamDecoder>();
let streamCount = 0;

function loaded(): Tokenizer {
  if (!tokenizer) throw new OxinferError('SessionError', 'no tokenizer is loaded; call load first');
  return tokenizer;
}

function stream(number: number): StreamDecoder {
  const found = streams.get(number);
  if (!found) throw new OxinferError('SessionError', `no open stream ${number}`);
  return found;
}

const textOf = (token: TokenizerConfig['bos_token']): string =>
  (typeof token === 'object' ? token?.content : token) ?? '';

const api: TokenizerApi = {
  hold,

  async load(url, stallSeconds, onProgress) {
    const files = new Files(url, stallSeconds);
    const read = async (file: string, told?: Report): Promise<object> => {
      const text = await files.required(file, told);
      try {
        return JSON.parse(text) as object;
      } catch (e) {
        throw new OxinferError('ConfigError', `${file}: not JSON (${messageOf(e)}); convert the model again`);
      }
    };
    const [json, settings] = await Promise.all([
      read('tokenizer.json', throttled(onProgress)),
      read('tokenizer_config.json'),
    ]);
    config = settings;
    tokenizer = new Tokenizer(json, settings);
  },

  encode: (text) => loaded().encode(text).ids,

  encodeChat(messages) {
    if (!config.chat_template)
      throw new OxinferError('ConfigError', 'tokenizer_config.json: no chat_template; this model only continues text');
    const text = new Template(config.chat_template).render({
      messages,
      add_generation_prompt: true,
      bos_token: textOf(config.bos_token),
      eos_token: textOf(config.eos_token),
    });
    return loaded().encode(text, { add_special_tokens: false }).ids;
  },

  open(prompt) {
    // The library refuses to decode nothing.
    const decode = (tokens: number[]): string =>
      tokens.length > 0
        ? loaded().decode(tokens, { skip_special_tokens: true, clean_up_tokenization_spaces: false })
        : '';
    streams.set(++streamCount, new StreamDecoder(decode, prompt));
    return streamCount;
  },

  push: (number, tokens) => stream(number).push(tokens),

  rest: (number) => stream(number).finish(),

  close(number) {
    streams.delete(number);
  },
};

Comlink.expose(api);
