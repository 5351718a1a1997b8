/** Reports of bytes that have come, from several places, as one. */

export type Report = (done: number, total: number) => void;

const PROGRESS_MS = 100;

/** Hand reports on at most every PROGRESS_MS, and at the end. */
export function throttled(report: Report): Report {
  let last = -Infinity;
  return (done, total) => {
    const now = performance.now();
    if (now - last < PROGRESS_MS && done < total) return;
    last = now;
    report(done, total);
  };
}

/** Two reports that come together in one. Nothing is said before the first of them has said how much there is. */
export function together(report: Report): [Report, Report] {
  const first = { done: 0, total: 0 };
  const second = { done: 0, total: 0 };
  const into =
    (part: typeof first): Report =>
    (done, total) => {
      Object.assign(part, { done, total });
      if (first.total > 0) report(first.done + second.done, first.total + second.total);
    };
  return [into(first), into(second)];
}
