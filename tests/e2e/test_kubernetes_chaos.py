"""Runner, pod, watch and API are struck at random moments: one Job per result, nothing lost, nothing made twice."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.executors.cluster.verdict import is_finished
from tests.support.cluster import ClusterProcess
from tests.support.cluster_toy import ClusterToy, config

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

ROWS = 6
PACE = 0.25
TERMINAL_S = 90.0
"""Longest time from a pod's end, or the runner's return, to a verdict [s]."""


class Storm:
    """One toy on one cluster, and the blows that it takes."""

    def __init__(self, folder: Path, cluster: ClusterProcess, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = cluster
        self.toy = ClusterToy(folder / "shared", cluster, num_rows=ROWS)
        self.toy.configure(pace=PACE)
        self.through_dvc = seed % 3 == 0
        if self.through_dvc:
            self.toy.git_and_dvc()
        else:
            self.toy.git_alone()
        self.runner: subprocess.Popen[str] | None = None
        self.blows: list[str] = []

    def run(self) -> str:
        """Strike some times, let the struck run end, then do the same in peace; the output of both."""
        for _ in range(self.random.randint(1, 3)):
            self._start()
            time.sleep(self.random.uniform(0.5, 4.5))
            self._strike()
        outputs = [self._finish()]
        self._start()
        outputs.append(self._finish())
        assert self.runner is not None
        assert self.runner.returncode == 0, f"{self.blows}\n{outputs}"
        return "\n".join(outputs)

    def _finish(self) -> str:
        assert self.runner is not None
        if self.runner.stdout is None or self.runner.stdout.closed:
            return ""
        return self.runner.communicate(timeout=TERMINAL_S + 60)[0]

    def _start(self) -> None:
        if self.runner is None or self.runner.poll() is not None:
            repro = self.toy.dvc("--wait-for-lock", "repro")
            self.runner = self.toy.start(*repro) if self.through_dvc else self.toy.submit()

    def _strike(self) -> None:
        blow = self.random.choice(BLOWS)
        self.blows.append(blow.__name__)
        blow(self)

    def kill_runner(self) -> None:
        assert self.runner is not None
        os.killpg(self.runner.pid, signal.SIGKILL)
        self.runner.wait()

    def kill_dvc(self) -> None:
        assert self.runner is not None
        self.runner.kill()
        self.runner.wait()

    def kill_submit(self) -> None:
        subprocess.run(["pkill", "-KILL", "-f", f"^{self.toy.root}.*flows.submit"], check=False)

    def kill_api(self) -> None:
        self.cluster.kill()
        time.sleep(self.random.uniform(0.2, 3))
        self.cluster.start()

    def cut_api(self) -> None:
        self.cluster.outage(self.random.uniform(1, 5))

    def blind_watches(self) -> None:
        self.cluster.stale_watches(10)

    def expire_watches(self) -> None:
        self.cluster.expire_watches()

    def break_logs(self) -> None:
        self.cluster.break_logs()

    def evict_pod(self) -> None:
        self._on_a_pod(self.cluster.evict)

    def preempt_pod(self) -> None:
        self._on_a_pod(self.cluster.preempt)

    def _on_a_pod(self, act: Callable[[str, str], None]) -> None:
        for name in self.toy.pods()[-1:]:
            try:
                act("afm", name)
            except ValueError:
                self.blows[-1] += " (no pod)"


BLOWS = (
    Storm.kill_runner,
    Storm.kill_dvc,
    Storm.kill_submit,
    Storm.kill_api,
    Storm.cut_api,
    Storm.blind_watches,
    Storm.expire_watches,
    Storm.break_logs,
    Storm.evict_pod,
    Storm.preempt_pod,
)


def weather(folder: Path, seed: int) -> None:
    """One storm, then look at what is left."""
    with ClusterProcess(folder / "cluster", config()) as cluster:
        storm = Storm(folder, cluster, seed)
        output = storm.run()
        told = f"seed {seed}: {storm.blows}\n{output}"
        if storm.through_dvc:
            lock = yaml.safe_load((storm.toy.root / "dvc.lock").read_text())["stages"]
            assert set(lock) == {"alpha@mhqa", "beta"}, told
        rows = (storm.toy.root / "data/alpha/mhqa/rows.txt").read_text().splitlines()
        assert len(rows) == ROWS, told
        assert_one_job_at_a_time(storm.toy.jobs(), told)
        assert_a_verdict_in_time(storm.toy.jobs(), told)
        assert cluster.processes() == [], told
        assert list((storm.toy.root / "data").rglob(".*.new")) == [], told
    assert storm.toy.marked() == [], told


def assert_one_job_at_a_time(jobs: list[dict[str, Any]], told: str) -> None:
    """Walk through history: never two live Jobs of one identity, and none that succeeds twice."""
    live: dict[str, set[str]] = {}
    done: dict[str, set[str]] = {}
    for job in jobs:
        identity = job["metadata"]["labels"]["afm.dev/identity"]
        uid = job["metadata"]["uid"]
        group = live.setdefault(identity, set())
        if job["change"] == "DELETED" or is_finished(job):
            group.discard(uid)
        else:
            group.add(uid)
        assert len(group) <= 1, f"two Jobs of {identity}\n{told}"
        if any(
            one["type"] == "Complete" and one["status"] == "True"
            for one in (job.get("status") or {}).get("conditions") or []
        ):
            done.setdefault(identity, set()).add(uid)
    assert all(len(uids) == 1 for uids in done.values()), f"made twice: {done}\n{told}"


def assert_a_verdict_in_time(jobs: list[dict[str, Any]], told: str) -> None:
    assert is_finished(jobs[-1]) or jobs[-1]["change"] == "DELETED", told


@pytest.mark.parametrize("seed", range(6))
def test_a_storm(tmp_path: Path, seed: int) -> None:
    weather(tmp_path, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_a_season_of_storms(tmp_path: Path, seed: int) -> None:
    weather(tmp_path, seed)
