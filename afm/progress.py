"""Progress of long work on stderr: count, rate, time left."""

import sys
import time
from typing import TextIO


class Progress:
    """Prints a line every few seconds, and one when the work is complete."""

    def __init__(
        self,
        total: int,
        what: str,
        *,
        interval_s: float = 5.0,
        stream: TextIO | None = None,
    ) -> None:
        """Start the clock.

        Args:
            total: Items of work in all.
            what: What an item is, in the plural.
            interval_s: Least time between two lines [s].
            stream: Where to print; stderr by default.
        """
        self._total = total
        self._what = what
        self._interval_s = interval_s
        self._stream = stream
        self._done = 0
        self._start = self._printed = time.monotonic()

    def advance(self, count: int = 1) -> None:
        """Record `count` finished items."""
        self._done += count
        now = time.monotonic()
        if self._done >= self._total or now - self._printed >= self._interval_s:
            self._printed = now
            print(
                self._line(now - self._start),
                file=self._stream or sys.stderr,
                flush=True,
            )

    def _line(self, elapsed_s: float) -> str:
        rate = max(self._done, 1e-9) / max(elapsed_s, 1e-9)
        left_s = max(self._total - self._done, 0) / rate
        pace = f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s each"
        return (
            f"{self._done}/{self._total} {self._what}, {pace}, "
            f"{elapsed_s:.0f} s gone, {left_s:.0f} s left"
        )
