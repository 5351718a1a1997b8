/** The page: choose a model, write a prompt, watch the answer come. */
import { Oxinfer, OxinferError } from '../engine/client';
import { LoadingBar } from './loading';
import { formatBytes, listModels, type ModelEntry } from './models';

const CUSTOM = 'custom';
const CHAT_PROMPT = 'Explain in two sentences why the sky is blue.';
const TEXT_PROMPT = 'The most remarkable thing about the octopus is';

/** The page's element of this id and kind. */
function element<T extends HTMLElement>(id: string, kind: new () => T): T {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`the page has no ${kind.name} #${id}`);
  return found;
}

const modelSelect = element('model', HTMLSelectElement);
const addressInput = element('address', HTMLInputElement);
const loadButton = element('load', HTMLButtonElement);
const errorBox = element('error', HTMLElement);
const promptInput = element('prompt', HTMLTextAreaElement);
const chatInput = element('chat', HTMLInputElement);
const generateButton = element('generate', HTMLButtonElement);
const stopButton = element('stop', HTMLButtonElement);
const output = element('output', HTMLElement);
const speed = element('speed', HTMLElement);
const loading = new LoadingBar(
  element('loading', HTMLElement),
  element('bar', HTMLProgressElement),
  element('loading-text', HTMLElement),
);

let models: ModelEntry[] = [];
let model: Oxinfer | undefined;
let running: AbortController | undefined;

const chosen = (): ModelEntry | undefined => models.find(({ id }) => id === modelSelect.value);

function showError(e: unknown): void {
  // What was raised on purpose says all there is to say; for the rest the console has the details.
  if (!(e instanceof OxinferError) && !(e instanceof Error && e.name.endsWith('Error') && e.name !== 'Error'))
    console.error(e);
  errorBox.textContent = e instanceof Error ? e.message : String(e);
  errorBox.hidden = false;
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

async function loadModel(): Promise<void> {
  errorBox.hidden = true;
  model?.close();
  model = undefined;
  generateButton.disabled = true;
  loadButton.disabled = true;
  loading.show();
  try {
    const started = performance.now();
    model = await Oxinfer.load(chosen()?.folder ?? addressInput.value, {
      onProgress: (done, total) => {
        loading.update(done, total);
      },
    });
    const { kernel, threads, modelType } = model.info;
    const seconds = ((performance.now() - started) / 1000).toFixed(1);
    const { memory } = await model.stats();
    speed.textContent =
      `${modelType} loaded in ${seconds} s: ${formatBytes(memory.total)} of memory, ` +
      `${threads} thread${threads > 1 ? 's' : ''}, ${kernel} SIMD.`;
    generateButton.disabled = false;
  } catch (e) {
    showError(e);
  } finally {
    loading.hide();
    loadButton.disabled = false;
  }
}

async function generate(model: Oxinfer): Promise<void> {
  errorBox.hidden = true;
  const asChat = chatInput.checked && !element('mode-label', HTMLElement).hidden;
  const prompt = promptInput.value;
  output.replaceChildren();
  if (!asChat)
    output.append(Object.assign(document.createElement('span'), { className: 'prompt', textContent: prompt }));
  const answer = document.createTextNode('');
  output.append(answer);
  running = new AbortController();
  generateButton.disabled = true;
  stopButton.disabled = false;
  speed.textContent = '';
  const start = performance.now();
  let first = 0;
  let tokens = 0;
  try {
    const pieces = model.generate(asChat ? [{ role: 'user', content: prompt }] : prompt, {
      maxTokens: element('max-tokens', HTMLInputElement).valueAsNumber || 128,
      temperature: element('temperature', HTMLInputElement).valueAsNumber || 0,
      signal: running.signal,
    });
    for await (const { token, text } of pieces) {
      answer.data += text;
      if (token === null) continue;
      tokens++;
      const now = performance.now();
      if (tokens === 1) first = now;
      const rate = tokens > 1 ? `${((1000 * (tokens - 1)) / (now - first)).toFixed(1)} tokens/s, ` : '';
      speed.textContent = `${tokens} tokens, ${rate}first after ${((first - start) / 1000).toFixed(2)} s`;
    }
  } catch (e) {
    showError(e);
  } finally {
    running = undefined;
    generateButton.disabled = false;
    stopButton.disabled = true;
  }
}

async function start(): Promise<void> {
  models = await listModels();
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
  if (wanted !== null) await loadModel();
}

modelSelect.addEventListener('change', showChoice);
element('choose', HTMLElement).addEventListener('submit', (e) => {
  e.preventDefault();
  void loadModel();
});
element('ask', HTMLElement).addEventListener('submit', (e) => {
  e.preventDefault();
  if (model && !running) void generate(model);
});
stopButton.addEventListener('click', () => running?.abort());
start().catch(showError);
