"""The output of a job's pods: followed line by line into the job's log, without loss and without repetition."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from flows.executors import ClusterError
from flows.executors.cluster.api import Api

SILENCE_S = 60.0
"""A log stream that is silent for so long is opened again: it may be dead [s]."""
RETRY_S = 1.0


class LogFile:
    """A log, and beside it the same lines with the pod and the kubelet's stamp of each.

    The stamped file tells a later reader where to go on, also after this process was killed between two lines.
    """

    def __init__(self, path: Path) -> None:
        """Use the log at `path`; what the stamped file holds of an earlier reader is put into it."""
        self._path = path
        self._stamped = path.with_name(f"{path.name}.stamped")
        self._lock = threading.Lock()
        self._last: dict[str, tuple[str, list[str]]] = {}
        """By pod: the last stamp, and the lines that bear it."""
        self._restore()

    def last(self, pod: str) -> str:
        """Return the stamp of the last line of a pod; empty where there is none."""
        return self._last.get(pod, ("", []))[0]

    def take(self, pod: str, line: str) -> None:
        """Append a stamped line unless it is there."""
        stamp, _, text = line.partition(" ")
        stamp = _sortable(stamp)
        with self._lock:
            if self._note(pod, stamp, text):
                self._append(self._stamped, f"{pod} {stamp} {text}\n")
                self._append(self._path, f"{text}\n")

    def _note(self, pod: str, stamp: str, text: str) -> bool:
        last, seen = self._last.get(pod, ("", []))
        if not stamp or stamp < last or (stamp == last and text in seen):
            return False
        self._last[pod] = (stamp, [*seen, text] if stamp == last else [text])
        return True

    def _restore(self) -> None:
        if not self._stamped.exists():
            return
        *lines, cut = self._stamped.read_text(encoding="utf-8").split("\n")
        texts = []
        for line in lines:
            pod, _, rest = line.partition(" ")
            stamp, _, text = rest.partition(" ")
            self._note(pod, stamp, text)
            texts.append(text + "\n")
        if cut:
            self._stamped.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        self._path.write_text("".join(texts), encoding="utf-8")

    @staticmethod
    def _append(path: Path, text: str) -> None:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(text)


class LogFiles:
    """The logs of a job's ranks: rank 0 writes the job's own, each other rank one beside it."""

    def __init__(self, log: Path) -> None:
        """Open the job's log, with what an earlier process has brought into it."""
        self._log = log
        self._files = {"0": LogFile(log)}

    def of(self, index: str) -> LogFile:
        """Return the log of a rank."""
        if index not in self._files:
            self._files[index] = LogFile(self._log.with_name(f"log.{index}"))
        return self._files[index]


def clear_logs(log: Path) -> None:
    """Make way for a new attempt's output; the last one's stays as `log.previous`."""
    if log.exists():
        log.replace(log.with_name("log.previous"))
    for path in log.parent.glob("log*"):
        if path.name != "log.previous":
            path.unlink()
    log.touch()


class PodLog(threading.Thread):
    """Brings one pod's output into a log until the pod has ended and everything is there."""

    def __init__(self, api: Api, path: str, target: LogFile) -> None:
        """Follow the pod at `path` of the API."""
        super().__init__(daemon=True, name=f"log {path}")
        self._api, self._path, self._target = api, path, target
        self._pod = path.rpartition("/")[2]
        self._ended, self._left = threading.Event(), threading.Event()

    def finish(self, timeout_s: float) -> bool:
        """Say that the pod has ended; wait for the rest of its output.

        Returns:
            Whether all of it has arrived.
        """
        self._ended.set()
        self.join(timeout_s)
        return not self.is_alive()

    def abandon(self) -> None:
        """Stop following."""
        self._left.set()

    def run(self) -> None:
        """Follow until the end."""
        while not self._left.is_set():
            final = self._ended.is_set()
            if self._follow() and final:
                return
            self._ended.wait(RETRY_S)

    def _follow(self) -> bool:
        """Read one stream to its end; tell whether there is nothing more to come from it."""
        query = {"follow": "true", "timestamps": "true", "container": "stage"}
        last = self._target.last(self._pod)
        if last:
            query["sinceTime"] = f"{last[:19]}Z"
        try:
            for line in self._api.lines(f"{self._path}/log", read_s=SILENCE_S, **query):
                self._target.take(self._pod, line)
                if self._left.is_set():
                    return True
        except ClusterError as error:
            if error.status == 404:  # the pod is gone and its output with it
                self._left.set()
            return False
        return True


def wait_for_all(logs: list[PodLog], timeout_s: float, tick: Callable[[], None]) -> bool:
    """Wait until every log is complete; tell whether they are."""
    deadline = time.monotonic() + timeout_s
    complete = True
    for log in logs:
        while not log.finish(0.1) and time.monotonic() < deadline:
            tick()
        complete &= not log.is_alive()
    return complete


def _sortable(stamp: str) -> str:
    """Return a stamp with all nine digits of its second: a runtime may leave trailing zeros out."""
    whole, _, fraction = stamp.removesuffix("Z").partition(".")
    return f"{whole}.{fraction.ljust(9, '0')}" if whole else ""
