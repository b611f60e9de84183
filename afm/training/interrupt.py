"""Ending at a clean point: signals wait until the step in progress is done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(slots=True)
class Pending:
    """Whether a signal waits."""

    signum: int | None = None
    """The signal, once it came."""


@contextmanager
def deferred_signals() -> Iterator[Pending]:
    """Hold back SIGTERM and SIGINT inside the block and deliver the one that came when it ends.

    An exception raised by a handler in the middle of an optimiser step would leave half of the
    weights updated, so that nothing worth saving remained. A second signal is delivered at once.
    Outside the main thread nothing is held back.
    """
    pending = Pending()
    if threading.current_thread() is not threading.main_thread():
        yield pending
        return
    previous = {signum: signal.getsignal(signum) for signum in _SIGNALS}

    def hold(signum: int, _frame: FrameType | None) -> None:
        if pending.signum is None:
            pending.signum = signum
            return
        signal.signal(signum, previous[signal.Signals(signum)])
        signal.raise_signal(signum)

    for signum in _SIGNALS:
        signal.signal(signum, hold)
    try:
        yield pending
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
    if pending.signum is not None:
        signal.raise_signal(pending.signum)
