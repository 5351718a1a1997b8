/**
 * Cutting text as the tokenizers package does. The library's JavaScript takes `\d` and `\s` for what they are in
 * JavaScript, knows one way of splitting, and knows the characters that the browser knows.
 */
import {
  ByteLevelPreTokenizer,
  DigitsPreTokenizer,
  SequencePreTokenizer,
  SplitPreTokenizer,
  type PreTokenizer,
} from '@huggingface/tokenizers';
import { UNASSIGNED } from './unassigned';

const SPACE = '\\p{White_Space}';
const BYTE_LEVEL = new RegExp(
  `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${SPACE}\\p{L}\\p{N}]+|${SPACE}+(?!\\P{White_Space})|${SPACE}+`,
  'gu',
);

/** Characters that the package's regular expressions do not know, wherever the browser may. */
const UNKNOWN = new RegExp(`[${ranges(UNASSIGNED)}]`, 'gu');

function ranges(gaps: string): string {
  let at = 0;
  const numbers = gaps.split(' ').map((gap) => (at += parseInt(gap, 36)).toString(16));
  return numbers.map((code, i) => `\\u{${code}}${i % 2 === 0 ? '-' : ''}`).join('');
}

/** A text to match against, of the same length: what is unknown is a character that will never be assigned. */
const known = (text: string): string =>
  text.replace(UNKNOWN, (character) => (character.length > 1 ? '\u{10ffff}' : '\uffff'));

/** The parts of a text between and of what a pattern matches, put together as `behavior` says. */
function split(text: string, pattern: RegExp, behavior: string, invert: boolean): string[] {
  const parts: { part: string; cut: boolean }[] = [];
  let end = 0;
  const add = (to: number, cut: boolean): void => {
    if (to > end) parts.push({ part: text.slice(end, to), cut: cut !== invert });
    end = to;
  };
  for (const { index, 0: found } of known(text).matchAll(pattern)) {
    add(index, false);
    add(index + found.length, true);
  }
  add(text.length, false);
  if (behavior === 'Removed') return parts.filter(({ cut }) => !cut).map(({ part }) => part);
  const joined: { part: string; cut: boolean }[] = [];
  for (const { part, cut } of parts) {
    const last = joined.at(-1);
    const merge =
      (behavior === 'MergedWithPrevious' && cut && last?.cut === false) ||
      (behavior === 'MergedWithNext' && !cut && last?.cut === true) ||
      (behavior === 'Contiguous' && last?.cut === cut);
    if (last && merge)
      joined[joined.length - 1] = { part: last.part + part, cut: behavior === 'MergedWithNext' ? false : cut };
    else joined.push({ part, cut });
  }
  return joined.map(({ part }) => part);
}

/** Make a pre-tokenizer of the library cut text as the package does. */
export function correct(preTokenizer: PreTokenizer | null): void {
  if (preTokenizer instanceof SequencePreTokenizer) preTokenizer.tokenizers.forEach(correct);
  else if (preTokenizer instanceof ByteLevelPreTokenizer && preTokenizer.use_regex) {
    const whole = preTokenizer.pre_tokenize_text.bind(preTokenizer);
    preTokenizer.use_regex = false;
    const { add_prefix_space: prefix } = preTokenizer;
    preTokenizer.add_prefix_space = false;
    preTokenizer.pre_tokenize_text = (text) => {
      const spaced = prefix && !text.startsWith(' ') ? ` ${text}` : text;
      return split(spaced, BYTE_LEVEL, 'Isolated', false).flatMap((part) => whole(part));
    };
  } else if (preTokenizer instanceof DigitsPreTokenizer) {
    // Not by a regular expression there: it knows newer characters.
    preTokenizer.pattern = preTokenizer.config.individual_digits ? /\P{N}+|\p{N}/gu : /\P{N}+|\p{N}+/gu;
  } else if (preTokenizer instanceof SplitPreTokenizer) {
    const { pattern, config } = preTokenizer;
    const behavior = config.behavior;
    if (pattern) preTokenizer.pre_tokenize_text = (text) => split(text, pattern, behavior, config.invert ?? false);
  }
}
