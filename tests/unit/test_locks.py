"""The lock is the kernel's: it outlives its taker exactly as long as a job that inherited it."""

import subprocess
import sys
from pathlib import Path

from flows.locks import IdentityLock


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    first, second = IdentityLock(tmp_path / "id"), IdentityLock(tmp_path / "id")
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()


def test_a_child_that_inherits_it_holds_it_until_it_ends(tmp_path: Path) -> None:
    lock, other = IdentityLock(tmp_path / "id"), IdentityLock(tmp_path / "id")
    assert lock.acquire()
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock.descriptor,)
    )
    lock.release()
    assert not other.acquire()
    child.kill()
    child.wait()
    assert other.acquire()


def test_a_removed_lock_excludes_nobody_and_is_made_anew(tmp_path: Path) -> None:
    lock = IdentityLock(tmp_path / "id")
    assert lock.acquire()
    lock.remove()
    other, third = IdentityLock(tmp_path / "id"), IdentityLock(tmp_path / "id")
    assert other.acquire()
    assert not third.acquire()
