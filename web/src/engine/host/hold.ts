/** A worker's sign of life: a lock that others get when it is gone. */

/** Take the Web Lock of that name until this worker is gone. Resolves when it is held, at once where there are none. */
export function hold(lock: string): Promise<void> {
  // Only secure contexts have locks.
  if (!('locks' in navigator)) return Promise.resolve();
  return new Promise((resolve, reject) => {
    const forever = (): Promise<never> => {
      resolve();
      return new Promise(() => undefined);
    };
    navigator.locks.request(lock, forever).catch(reject);
  });
}
