"""`afm doctor` on this machine: in folders where one thing after the other is broken."""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flows import doctor
from flows.commands.doctor import as_json, line
from flows.doctor import endpoints, environments, machine, services, sources, storage
from flows.doctor.finding import Finding, Site, State, hidden, ok, problem
from flows.environment import ENVIRONMENTS, variable
from tests.support.toy import REPO


def site(root: Path, *, is_cluster: bool = False, **environ: str) -> Site:
    return Site(root=root, home=root, environ=environ, is_cluster=is_cluster)


def said(found: Iterable[Finding], words: str) -> State:
    """Return how bad it is what a line with these words says; there must be one."""
    found = list(found)
    fitting = [one for one in found if words in one.text]
    assert len(fitting) == 1, [one.text for one in found]
    return fitting[0].state


# Environments


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with the real constraints and no environment."""
    shutil.copytree(REPO / "constraints", tmp_path / "constraints")
    return tmp_path


def real() -> dict[str, str]:
    """Variables that name this project's interpreters."""
    folders = {name: f".venv-{name}" for name in ENVIRONMENTS} | {"pipeline": ".venv"}
    return {variable(name): str(REPO / at / "bin" / "python") for name, at in folders.items()}


def test_environments_as_they_are_installed_are_fine(project: Path) -> None:
    found = list(environments.check(site(project, **real())))
    assert {one.state for one in found} == {State.OK}, found
    assert len(found) == len(ENVIRONMENTS) + 1


def test_a_missing_environment_and_one_whose_python_does_not_run(project: Path) -> None:
    broken = project / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    found = list(environments.check(site(project, AFM_MATH_PYTHON=str(broken))))
    assert said(found, "'serve' is not installed") is State.PROBLEM
    assert said(found, f"math: {broken} does not run") is State.PROBLEM
    broken.write_text("not a program")
    found = list(environments.check(site(project, AFM_MATH_PYTHON=str(broken))))
    assert said(found, f"math: {broken} does not run") is State.PROBLEM
    remote = list(environments.check(site(project, is_cluster=True)))
    assert not [one for one in remote if "serve" in one.text], "images hold it"


def test_another_version_than_the_pinned_one_is_named(project: Path) -> None:
    path = project / "constraints" / "math.txt"
    text = path.read_text()
    installed = environments.read_pins(path)["math-verify"].pop()
    path.write_text(text.replace(f"math-verify=={installed}", "math-verify==99"))
    found = list(environments.check(site(project, **real())))
    assert (
        said(found, f"math: math-verify is {installed}, not 99 as math.txt says") is State.PROBLEM
    )


def test_rl_constraints_that_disagree_are_named(project: Path) -> None:
    path = project / "constraints" / "rl-gpu.txt"
    path.write_text(path.read_text().replace("verl==", "verl==9"))
    found = list(environments.check(site(project, is_cluster=True, **real())))
    assert said(found, "rl.txt and rl-gpu.txt differ: verl ") is State.PROBLEM


@pytest.mark.parametrize(
    ("version", "pin", "fits"),
    [
        ("2.13.0+cpu", "2.13.0", True),
        ("2.13.0+cpu", "2.13.0+cpu", True),
        ("2.13.0", "2.13.0+cpu", False),
        ("2.13", "2.13.0", False),
        (None, "1", False),
    ],
)
def test_a_pin_without_a_local_part_takes_any(version: str | None, pin: str, fits: bool) -> None:
    assert environments._fits(version, pin) is fits


# git


