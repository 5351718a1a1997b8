/** A model folder's tokenizer and chat template, read as transformers reads them; as py/oxinfer_web/text/text.py. */
import { OxinferError } from '../../host';
import type { ChatMessage } from '../protocol';
import { TokenizerConfig } from './config';
import { strings, unusedCharacter } from './control';
import { PieceDecoder } from './decoder';
import { Encoder, type TokenizerJson } from './encoder';
import { render } from './template';

export { TokenizerConfig } from './config';
export type { PieceDecoder } from './decoder';
export type { TokenizerJson } from './encoder';

/**
 * Text to token ids and back. Control tokens (those that the tokenizer calls special, and those that only a chat
 * template writes) are control tokens where a template writes them; in what somebody typed they are text, unless
 * `controlTokens` is true.
 */
export class Text {
  private readonly encoder: Encoder;

  /** Throws what the library throws where it cannot use tokenizer.json. */
  constructor(
    json: TokenizerJson,
    private readonly config: TokenizerConfig,
  ) {
    this.encoder = new Encoder(json, config);
  }

  /** Token ids of a text, with those the tokenizer puts around it (bos). */
  encode(text: string, controlTokens = false): number[] {
    return this.encoder.encode(text, true, controlTokens);
  }

  /**
   * Token ids of a conversation up to where the model is to answer; variables: what else the template reads, as
   * `tools`. Throws ConfigError without a template.
   */
  encodeChat(messages: ChatMessage[], controlTokens = false, variables: Record<string, unknown> = {}): number[] {
    const { control } = this.encoder;
    const given = [messages, variables];
    const texts = [...strings(given)];
    if (controlTokens || !texts.some((text) => control.isIn(text)))
      return this.encoder.encode(this.render(messages, variables), false, true);
    const guard = unusedCharacter([...texts, ...this.config.templates.values()]);
    const [guarded, others] = control.guard(given, guard) as [ChatMessage[], Record<string, unknown>];
    const { text, starts } = control.unguard(this.render(guarded, others), guard);
    return this.encoder.encode(text, false, starts);
  }

  /**
   * The prompt that a chat template makes of a conversation; template: by default the model's, else its name or itself.
   * Throws ConfigError.
   */
  render(messages: ChatMessage[], variables: Record<string, unknown> = {}, template?: string): string {
    const { templates, special } = this.config;
    if (messages.length === 0)
      throw new OxinferError('ConfigError', 'the conversation is empty; give at least one message');
    const chosen = template === undefined ? this.template(variables) : (templates.get(template) ?? template);
    const filled = messages.map((message) =>
      Object.fromEntries(Object.entries(message).filter(([, value]) => (value as unknown) !== null)),
    );
    const settings = { tools: null, documents: null, add_generation_prompt: true, ...special };
    return render(chosen, { messages: filled, ...settings, ...variables });
  }

  /** Begin turning tokens into text. prompt: the tokens that they continue. */
  pieces(prompt: number[]): PieceDecoder {
    return new PieceDecoder(this.encoder, prompt);
  }

  private template({ tools }: Record<string, unknown>): string {
    const { templates } = this.config;
    if (templates.size === 0)
      throw new OxinferError('ConfigError', 'the model has no chat template; it only continues text');
    const forTools = tools === undefined || tools === null ? undefined : templates.get('tool_use');
    const found = forTools ?? templates.get('default');
    if (found !== undefined) return found;
    const names = [...templates.keys()].join(', ');
    throw new OxinferError('ConfigError', `the model has chat templates ${names}, but no default one`);
  }
}
