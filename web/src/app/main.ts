/** The page: choose a model, write a prompt, watch the answer come. */
import { Oxinfer, OxinferError, type Ended } from '../engine/client';
import { LoadingBar } from './loading';
import { formatBytes, listModels, type ModelEntry } from './models';

const CUSTOM = 'custom';
const CHAT_PROMPT = 'Explain in two sentences why the sky is blue.';
const TEXT_PROMPT = 'The most remarkable thing about the octopus is';

/** What the page is doing; `failed`: no model, as the last attempt to load one, or the model itself, failed. */
type State = 'idle' | 'loading' | 'ready' | 'answering' | 'failed';

/** The page's element of this id and kind. */
function element<T extends HTMLElement>(id: string, kind: new () => T): T {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`the page has no ${kind.name} #${id}`);
  return found;
}

const modelSelect = element('model', HTMLSelectElement);
const addressInput = element('address', HTMLInputElement);
const loadButton = element('load', HTMLButtonElement);
const cancelButton = element('cancel', HTMLButtonElement);
const errorBox = element('error', HTMLElement);
const promptInput = element('prompt', HTMLTextAreaElement);
const chatInput = element('chat', HTMLInputElement);
const generateButton = element('generate', HTMLButtonElement);
const stopButton = element('stop', HTMLButtonElement);
const tokensInput = element('max-tokens', HTMLInputElement);
const temperatureInput = element('temperature', HTMLInputElement);
const output = element('output', HTMLElement);
const speed = element('speed', HTMLElement);
const loading = new LoadingBar(
  element('loading', HTMLElement),
  element('bar', HTMLProgressElement),
  element('loading-text', HTMLElement),
);

let models: ModelEntry[] = [];
let model: Oxinfer | undefined;
/** What is going on, if anything; `done` when it has left the page to others. */
let task: { stop: AbortController; done: Promise<void> } | undefined;
/** The temperature that the page put there itself. */
let suggested = temperatureInput.value;

const chosen = (): ModelEntry | undefined => models.find(({ id }) => id === modelSelect.value);

function enter(state: State): void {
  loadButton.hidden = state === 'loading';
  cancelButton.hidden = state !== 'loading';
  generateButton.disabled = state !== 'ready';
  stopButton.disabled = state !== 'answering';
  if (state !== 'loading') loading.hide();
}

function showError(e: unknown): void {
  // What was raised on purpose says all there is to say; for the rest the console has the details.
  if (!(e instanceof OxinferError)) console.error(e);
  errorBox.textContent = e instanceof Error ? e.message : String(e);
  errorBox.hidden = false;
}

/** Stop what is going on, then do `work`, which resolves to the state after it. */
function begin(during: 'loading' | 'answering', work: (signal: AbortSignal) => Promise<State>): void {
  const before = task;
  const stop = new AbortController();
  const stopped = (): boolean => stop.signal.aborted;
  const run = async (): Promise<void> => {
    before?.stop.abort();
    await before?.done;
    if (stopped()) return;
    errorBox.hidden = true;
    speed.textContent = '';
    enter(during);
    try {
      enter(await work(stop.signal));
    } catch (e) {
      if (!stopped()) showError(e);
      const ready = model?.state === 'ready' || model?.state === 'answering';
      enter(ready ? 'ready' : stopped() ? 'idle' : 'failed');
    }
  };
  task = { stop, done: run() };
}

function showChoice(): void {
  const entry = chosen();
  element('address-label', HTMLElement).hidden = entry !== undefined;
  element('mode-label', HTMLElement).hidden = entry !== undefined && !entry.chat;
  element('description', HTMLElement).textContent = entry ? `${entry.description} ${formatBytes(entry.bytes)}.` : '';
  element('license', HTMLElement).textContent = entry?.license ?? "see the model's folder";
  chatInput.checked = entry?.chat ?? false;
  if (promptInput.value === '' || promptInput.value === CHAT_PROMPT || promptInput.value === TEXT_PROMPT)
    promptInput.value = entry?.chat ? CHAT_PROMPT : TEXT_PROMPT;
}

async function loadModel(signal: AbortSignal): Promise<State> {
  model?.close();
  model = undefined;
  loading.show();
  const started = performance.now();
  model = await Oxinfer.load(chosen()?.folder ?? addressInput.value, {
    signal,
    onProgress: (done, total) => {
      loading.update(done, total);
    },
  });
  const { kernel, threads, modelType, defaults } = model.info;
  const seconds = ((performance.now() - started) / 1000).toFixed(1);
  const { memory } = await model.stats();
  speed.textContent =
    `${modelType} loaded in ${seconds} s: ${formatBytes(memory.total)} of memory, ` +
    `${threads} thread${threads > 1 ? 's' : ''}, ${kernel} SIMD.`;
  if (defaults.temperature !== undefined && temperatureInput.value === suggested)
    temperatureInput.value = suggested = String(defaults.temperature);
  return 'ready';
}

async function answer(model: Oxinfer, signal: AbortSignal): Promise<State> {
  const asChat = chatInput.checked && !element('mode-label', HTMLElement).hidden;
  const prompt = promptInput.value;
  output.replaceChildren();
  if (!asChat)
    output.append(Object.assign(document.createElement('span'), { className: 'prompt', textContent: prompt }));
  const text = document.createTextNode('');
  output.append(text);
  const start = performance.now();
  let first = 0;
  let tokens = 0;
  const maxTokens = tokensInput.valueAsNumber || 128;
  const pieces = model.generate(asChat ? [{ role: 'user', content: prompt }] : prompt, {
    maxTokens,
    temperature: temperatureInput.valueAsNumber || 0,
    signal,
  });
  for await (const piece of pieces) {
    text.data += piece.text;
    if (piece.token === null) continue;
    tokens++;
    const now = performance.now();
    if (tokens === 1) first = now;
    const rate = tokens > 1 ? `${((1000 * (tokens - 1)) / (now - first)).toFixed(1)} tokens/s, ` : '';
    speed.textContent = `${tokens} tokens, ${rate}first after ${((first - start) / 1000).toFixed(2)} s`;
  }
  speed.textContent += ending(pieces.end, maxTokens);
  return 'ready';
}

/** What there is to say about how an answer ended. */
function ending(end: Ended | undefined, maxTokens: number): string {
  if (end?.reason === 'cancelled') return end.completionTokens > 0 ? '; stopped' : 'Stopped.';
  if (end?.reason === 'length' && end.completionTokens < maxTokens) return '; the model has no room for more';
  return '';
}

async function start(): Promise<void> {
  models = await listModels().catch((e: unknown) => {
    showError(e);
    return [];
  });
  modelSelect.append(
    ...models.map(({ id, name, bytes }) => new Option(`${name} (${formatBytes(bytes)})`, id)),
    new Option('Another address…', CUSTOM),
  );
  const wanted = new URLSearchParams(location.search).get('model');
  if (wanted !== null) {
    const known = models.some(({ id }) => id === wanted);
    modelSelect.value = known ? wanted : CUSTOM;
    if (!known) addressInput.value = wanted;
  }
  showChoice();
  if (wanted !== null) begin('loading', loadModel);
}

modelSelect.addEventListener('change', showChoice);
element('choose', HTMLElement).addEventListener('submit', (e) => {
  e.preventDefault();
  begin('loading', loadModel);
});
element('ask', HTMLElement).addEventListener('submit', (e) => {
  e.preventDefault();
  const loaded = model;
  if (loaded) begin('answering', (signal) => answer(loaded, signal));
});
for (const button of [cancelButton, stopButton]) button.addEventListener('click', () => task?.stop.abort());
start().catch(showError);
