"""What goes on beside the stages of a flow run: lineage, and the run's branch."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from prefect.logging import get_run_logger

from afm.errors import UserError
from flows.branch import RunBranch


class _Beside:
    """One thread beside the caller's; what fails there is raised when it is closed."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._asked: list[Future[None]] = []

    def ask(self, do: Callable[..., None], *words: object) -> None:
        self._asked.append(self._thread.submit(do, *words))

    @property
    def has_queued(self) -> bool:
        """Whether what was asked for last has not begun."""
        return bool(self._asked) and not (self._asked[-1].running() or self._asked[-1].done())

    def close(self) -> None:
        self._thread.shutdown()
        for future in self._asked:
            future.result()


class BackgroundSync:
    """Sends run records to MLflow beside the stages: one sync at a time, and one after the last stage."""

    def __init__(self, root: Path) -> None:
        """Start nothing where AFM_LINEAGE=0."""
        self._root = root
        self._is_on = os.environ.get("AFM_LINEAGE", "1") != "0"
        self._beside = _Beside()
        self._logger = get_run_logger()

    def ask(self) -> None:
        """Sync what there is by now, soon."""
        if self._is_on and not self._beside.has_queued:
            self._beside.ask(self._sync)

    def close(self) -> None:
        """Wait for what has been asked for.

        Raises:
            Exception: a sync met something else than a tracking server that does not answer, which is a warning.
        """
        self._beside.close()

    def _sync(self) -> None:
        from flows.lineage import sync_quietly

        for warning in sync_quietly(self._root):
            self._logger.warning(warning)


class BackgroundBranch:
    """Commits and pushes each finished cell beside the stages; what fails is tried again at the end."""

    def __init__(self, branch: RunBranch | None) -> None:
        """Do nothing where there is no branch."""
        self._branch = branch
        self._beside = _Beside()
        self._logger = get_run_logger()

    def ask(self, cell: str) -> None:
        """Record a cell, soon."""
        if self._branch is not None:
            self._beside.ask(self._record, self._branch, cell)

    def close(self) -> dict[str, str]:
        """Wait for what has been asked for and catch up.

        Returns:
            By the branch's name, why outputs or commits could not be brought to their remotes; empty where all is well.

        Raises:
            Exception: recording a cell met something else than a remote or a git that refuses.
        """
        self._beside.close()
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