def git(root: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clean git repository with a remote, unaware of this machine's own configuration."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    root = tmp_path / "checkout"
    git(tmp_path, "init", "-q", "--bare", "origin")
    git(tmp_path, "clone", "-q", "origin", "checkout")
    for key, value in (("user.name", "Ann"), ("user.email", "ann@example.org")):
        git(root, "config", key, value)
    (root / "file").write_text("x")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    return root


def test_a_clean_checkout_with_a_remote_is_fine(checkout: Path) -> None:
    (checkout / "dvc.lock").write_text("a run's own")
    found = list(sources.check(site(checkout)))
    assert {one.state for one in found} == {State.OK}, found
    assert "Ann <ann@example.org>" in found[1].text


def test_what_is_amiss_with_a_checkout(checkout: Path, tmp_path: Path) -> None:
    (checkout / "file").write_text("y")
    git(checkout, "config", "--unset", "user.name")
    shutil.rmtree(tmp_path / "origin")
    found = list(sources.check(site(checkout)))
    assert said(found, ": file") is State.WARNING
    assert said(found, "user.name not set") is State.WARNING
    assert said(found, "the remote origin does not answer") is State.PROBLEM
    git(checkout, "remote", "remove", "origin")
    found = list(sources.check(site(checkout, is_cluster=True)))
    assert said(found, ": file") is State.PROBLEM, "a cluster runs commits"
    assert said(found, "no remote origin") is State.WARNING
    (bare,) = sources.check(site(tmp_path))
    assert bare.state is State.PROBLEM


# DVC


def configure(root: Path, text: str) -> None:
    (root / ".dvc").mkdir(exist_ok=True)
    (root / ".dvc" / "config").write_text(text)


def test_a_cache_that_links_and_a_remote_that_answers_are_fine(checkout: Path) -> None:
    (checkout.parent / "remote").mkdir()
    remote = "[core]\n remote = r\n['remote \"r\"']\n url = ../../remote\n"
    configure(checkout, f"{remote}[cache]\n type = reflink,hardlink\n")
    found = list(storage.check(site(checkout)))
    assert {one.state for one in found} == {State.OK}, found
    assert not list(checkout.rglob("afm-doctor*"))


def test_what_is_amiss_with_dvc(checkout: Path) -> None:
    (bare,) = storage.check(site(checkout))
    assert bare.state is State.PROBLEM
    configure(
        checkout, "[cache]\n dir = /dev/shm\n[core]\n remote = r\n['remote \"r\"']\n url = ../no\n"
    )
    found = list(storage.check(site(checkout)))
    assert said(found, "every output lies there twice") is State.WARNING
    assert said(found, "/dev/shm share no hard links") is State.PROBLEM
    assert said(found, "the remote r is empty or not there") is State.WARNING


# The machine


def test_a_full_disk_and_a_small_shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, disk, shm in (
        (50e9, State.OK, State.OK),
        (5e9, State.WARNING, State.OK),
        (6.4e7, State.PROBLEM, State.WARNING),
    ):
        blocks = int(free) // 512
        result = os.statvfs_result((512, 512, 10**12, blocks, blocks, 1, 1, 1, 0, 255))
        monkeypatch.setattr(os, "statvfs", lambda _path, result=result: result)
        found = list(machine.check(site(tmp_path)))
        assert said(found, "free for results") is disk
        assert said(found, "/dev/shm has") is shm
    found = list(machine.check(site(tmp_path, AFM_MIN_FREE_GB="0.01")))
    assert said(found, "free for results") is State.WARNING


# Services and endpoints


@pytest.fixture
def server() -> Iterator[str]:
    """A server that lets in who brings the right login, and else answers 401."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            right = ("Bearer key", "Basic YW5uOnB3")  # ann:pw
            code = 200 if self.headers.get("Authorization") in right else 401
            self.send_response(code)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()
        thread.join()


GONE = "http://127.0.0.1:9"
LOGIN = {"MLFLOW_TRACKING_USERNAME": "ann", "MLFLOW_TRACKING_PASSWORD": "pw"}


def test_mlflow_answers_refuses_or_is_away(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def look(uri: str, **environ: str) -> Finding:
        (one,) = [
            one
            for one in services.check(site(tmp_path, MLFLOW_TRACKING_URI=uri, **environ))
            if "MLflow" in one.text
        ]
        return one

    assert look(server, **LOGIN).state is State.OK
    assert "MLFLOW_TRACKING_PASSWORD" in look(server).todo
    assert look(server).state is look(GONE).state is State.PROBLEM
    assert said(services.check(site(tmp_path)), "MLflow is the file sqlite:///") is State.OK
    shared = services.check(site(tmp_path, is_cluster=True))
    assert said(shared, "which runs on a cluster would share") is State.PROBLEM


def test_a_prefect_server_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(services.check(site(tmp_path)), "PREFECT_API_URL is not set") is State.OK
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: f"{GONE}/api"}):
        found = services.check(site(tmp_path, PREFECT_API_URL=f"{GONE}/api"))
        assert said(found, "no Prefect server answers") is State.PROBLEM


def test_endpoints_answer_refuse_or_are_away(server: str, tmp_path: Path) -> None:
    blocks = {
        "good": {"base_url": f"{server}/v1", "api_key_env": "KEY"},
        "locked": {"base_url": f"{server}/v1"},
        "keyless": {"base_url": f"{server}/v1", "api_key_env": "NO_SUCH_KEY"},
        "away": {"base_url": GONE},
        "odd": {"base_url": "afm-serving"},
        "own": {"serve": {"model": "x"}},
    }
    (tmp_path / "params.yaml").write_text(json.dumps({"endpoints": blocks}))
    found = list(endpoints.check(site(tmp_path, KEY="key")))
    assert said(found, "good: ") is said(found, "own: ") is State.OK
    for words in ("locked: ", "keyless: ", "away: ", "odd: "):
        assert said(found, words) is State.PROBLEM, words
    (tmp_path / "params.yaml").write_text("run: {}")
    assert list(endpoints.check(site(tmp_path))) == []


# The command


def test_a_topic_that_cannot_be_looked_at_is_a_problem_and_the_others_follow(
    tmp_path: Path,
) -> None:
    (tmp_path / "params.yaml").write_text("[")
    found = list(doctor.examine(site(tmp_path, AFM_MIN_FREE_GB="x")))
    assert {one.topic for one in found} >= {"environments", "git", "dvc", "services", "endpoints"}
    assert said(found, "is not YAML") is State.PROBLEM
    assert said(found, "AFM_MIN_FREE_GB='x' is no number") is State.PROBLEM


def test_lines_and_json() -> None:
    assert line(ok("git", "clean")) == "ok                  git           clean"
    assert line(problem("git", "dirty", "commit")).splitlines()[1].strip() == "-> commit"
    assert line(hidden("cluster", "nodes")).startswith("not allowed to see  cluster ")
    tree = json.loads(json.dumps(as_json([hidden("cluster", "nodes", "ask")], healthy=True)))
    finding = {"topic": "cluster", "state": "not allowed to see", "text": "nodes", "todo": "ask"}
    assert tree == {"healthy": True, "findings": [finding]}
