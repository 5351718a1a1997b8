/** The text that prompts for measuring are cut from: plain English, repeated as often as needed. */
const PARAGRAPH =
  'The harbour lies at the mouth of a slow brown river. In the early morning, before the market opens, small boats come ' +
  'in with the tide and tie up along the stone wall. Each brings a few boxes of fish, packed in ice, and a tired crew ' +
  'that has been awake since midnight. Buyers walk from boat to boat with notebooks in their hands. They seldom speak: ' +
  'a raised finger, a nod, and a price has been agreed. By eight the ice has melted, the boxes are gone, and the water ' +
  'is empty but for gulls. Old people say that there were once three hundred boats here; today one counts thirty, most ' +
  'of them older than the men who sail them. Yet the harbour is not dying. A school has moved into the old salt house, ' +
  'a workshop builds engines that run without oil, and every summer more visitors come to watch the boats return. ';

/** Text of at least `tokens` tokens, whichever tokenizer counts them (none makes fewer than one of six letters). */
export function promptText(tokens: number): string {
  return PARAGRAPH.repeat(Math.ceil((tokens * 6) / PARAGRAPH.length) + 1);
}
