/**
 * Unicode normalization as the tokenizers package does it: by tables of an older Unicode than any browser's. What they
 * lack, marks and characters with a decomposition, stays as and where it is.
 */
import {
  NFCNormalizer,
  NFDNormalizer,
  NFKCNormalizer,
  NFKDNormalizer,
  SequenceNormalizer,
  type Normalizer,
} from '@huggingface/tokenizers';

/** Code points, in hexadecimal, that are more to Unicode 17's normalization forms than to the package. */
const NEWER =
  '7fd 897-89f 8ca-8d3 9fe c3c d3b-d3c eba 1715 1abf-1add 1ae0-1aeb 1df6-1dfa 32ff a7f1-a7f4 a82c ab69 105c9 ' +
  '105e4 10781-10785 10787-107b0 107b2-107ba 10d24-10d27 10d69-10d6d 10eab-10eac 10efa-10efb 10efd-10eff ' +
  '10f46-10f50 10f82-10f85 11070 1133b 11383 11385 1138e 11391 113c5 113c7-113c8 113ce-113d0 1145e 11839-1183a ' +
  '11938 1193d-1193e 11943 119e0 11a34 11a47 11a99 11d42 11d44-11d45 11d97 11f41-11f42 16121-16128 1612f ' +
  '16d68-16d6a 16ff0-16ff1 1ccd6-1ccf9 1e030-1e06d 1e08f 1e130-1e136 1e2ae 1e2ec-1e2ef 1e4ec-1e4ef 1e5ee-1e5ef ' +
  '1e6e3 1e6e6 1e6ee-1e6ef 1e6f5 1f16c 1fbf0-1fbf9';

const RANGES = NEWER.replace(/[0-9a-f]+/g, '\\u{$&}').replaceAll(' ', '');
const NEWER_ONE = new RegExp(`([${RANGES}])`, 'u');

/** Make a normalizer of the library normalize as the package does. */
export function correctNormalizer(normalizer: Normalizer | null): void {
  if (normalizer instanceof SequenceNormalizer) normalizer.normalizers.forEach(correctNormalizer);
  else if (
    normalizer &&
    [NFCNormalizer, NFDNormalizer, NFKCNormalizer, NFKDNormalizer].some((kind) => normalizer instanceof kind)
  ) {
    const whole = normalizer.normalize.bind(normalizer);
    normalizer.normalize = (text) =>
      text
        .split(NEWER_ONE)
        .map((part, i) => (i % 2 === 0 ? whole(part) : part))
        .join('');
  }
}
