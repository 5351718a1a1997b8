/** What Python makes of values in a chat template, where @huggingface/jinja goes by JavaScript. */
import { Environment } from '@huggingface/jinja';

/** A value of the library's interpreter; objects and keyword arguments are maps. */
export interface Value {
  type: string;
  value: unknown;
}

export const valueOf = (plain: unknown): Value => new Environment().set('value', plain);

const list = (value: Value): Value[] => value.value as Value[];
const entries = (value: Value): [string, Value][] => [...(value.value as Map<string, Value>)];

/** str(value). */
export function str(value: Value): string {
  return value.type === 'StringValue' ? (value.value as string) : repr(value);
}

function repr(value: Value): string {
  switch (value.type) {
    case 'StringValue':
      return quoted(value.value as string);
    case 'BooleanValue':
      return value.value ? 'True' : 'False';
    case 'NullValue':
      return 'None';
    case 'UndefinedValue':
      return '';
    case 'FloatValue':
      return float(value.value as number);
    case 'TupleValue':
      return `(${list(value).map(repr).join(', ')}${list(value).length === 1 ? ',' : ''})`;
    case 'ArrayValue':
      return `[${list(value).map(repr).join(', ')}]`;
    case 'ObjectValue':
      return `{${entries(value)
        .map(([key, item]) => `${quoted(key)}: ${repr(item)}`)
        .join(', ')}}`;
    default:
      return String(value.value);
  }
}

const ESCAPES: Record<string, string> = { '\n': '\\n', '\r': '\\r', '\t': '\\t', '\\': '\\\\' };

function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const escaped = text.replace(/[\\\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}|'/gu, (c) => {
    if (c === "'") return quote === "'" ? "\\'" : c;
    const code = c.codePointAt(0) ?? 0;
    const digits = code < 0x100 ? 2 : code < 0x10000 ? 4 : 8;
    const kind = { 2: 'x', 4: 'u', 8: 'U' }[digits];
    return ESCAPES[c] ?? `\\${kind}${code.toString(16).padStart(digits, '0')}`;
  });
  return quote + escaped + quote;
}

function float(number: number): string {
  if (Object.is(number, -0)) return '-0.0';
  const size = Math.abs(number);
  if (!Number.isFinite(number)) return Number.isNaN(number) ? 'nan' : number > 0 ? 'inf' : '-inf';
  if (size !== 0 && (size >= 1e16 || size < 1e-4))
    return number.toExponential().replace(/e([+-])(\d)$/, (_, sign: string, digit: string) => `e${sign}0${digit}`);
  return Number.isInteger(number) ? `${number}.0` : String(number);
}

export interface JsonOptions {
  ensureAscii: boolean;
  indent: string | undefined;
  separators: [string, string];
  sortKeys: boolean;
}

/** json.dumps(value, ...); throws for what is no JSON, as undefined. */
export function json(value: Value, options: JsonOptions, depth = 0): string {
  const { indent, separators, sortKeys, ensureAscii } = options;
  const text = (plain: string): string => {
    const quotes = JSON.stringify(plain);
    return ensureAscii
      ? quotes.replace(/[\u007f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`)
      : quotes;
  };
  const wrap = (open: string, items: string[], close: string): string => {
    if (indent === undefined || items.length === 0) return open + items.join(separators[0]) + close;
    const line = `\n${indent.repeat(depth)}`;
    return `${open}${line}${indent}${items.join(`${separators[0]}${line}${indent}`)}${line}${close}`;
  };
  switch (value.type) {
    case 'NullValue':
      return 'null';
    case 'BooleanValue':
      return String(value.value);
    case 'StringValue':
      return text(value.value as string);
    case 'IntegerValue':
    case 'FloatValue':
      return repr(value);
    case 'ArrayValue':
    case 'TupleValue':
      return wrap(
        '[',
        list(value).map((item) => json(item, options, depth + 1)),
        ']',
      );
    case 'ObjectValue': {
      const pairs = entries(value);
      if (sortKeys) pairs.sort(([a], [b]) => (a < b ? -1 : 1));
      return wrap(
        '{',
        pairs.map(([key, item]) => text(key) + separators[1] + json(item, options, depth + 1)),
        '}',
      );
    }
    default:
      throw new Error(`Object of type ${value.type.replace('Value', '')} is not JSON serializable`);
  }
}

const SPACE = '\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000';

/** str.strip, lstrip and rstrip, of white space or of these characters. */
export function strip(text: string, characters: string | undefined, left: boolean, right: boolean): string {
  const some = characters === undefined ? undefined : new Set(characters);
  const space = new RegExp(`[${SPACE}]`);
  const goes = (c: string | undefined): boolean => c !== undefined && (some ? some.has(c) : space.test(c));
  const points = Array.from(text);
  let [start, end] = [0, points.length];
  while (left && start < end && goes(points[start])) start++;
  while (right && end > start && goes(points[end - 1])) end--;
  return points.slice(start, end).join('');
}

/** str.split and rsplit; at runs of white space, or at a separator. */
export function split(text: string, separator: string | undefined, most: number, fromRight: boolean): string[] {
  if (separator === '') throw new Error('empty separator');
  const parts = separator === undefined ? strip(text, undefined, true, true).split(new RegExp(`([${SPACE}]+)`)) : [];
  if (separator !== undefined)
    for (const part of text.split(separator)) parts.push(...(parts.length > 0 ? [separator, part] : [part]));
  if (separator === undefined && parts.length === 1 && parts[0] === '') return [];
  // parts: text, separator, text, ...
  const cuts = (parts.length - 1) / 2;
  const extra = most < 0 ? 0 : Math.max(0, cuts - most);
  if (extra === 0) return parts.filter((_, i) => i % 2 === 0);
  return fromRight
    ? [parts.slice(0, 2 * extra + 1).join(''), ...parts.slice(2 * extra + 2).filter((_, i) => i % 2 === 0)]
    : [...parts.slice(0, 2 * most).filter((_, i) => i % 2 === 0), parts.slice(2 * most).join('')];
}
