"""A bell that rings when something of a job may have changed."""

import json
import threading
from types import TracebackType
from typing import Self

from flows.executors import ClusterError
from flows.executors.cluster.api import Api

WATCH_S = 240
"""Length of one watch; a dead one is noticed at its end at the latest, and polls go on meanwhile [s]."""
RETRY_S = 2.0


class Bell:
    """Watches a job and its pods from background threads, from the present on: what happened, a poll tells.

    A lost, expired (410) or refused watch is opened again; nothing depends on it but speed.
    """

    def __init__(self, api: Api, paths: list[str], name: str) -> None:
        """Watch `paths` for the Job `name`."""
        self._api, self._name = api, name
        self._event, self._stop = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=(path,), daemon=True, name=f"watch {path}")
            for path in paths
        ]

    def __enter__(self) -> Self:
        """Start watching."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop; the threads end with their current watch."""
        self._stop.set()

    def rang(self) -> bool:
        """Tell whether something happened since the last call."""
        happened = self._event.is_set()
        self._event.clear()
        return happened

    def _watch(self, path: str) -> None:
        by_name = path.endswith("/jobs")
        selector = (
            {"fieldSelector": f"metadata.name={self._name}"}
            if by_name
            else {"labelSelector": f"batch.kubernetes.io/job-name={self._name}"}
        )
        query = {"watch": "true", "timeoutSeconds": str(WATCH_S), **selector}
        while not self._stop.is_set():
            try:
                for line in self._api.lines(path, read_s=WATCH_S + 10.0, **query):
                    if self._stop.is_set():
                        return
                    if json.loads(line).get("type") != "BOOKMARK":
                        self._event.set()
            except (ClusterError, json.JSONDecodeError):
                self._stop.wait(RETRY_S)
