"""One lock per identity, kept by the kernel: it is free exactly when no process of a job and no submit holds it."""

import fcntl
import os
from pathlib import Path


class IdentityLock:
    """An advisory lock on a file. A child that inherits the descriptor holds it too, past this process's death.

    So no killed process can leave it locked, and none can leave it open while its stage still writes.
    """

    def __init__(self, scratch: Path) -> None:
        """Lock the result whose scratch folder this is."""
        self._path = scratch.with_name(f"{scratch.name}.lock")
        self._descriptor: int | None = None

    @property
    def descriptor(self) -> int:
        """The descriptor to pass on to a job."""
        assert self._descriptor is not None, "the lock is not held"
        return self._descriptor

    def acquire(self) -> bool:
        """Take the lock if it is free; tell whether it is ours now."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        if not self._still_there(descriptor):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Close our descriptor; a job that inherited it keeps the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def remove(self) -> None:
        """Delete the lock file while holding it; a waiter then finds that it locked a deleted file."""
        assert self._descriptor is not None, "only the holder removes a lock"
        self._path.unlink()
        self.release()

    def _still_there(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._path.stat())
        except FileNotFoundError:
            return False
