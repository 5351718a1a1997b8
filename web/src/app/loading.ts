/** The progress bar of a model that is being loaded. */
import { formatBytes } from './models';

/** Seconds of progress to see before the time left is worth a guess. */
const SETTLE_S = 1;

export class LoadingBar {
  private start: number | undefined;

  constructor(
    private readonly box: HTMLElement,
    private readonly bar: HTMLProgressElement,
    private readonly text: HTMLElement,
  ) {}

  /** Show the bar before any byte has come. */
  show(): void {
    this.start = undefined;
    this.bar.removeAttribute('value');
    this.text.textContent = 'Starting…';
    this.box.hidden = false;
  }

  /** Bytes loaded, and bytes in all. */
  update(done: number, total: number): void {
    const now = performance.now();
    this.start ??= now;
    const seconds = (now - this.start) / 1000;
    const left = seconds > SETTLE_S && done > 0 ? Math.ceil((seconds * (total - done)) / done) : undefined;
    this.bar.value = total > 0 ? done / total : 1;
    this.text.textContent =
      `${formatBytes(done)} of ${formatBytes(total)}` + (left === undefined ? '' : `, about ${left} s left`);
  }

  hide(): void {
    this.box.hidden = true;
  }
}
