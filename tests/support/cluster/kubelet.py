"""The kubelets: start what is bound, report what has started or ended, end what is deleted."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.cluster import volumes
from tests.support.cluster.config import Config
from tests.support.cluster.containers import MARK, ConfigError, describe
from tests.support.cluster.events import record_event, warn
from tests.support.cluster.pod_status import (
    TERMINAL,
    finish_lost,
    report_state,
    waiting,
)
from tests.support.cluster.probes import Prober
from tests.support.cluster.processes import is_alive, kill_marked
from tests.support.cluster.store import Object, Store, hidden, key_of

SUPERVISOR = Path(__file__).with_name("supervisor.py")
RETRY_S = 0.5
LOST_START_S = 5.0
PULL_BACKOFF_S = 10.0


class Kubelets:
    """The kubelet of every node. Pods' folders are the only link to their processes: a restart finds them there."""

    def __init__(self, store: Store, config: Config, folder: Path) -> None:
        self._store = store
        self._config = config
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._children: list[subprocess.Popen[bytes]] = []
        self._retry_at: dict[str, float] = {}
        self._seen: dict[str, int] = {}
        self.prober = Prober()
        self.violations: list[str] = []

    def folder_of(self, pod: Object) -> Path:
        return self._folder / str(pod["metadata"]["uid"])

    def sync(self) -> None:
        self._children = [child for child in self._children if child.poll() is None]
        lost = {n["metadata"]["name"] for n in self._store.each("nodes") if "lost" in hidden(n)}
        known = set()
        for pod in list(self._store.each("pods")):
            known.add(pod["metadata"]["uid"])
            node = pod["spec"].get("nodeName")
            if node and node not in lost and not _is_settled(pod):
                self._sync_pod(self._store.get(*key_of("pods", pod)))
        if not lost:
            self._remove_unknown(known)

    def _sync_pod(self, pod: Object) -> None:
        folder = self.folder_of(pod)
        if not (folder / "pod.json").exists():
            self._before_start(pod, folder)
            return
        state = self._state(pod, folder)
        if state is None:
            return
        deleted = pod["metadata"].get("deletionTimestamp")
        if "ended" not in state and not is_alive(state["pid"], state["started"]):
            kill_marked(str(folder))
            finish_lost(pod)
        else:
            report_state(pod, state, folder, ready=self._is_ready(pod, state, folder))
            if "ended" not in state and deleted:
                self._stop(pod, folder, state, pod["metadata"]["deletionGracePeriodSeconds"])
            elif "ended" not in state and self.prober.has_failed(pod):
                text = "Container failed startup probe, will be restarted"
                warn(self._store, pod, "Unhealthy", text, by="kubelet")
                self._stop(pod, folder, state, pod["spec"]["terminationGracePeriodSeconds"])
        if pod["status"]["phase"] in TERMINAL:
            self._after_end(pod, folder)
        self._store.put("pods", pod)

    def _is_ready(self, pod: Object, state: dict[str, Any], folder: Path) -> bool:
        main = state["containers"].get(pod["spec"]["containers"][0]["name"], {})
        return "pid" in main and "code" not in main and self.prober.is_ready(pod, folder)

    def _state(self, pod: Object, folder: Path) -> dict[str, Any] | None:
        """Read the supervisor's state; where it never wrote one (we were killed in between), start it again."""
        path = folder / "state.json"
        if path.exists():
            state: dict[str, Any] = json.loads(path.read_text())
            return state
        if time.time() - (folder / "pod.json").stat().st_mtime > LOST_START_S:
            os.utime(folder / "pod.json")
            self._spawn(folder)
        return None

    def _before_start(self, pod: Object, folder: Path) -> None:
        if pod["metadata"].get("deletionTimestamp"):
            hidden(pod)["gone"] = True
            finish_lost(pod, code=None)
            self._store.put("pods", pod)
            return
        uid = pod["metadata"]["uid"]
        if time.time() < self._retry_at.get(uid, 0.0):
            return
        self._retry_at[uid] = time.time() + RETRY_S
        try:
            self._start(pod, folder)
        except volumes.NotYet as error:
            self._hold(
                pod, "ContainerCreating", "", "FailedMount", f"MountVolume.SetUp failed: {error}"
            )
        except (ConfigError, volumes.BadMount) as error:
            reason = "CreateContainerConfigError"
            self._hold(pod, reason, str(error), "Failed", f"Error: {error}")

    def _start(self, pod: Object, folder: Path) -> None:
        mounts = volumes.resolve(self._store, self._config, pod)
        if not self._has_images(pod):
            return
        every = [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]
        rows = [describe(self._store, self._config, pod, row, folder) for row in every]
        folder.mkdir(exist_ok=True)
        made = volumes.make(mounts, self._config)
        # Contents stay out: they may be secrets, and the folder outlives the pod's files.
        listed = [dataclasses.asdict(dataclasses.replace(row, content=None)) for row in mounts]
        plan = {"containers": rows, "made": made, "mounts": listed}
        part = folder / "pod.part"
        part.write_text(json.dumps(plan))
        part.rename(folder / "pod.json")
        self._spawn(folder)

    def _spawn(self, folder: Path) -> None:
        self._children.append(
            subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR), str(folder)],
                env={MARK: str(folder), "PATH": os.environ.get("PATH", "")},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=(folder / "supervisor.err").open("wb"),
                start_new_session=True,
            )
        )

    def _has_images(self, pod: Object) -> bool:
        notes = hidden(pod)
        bound = notes.setdefault("bound", time.time())
        for container in [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]:
            image = self._config.images.get(container["image"])
            if image is None:
                self._refuse_image(pod, container, notes)
                return False
            if time.time() < bound + image.pull_s:
                self._hold(
                    pod, "ContainerCreating", "", "Pulling", f'Pulling image "{container["image"]}"'
                )
                self._retry_at[pod["metadata"]["uid"]] = bound + image.pull_s
                return False
        return True

    def _refuse_image(self, pod: Object, container: dict[str, Any], notes: dict[str, Any]) -> None:
        name = container["image"]
        if container["imagePullPolicy"] == "Never":
            why = f'Container image "{name}" is not present with pull policy of Never'
            self._hold(pod, "ErrImageNeverPull", why, "Failed", f"Error: {why}")
            return
        why = f'failed to pull and unpack image "{name}": failed to resolve reference "{name}": not found'
        tries = notes["pulls"] = notes.get("pulls", 0) + 1
        if tries % 2:
            self._hold(pod, "ErrImagePull", why, "Failed", f'Failed to pull image "{name}": {why}')
            return
        back_off = f'Back-off pulling image "{name}"'
        self._hold(pod, "ImagePullBackOff", f"{back_off}: ErrImagePull: {why}", "BackOff", back_off)
        delay_s = max(PULL_BACKOFF_S * self._config.time_scale, RETRY_S)
        self._retry_at[pod["metadata"]["uid"]] = time.time() + delay_s

    def _hold(self, pod: Object, reason: str, message: str, event: str, text: str) -> None:
        waiting(pod, reason, message)
        pod = self._store.put("pods", pod)
        if event == "Pulling":
            record_event(self._store, pod, event, text, by="kubelet")
        else:
            warn(self._store, pod, event, text, by="kubelet")

    def _stop(self, pod: Object, folder: Path, state: dict[str, Any], grace_s: int) -> None:
        """Ask for the end once, and again when the grace period is cut."""
        if self._seen.get(pod["metadata"]["uid"]) == grace_s:
            return
        self._seen[pod["metadata"]["uid"]] = grace_s
        (folder / "stop.part").write_text(json.dumps({"grace_s": grace_s}))
        (folder / "stop.part").rename(folder / "stop.json")
        with contextlib.suppress(ProcessLookupError):
            os.kill(state["pid"], signal.SIGTERM)
        record_event(self._store, pod, "Killing", "Stopping container", by="kubelet")

    def _after_end(self, pod: Object, folder: Path) -> None:
        plan = json.loads((folder / "pod.json").read_text())
        self.prober.forget(pod["metadata"]["uid"])
        for path in plan["made"]:
            shutil.rmtree(path, ignore_errors=True)
        if "checked" not in hidden(pod):
            hidden(pod)["checked"] = True
            since = (folder / "pod.json").stat().st_mtime
            written = volumes.written_below(plan["mounts"], since)
            if written:
                self.violations += written
                text = f"written below a read-only mount: {', '.join(written[:5])}"
                warn(self._store, pod, "ReadOnlyMountWritten", text, by="kubelet")
        if pod["metadata"].get("deletionTimestamp"):
            hidden(pod)["gone"] = True

    def _remove_unknown(self, known: set[str]) -> None:
        """End what runs for pods that no longer are, with their logs."""
        for folder in self._folder.iterdir():
            if folder.name in known:
                continue
            self.prober.forget(folder.name)
            if not _has_ended(folder):  # looking at every process of a busy machine is slow
                kill_marked(str(folder))
            shutil.rmtree(folder, ignore_errors=True)
            self._seen.pop(folder.name, None)
            self._retry_at.pop(folder.name, None)

    def close(self) -> None:
        """End every pod of this cluster."""
        kill_marked(str(self._folder))
        for child in self._children:
            child.wait()


def _has_ended(folder: Path) -> bool:
    """The supervisor has ended the whole tree, and said so."""
    state = folder / "state.json"
    return state.exists() and "ended" in json.loads(state.read_text())


def _is_settled(pod: Object) -> bool:
    """Nothing is left to do for it: it has ended, and if deleted, only a finalizer holds it."""
    notes = hidden(pod)
    is_deleted = bool(pod["metadata"].get("deletionTimestamp"))
    return (
        pod["status"]["phase"] in TERMINAL
        and "checked" in notes
        and (not is_deleted or "gone" in notes)
    )
