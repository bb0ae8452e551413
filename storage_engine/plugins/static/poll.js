// Asking again and again while somebody looks, and not while the page is hidden.

const LONGEST_WAIT_MS = 120_000;

/**
 * Call `work` now and every `intervalMs`; more seldom while it fails, and not at all while the page is hidden.
 * Return what ends that.
 */
export function poll(work, intervalMs) {
  let timer = null;
  let failures = 0;
  let running = false;
  let ended = false;

  async function turn() {
    clearTimeout(timer);
    if (ended || running || document.hidden) return;
    running = true;
    try {
      await work();
      failures = 0;
    } catch {
      // Whoever gave the work says what failed; here only the pace changes.
      failures += 1;
    }
    running = false;
    if (!ended) timer = setTimeout(turn, Math.min(intervalMs * 2 ** failures, Math.max(LONGEST_WAIT_MS, intervalMs)));
  }

  document.addEventListener("visibilitychange", turn);
  turn();
  return () => {
    ended = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", turn);
  };
}
