"""What goes on beside the stages of a flow run: lineage, and the run's branch."""

import os
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

from prefect.logging import get_run_logger

from afm.errors import UserError
from flows.branch import RunBranch
from flows.environment import quiet_environment
from flows.lineage import WARNING

LAST_SYNC_S = 120.0
"""How long the last sync of a run may take [s]."""


class BackgroundSync:
    """A process that brings run records, and the curves of what trains, to MLflow beside the stages.

    A tracking server that is down is a warning, never a failed stage; `afm lineage sync` later catches up.
    """

    def __init__(self, root: Path) -> None:
        """Start nothing yet."""
        self._root = root
        self._logger = get_run_logger()
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._last = "no message"

    def start(self) -> None:
        """Begin, once; never where AFM_LINEAGE=0."""
        if self._process is not None or os.environ.get("AFM_LINEAGE", "1") == "0":
            return
        # A session of its own: Ctrl-C is for the stages, whose records are still to be brought.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flows.lineage"],
            cwd=self._root,
            env=quiet_environment(os.environ) | {"AFM_ROOT": str(self._root)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=[self._process.stderr])
        self._reader.start()

    def close(self) -> None:
        """Let it bring the rest, and wait for it."""
        if self._process is None or self._process.stdin is None or self._reader is None:
            return
        self._process.stdin.close()
        try:
            code = self._process.wait(LAST_SYNC_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code, self._last = self._process.wait(), f"no answer in {LAST_SYNC_S:.0f} s"
        self._reader.join()
        if code:
            self._logger.warning("lineage: %s; run `afm lineage sync` later", self._last)

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._last = line.strip() or self._last
            if line.startswith(WARNING):
                self._logger.warning(line.strip())


class BackgroundBranch:
    """Commits and pushes each finished cell beside the stages; what fails is tried again at the end."""

    def __init__(self, branch: RunBranch | None) -> None:
        """Do nothing where there is no branch."""
        self._branch = branch
        self._thread = ThreadPoolExecutor(1)
        self._asked: list[Future[None]] = []
        self._logger = get_run_logger()

    def ask(self, cell: str) -> None:
        """Record a cell, soon."""
        if self._branch is not None:
            self._asked.append(self._thread.submit(self._record, self._branch, cell))

    def close(self) -> dict[str, str]:
        """Wait for what has been asked for and catch up.

        Returns:
            By the branch's name, why outputs or commits could not be brought to their remotes; empty where all is well.

        Raises:
            Exception: recording a cell met something else than a remote or a git that refuses.
        """
        self._thread.shutdown()
        for recording in self._asked:
            recording.result()
        if self._branch is None:
            return {}
        try:
            self._branch.finish()
        except UserError as error:
            return {self._branch.name: f"everything made is kept here, but {error}"}
        return {}

    def _record(self, branch: RunBranch, cell: str) -> None:
        try:
            commit = branch.record(cell)
        except UserError as error:
            self._logger.warning("%s: %s; it is tried again at the end of the run", cell, error)
        else:
            if commit:
                self._logger.info("%s: commit %s of branch %s", cell, commit[:12], branch.name)
