/**
 * Rendering chat templates as transformers does. @huggingface/jinja reads them; what it makes of values, of some string
 * methods and filters, and of `break` is corrected here.
 */
import { Environment, Interpreter, parse, Template, tokenize } from '@huggingface/jinja';
import { messageOf, OxinferError } from '../../host';
import { json, split, str, strip, valueOf, type Value } from './python';

type Scope = Environment;

/** A node of the library's syntax tree, which it does not export. */
interface Node {
  type: string;
  value?: unknown;
  body?: Node[];
  defaultBlock?: Node[];
  operand?: Node;
  filter?: Node;
  callee?: Node;
  args?: Node[];
  object?: Node;
  property?: Node;
  computed?: boolean;
  operator?: { value: string };
  left?: Node;
  right?: Node;
}

/** The interpreter with the methods that it calls itself by. */
const Library = Interpreter as unknown as new (global: Scope) => {
  run(program: unknown): Value;
  evaluate(node: Node | undefined, scope: Scope): Value;
  evaluateArguments(args: Node[], scope: Scope): [Value[], Map<string, Value>];
  renderBlock(nodes: Node[], scope: Scope): string;
  renderIf(node: Node, scope: Scope): string;
  renderFor(node: Node, scope: Scope): string;
  executeSet(node: Node, scope: Scope): void;
};

type Arguments = (index: number, name: string) => Value | undefined;

const stringOf = (value: Value | undefined): string | undefined =>
  value === undefined || value.type === 'NullValue' ? undefined : str(value);
const numberOf = (value: Value | undefined, other: number): number => (value ? Number(value.value) : other);
const points = (text: string, units: number): number => (units < 0 ? units : Array.from(text.slice(0, units)).length);

const LINE_ENDS = /\r\n|[\n-\r\u0085\u2028\u2029]/;

const METHODS: Record<string, (text: string, given: Arguments) => unknown> = {
  strip: (text, given) => strip(text, stringOf(given(0, 'chars')), true, true),
  lstrip: (text, given) => strip(text, stringOf(given(0, 'chars')), true, false),
  rstrip: (text, given) => strip(text, stringOf(given(0, 'chars')), false, true),
  split: (text, given) => split(text, stringOf(given(0, 'sep')), numberOf(given(1, 'maxsplit'), -1), false),
  rsplit: (text, given) => split(text, stringOf(given(0, 'sep')), numberOf(given(1, 'maxsplit'), -1), true),
  splitlines: (text) => text.split(LINE_ENDS).filter((line, i, { length }) => line || i < length - 1),
  find: (text, given) => points(text, text.indexOf(stringOf(given(0, 'sub')) ?? '')),
  rfind: (text, given) => points(text, text.lastIndexOf(stringOf(given(0, 'sub')) ?? '')),
  count: (text, given) => text.split(stringOf(given(0, 'sub')) ?? '').length - 1,
  join: (text, given) => (given(0, 'iterable')?.value as Value[]).map(str).join(text),
  removeprefix: (text, given) => without(text, stringOf(given(0, 'prefix')) ?? '', true),
  removesuffix: (text, given) => without(text, stringOf(given(0, 'suffix')) ?? '', false),
  capitalize: (text) => text.slice(0, 1).toUpperCase() + text.slice(1).toLowerCase(),
  isdigit: (text) => /^[\p{Nd}\u00b2\u00b3\u00b9]+$/u.test(text),
  isalpha: (text) => /^\p{L}+$/u.test(text),
  isspace: (text) => text !== '' && strip(text, undefined, true, true) === '',
};

function without(text: string, part: string, first: boolean): string {
  if (part === '' || !(first ? text.startsWith(part) : text.endsWith(part))) return text;
  return first ? text.slice(part.length) : text.slice(0, -part.length);
}

const FILTERS: Record<string, (value: Value, given: Arguments) => unknown> = {
  join(value, given) {
    const list = value.type === 'StringValue' ? Array.from(value.value as string) : (value.value as Value[]).map(str);
    return given(1, 'attribute') ? undefined : list.join(stringOf(given(0, 'd')) ?? '');
  },
  tojson(value, given) {
    const [indent, separators] = [given(1, 'indent'), given(2, 'separators')];
    const none = indent === undefined || indent.type === 'NullValue';
    const pair = separators?.type === 'NullValue' ? undefined : (separators?.value as [Value, Value] | undefined);
    return json(value, {
      ensureAscii: Boolean(given(0, 'ensure_ascii')?.value),
      indent: none ? undefined : typeof indent.value === 'string' ? indent.value : ' '.repeat(Number(indent.value)),
      separators: pair ? [str(pair[0]), str(pair[1])] : [none ? ', ' : ',', ': '],
      sortKeys: Boolean(given(3, 'sort_keys')?.value),
    });
  },
  trim: (value, given) => strip(str(value), stringOf(given(0, 'chars')), true, true),
  string: (value) => str(value),
};

/** `break` or `continue`, and the text of its iteration up to there. */
class LoopExit extends Error {
  constructor(
    readonly kind: string,
    public text = '',
  ) {
    super(kind);
  }
}

