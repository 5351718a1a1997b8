/** What a tokenizer's folder says beside tokenizer.json, as transformers has it; see py/oxinfer_web/text/files.py. */

/** An entry of tokenizer.json's added_tokens: text is cut at it. */
export interface AddedToken {
  id: number;
  content: string;
  single_word?: boolean;
  lstrip?: boolean;
  rstrip?: boolean;
  normalized?: boolean;
  special?: boolean;
}

type Token = string | (Partial<AddedToken> & { content: string }) | null;
type Json = Record<string, unknown>;
type Flags = Omit<AddedToken, 'id' | 'content'>;

/** Reads a file of the folder; undefined where there is none. */
export type ReadText = (file: string) => Promise<string | undefined>;

const NAMES = ['bos_token', 'eos_token', 'unk_token', 'sep_token', 'pad_token', 'cls_token', 'mask_token'];

function present<T>(entry: [string, T | undefined]): entry is [string, T] {
  return entry[1] !== undefined;
}

const textOf = (token: unknown): string =>
  typeof token === 'string' ? token : ((token as { content?: string } | null)?.content ?? '');

function flagsOf(token: Token): Flags {
  if (typeof token !== 'object' || token === null) return {};
  const { single_word, lstrip, rstrip, special, normalized } = token;
  const given = Object.entries({ single_word, lstrip, rstrip, special }).filter(present);
  return { ...Object.fromEntries(given), normalized: normalized ?? !special };
}

const isObject = (value: unknown): value is Json =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

export class TokenizerConfig {
  /** Chat templates by name; the usual one is "default". */
  readonly templates: ReadonlyMap<string, string>;
  /** The texts of tokens with a role, by role: bos_token, eos_token, ..., image_token. */
  readonly special: Readonly<Record<string, string>>;

  private constructor(private readonly raw: Json) {
    this.templates = new Map(templatesOf(raw.chat_template));
    const roles = Object.entries(raw).filter(
      ([name, token]) => NAMES.includes(name) || (name.endsWith('_token') && typeof token === 'string'),
    );
    if (isObject(this.extra)) roles.push(...Object.entries(this.extra));
    const texts = roles.map(([name, token]): [string, string] => [name, textOf(token)]);
    this.special = Object.fromEntries(texts.filter(([, text]) => text !== ''));
  }

  /**
   * Read the files, all of which may be absent. Where tokenizer_config.json does not say that it is complete, as after
   * a conversion, the others are asked for; only further templates in a folder cannot be.
   */
  static async read(json: (file: string) => Promise<Json | undefined>, text: ReadText): Promise<TokenizerConfig> {
    const raw = { ...(await json('tokenizer_config.json')) };
    if (raw.oxinfer_complete) return new TokenizerConfig(raw);
    const [jinja, older] = await Promise.all([text('chat_template.jinja'), json('chat_template.json')]);
    if (!('added_tokens_decoder' in raw)) {
      const [map, added] = await Promise.all([json('special_tokens_map.json'), json('added_tokens.json')]);
      Object.assign(raw, map);
      if (added && Object.keys(added).length > 0) {
        const special = new Set(Object.values(new TokenizerConfig(raw).special));
        raw.added_tokens_decoder = Object.fromEntries(
          Object.entries(added).map(([content, id]) => [String(id), { content, special: special.has(content) }]),
        );
      }
    }
    raw.chat_template = jinja ?? older?.chat_template ?? raw.chat_template;
    return new TokenizerConfig(raw);
  }

  /** tokenizer.json's added tokens, with those that these files add or say more of. model: its vocabulary. */
  addTo(added: AddedToken[], vocabulary: Json): AddedToken[] {
    const tokens = new Map(added.map((token) => [token.content, { ...token }]));
    let next = Math.max(Object.keys(vocabulary).length - 1, ...added.map(({ id }) => id)) + 1;
    for (const [content, flags] of this.wanted()) {
      const known = tokens.get(content);
      const id = known?.id ?? (vocabulary[content] as number | undefined) ?? next++;
      tokens.set(content, { ...known, ...flags, id, content });
    }
    return [...tokens.values()];
  }

  /** The tokens that text a person typed must not become: special ones, and those that only a template writes. */
  isControl({ content, special }: AddedToken): boolean {
    if (special) return true;
    const declared = this.raw.chat_control_tokens;
    if (Array.isArray(declared)) return declared.includes(content);
    return content.trim() !== '' && [...this.templates.values()].some((template) => template.includes(content));
  }

  private get extra(): unknown {
    const { extra_special_tokens: extra, additional_special_tokens: older } = this.raw;
    return isObject(extra) || (Array.isArray(extra) && extra.length > 0) ? extra : older;
  }

  private wanted(): Map<string, Flags> {
    const declared = Object.entries((this.raw.added_tokens_decoder ?? {}) as Record<string, Token>);
    declared.sort(([a], [b]) => Number(a) - Number(b));
    const wanted = new Map(declared.map(([, token]) => [textOf(token), flagsOf(token)]));
    const extra = Array.isArray(this.extra) ? (this.extra as Token[]) : [];
    for (const token of [...Object.values(this.special), ...extra])
      wanted.set(textOf(token), {
        ...(wanted.get(textOf(token)) ?? { normalized: false }),
        ...flagsOf(token),
        special: true,
      });
    wanted.delete('');
    return wanted;
  }
}

/** Templates by name, from the ways in which they are written: one text, or a list or an object of named ones. */
function templatesOf(value: unknown): [string, string][] {
  if (typeof value === 'string') return [['default', value]];
  const named = Array.isArray(value)
    ? value.map(({ name, template }: { name: string; template: unknown }): [string, unknown] => [name, template])
    : Object.entries(isObject(value) ? value : {});
  return named.filter((entry): entry is [string, string] => typeof entry[1] === 'string');
}