class Renderer extends Library {
  /** The loops that run, the innermost last; text: of iterations that ended early, not given to the library yet. */
  private readonly loops: { node: Node; text: string }[] = [];

  override evaluate(node: Node | undefined, scope: Scope): Value {
    const corrected = node && (this.filtered(node, scope) ?? this.called(node, scope) ?? this.joined(node, scope));
    return corrected ?? super.evaluate(node, scope);
  }

  override renderFor(node: Node, scope: Scope): string {
    const loop = { node, text: '' };
    this.loops.push(loop);
    try {
      return super.renderFor(node, scope) + loop.text;
    } finally {
      this.loops.pop();
    }
  }

  override renderBlock(nodes: Node[], scope: Scope): string {
    const innermost = this.loops.at(-1);
    const loop = innermost?.node.body === nodes || innermost?.node.defaultBlock === nodes ? innermost : undefined;
    let text = loop?.text ?? '';
    if (loop) loop.text = '';
    try {
      for (const node of nodes) text += this.renderNode(node, scope);
    } catch (e) {
      if (!(e instanceof LoopExit)) throw e;
      e.text = text + e.text;
      if (loop?.node.body !== nodes) throw e;
      // The library's own exit forgets the text.
      loop.text = e.text;
      super.evaluate({ type: e.kind }, scope);
    }
    return text;
  }

  private renderNode(node: Node, scope: Scope): string {
    switch (node.type) {
      case 'Break':
      case 'Continue':
        throw new LoopExit(node.type);
      case 'If':
        return this.renderIf(node, scope);
      case 'For':
        return this.renderFor(node, scope);
      case 'Set':
        this.executeSet(node, scope);
        return '';
      case 'Comment':
        return '';
      case 'Macro':
        this.evaluate(node, scope);
        return '';
      default:
        return str(this.evaluate(node, scope));
    }
  }

  private filtered(node: Node, scope: Scope): Value | undefined {
    if (node.type !== 'FilterExpression') return undefined;
    const name = node.filter?.type === 'CallExpression' ? node.filter.callee : node.filter;
    const filter = FILTERS[name?.value as string];
    const result = filter?.(this.evaluate(node.operand, scope), this.given(node.filter?.args, scope));
    return result === undefined ? undefined : valueOf(result);
  }

  private called(node: Node, scope: Scope): Value | undefined {
    const { callee } = node;
    if (node.type !== 'CallExpression' || callee?.type !== 'MemberExpression' || callee.computed) return undefined;
    const method = METHODS[callee.property?.value as string];
    if (!method) return undefined;
    const object = this.evaluate(callee.object, scope);
    if (object.type !== 'StringValue') return undefined;
    return valueOf(method(object.value as string, this.given(node.args, scope)));
  }

  /** `~`. */
  private joined(node: Node, scope: Scope): Value | undefined {
    if (node.type !== 'BinaryExpression' || node.operator?.value !== '~') return undefined;
    return valueOf(str(this.evaluate(node.left, scope)) + str(this.evaluate(node.right, scope)));
  }

  private given(nodes: Node[] | undefined, scope: Scope): Arguments {
    const [positional, named] = this.evaluateArguments(nodes ?? [], scope);
    return (index, name) => positional[index] ?? named.get(name);
  }
}

// {% generation %} marks what the model says, for training: its body has a scope of its own.
const GENERATION = /\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}/g;
const MACRO = parse(tokenize('{% macro __generation__() %}{{ caller() }}{% endmacro %}'));

/** The text a chat template makes. Throws ConfigError if it cannot be read or refuses the conversation. */
export function render(template: string, variables: Record<string, unknown>): string {
  const source = template
    .replace(/\r\n?/g, '\n')
    .replace(GENERATION, (_, open: string, end: string | undefined, close: string) =>
      end ? `{%${open} endcall ${close}%}` : `{%${open} call __generation__() ${close}%}`,
    );
  const globals = new Environment();
  const constants = { true: true, false: false, none: null, True: true, False: false, None: null };
  try {
    for (const [name, value] of Object.entries({
      ...constants,
      raise_exception: refuse,
      range,
      strftime_now: strftimeNow,
    }))
      globals.set(name, value);
    for (const [name, value] of Object.entries(variables)) globals.set(name, value);
    const program = parse(tokenize(source, { lstrip_blocks: true, trim_blocks: true }));
    program.body.unshift(...MACRO.body);
    return str(new Renderer(globals).run(program));
  } catch (e) {
    throw new OxinferError('ConfigError', `the chat template refuses the conversation (${messageOf(e)})`);
  }
}

function refuse(message: string): never {
  throw new Error(message);
}

function range(...given: number[]): number[] {
  const [start, stop, step] = given.length > 1 ? [given[0] ?? 0, given[1] ?? 0, given[2] ?? 1] : [0, given[0] ?? 0, 1];
  if (step === 0) throw new Error('range() arg 3 must not be zero');
  return Array.from({ length: Math.max(0, Math.ceil((stop - start) / step)) }, (_, i) => start + i * step);
}

/** The library has it, but keeps it to itself. */
const strftimeNow = (form: string): string => new Template('{{ strftime_now(form) }}').render({ form });
