"""The sandbox as a server and what holds it: limits, queue, token, deaths of parts, machines that isolate nothing."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from afm.errors import SandboxError
from afm.sandbox import URL_VARIABLE, open_sandbox, scratch
from afm.sandbox import image as image_module
from afm.sandbox.client import RemoteSandbox
from afm.sandbox.pool import Pool, open_pool
from afm.sandbox.protocol import TOKEN_VARIABLE
from afm.sandbox.scratch import ScratchRoot
from tests.support.sandboxes import LIMITS, open_folder, restricted, serving, why_not
from tests.support.toy import REPO

pytestmark = pytest.mark.timeout(300)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as opened:
        yield opened


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server for one execution at a time, with a token."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    os.environ[TOKEN_VARIABLE] = "s3cret"
    try:
        with serving(
            tmp_path_factory.mktemp("server"),
            options=("--slots", "1", "--queue", "4", "--port", str(port)),
            url=url,
        ):
            yield url
    finally:
        del os.environ[TOKEN_VARIABLE]


@pytest.fixture
def client(address: str) -> Iterator[RemoteSandbox]:
    opened = RemoteSandbox(address)
    yield opened
    opened.close()


def test_it_runs_programs_for_those_who_have_the_token(
    client: RemoteSandbox, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.run("print(input() + '\\ud800')", "a\ud800", LIMITS).stderr.startswith("Trace")
    assert client.run("print(input())", "a\ud800", LIMITS).stdout == "a?\n"
    monkeypatch.setenv(TOKEN_VARIABLE, "other")
    refused = RemoteSandbox(address).run("print(1)", None, LIMITS)
    assert (refused.kind, "HTTP 401" in refused.stderr) == ("sandbox_failure", True)


def test_its_own_limits_are_the_highest(client: RemoteSandbox) -> None:
    asked = LIMITS.model_copy(update={"memory_mib": LIMITS.memory_mib + 1})
    refused = client.run("print(1)", None, asked)
    assert (refused.kind, "memory_mib = 513 is above" in refused.stderr) == (
        "sandbox_failure",
        True,
    )
    assert client.run("print(1)", None, LIMITS.model_copy(update={"unsafe": True})).kind == (
        "sandbox_failure"
    )
    lower = LIMITS.model_copy(update={"max_output_bytes": 3})
    assert client.run("print('abcd')", None, lower).stdout == "abc"


def test_a_full_queue_sends_clients_away_and_all_come_back(
    client: RemoteSandbox, address: str
) -> None:
    body = {
        "program": "import time; time.sleep(0.2)",
        "stdin": None,
        "limits": LIMITS.model_dump(),
    }
    headers = {"Authorization": "Bearer s3cret"}

    def post(_: int) -> httpx.Response:
        return httpx.post(f"{address}/v1/execute", json=body, headers=headers, timeout=60)

    with ThreadPoolExecutor(12) as clients:
        answers = list(clients.map(post, range(12)))
    sent_away = [one for one in answers if one.status_code == 429]
    assert sent_away and all(one.headers["Retry-After"] == "1" for one in sent_away)
    assert all(one.json()["kind"] == "ok" for one in answers if one.status_code == 200)
    with ThreadPoolExecutor(12) as clients:
        kinds = list(
            clients.map(lambda _: client.run(body["program"], None, LIMITS).kind, range(12))
        )
    assert kinds == ["ok"] * 12
    health = client.check()
    assert (health.num_slots, health.running, health.waiting) == (1, 0, 0)
    assert 'afm_sandbox_executions_total{outcome="ok"' in httpx.get(f"{address}/metrics").text


def test_it_does_not_open_itself_to_others() -> None:
    environment = {key: value for key, value in os.environ.items() if key != TOKEN_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-m", "afm.sandbox.server", "--host", "0.0.0.0"],
        cwd=REPO,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert f"set {TOKEN_VARIABLE}" in done.stderr


def test_a_process_uses_the_server_that_its_environment_names(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, address)
    assert isinstance(open_sandbox(), RemoteSandbox)
    monkeypatch.setenv(URL_VARIABLE, "http://127.0.0.1:1")
    with pytest.raises(SandboxError, match="no sandbox server at"):
        open_sandbox()


# Deaths


@pytest.fixture
def pool() -> Iterator[Pool]:
    opened = open_pool(unsafe=False)
    yield opened
    opened.close()


def test_a_dead_zygote_is_no_evidence_and_is_replaced(pool: Pool) -> None:
    outcomes = []
    sleeping = "import time\nprint('begun', flush=True)\ntime.sleep(60)"
    thread = threading.Thread(target=lambda: outcomes.append(pool.run(sleeping, None, LIMITS)))
    thread.start()
    zygote = pool.zygote("plain")
    until(lambda: len(psutil.Process(zygote.pid).children(recursive=True)) > 1)
    os.kill(zygote.pid, 9)
    thread.join()
    assert outcomes[0].kind == "sandbox_failure"
    assert pool.run("print(1)", None, LIMITS).stdout == "1\n"
    pool.close()
    closed = pool.run("print(1)", None, LIMITS)
    assert (closed.kind, closed.stderr) == ("sandbox_failure", "the pool is closed")


@pytest.mark.parametrize("tier", ["namespaces", "landlock"])
def test_nothing_outlives_a_killed_server(tier: str, folder: Path) -> None:
    reason = why_not(tier)
    if reason is not None:
        pytest.skip(f"tier {tier}: {reason}")
    rights = ("--with-namespaces",) if tier == "namespaces" else ()
    with restricted(folder, *rights) as world:
        assert world.tier == tier  # for an unprivileged user, where it may make namespaces, too
        idle = world.processes()
        thread = threading.Thread(target=world.run, args=("import time; time.sleep(60)",))
        thread.start()
        until(lambda: len(world.processes()) > len(idle))
        everything = world.processes()
        world.root.kill()
        thread.join()
        until(lambda: not any(map(is_alive, everything)))
    assert tier == "namespaces" or list(folder.glob(f"{scratch.PREFIX}*"))
    with restricted(folder, *rights) as world:
        assert len(list(folder.glob(f"{scratch.PREFIX}*"))) == (tier == "landlock")
        assert world.run("print(1)").stdout == "1\n"


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_forked_process_has_its_own_pool() -> None:
    program = (
        "import os\nfrom afm.sandbox import open_sandbox\nfrom tests.support.sandboxes import LIMITS\n"
        "mine = open_sandbox()\nif os.fork() == 0:\n    other = open_sandbox()\n"
        "    assert other is not mine\n    print(other.run('print(1)', None, LIMITS).kind)\nelse:\n"
        "    os.wait()\n    print(mine.run('print(1)', None, LIMITS).kind)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("ok\nok\n", "")


def test_folders_of_others_are_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"{scratch.PREFIX}left").mkdir()
    one, other = ScratchRoot(), ScratchRoot()
    assert sorted(tmp_path.iterdir()) == sorted([one.path, other.path])
    with other.folder() as mine:
        make_deep(mine, 1500)
        (mine / "closed").mkdir(0o000)
    assert list(other.path.iterdir()) == []
    one.close()
    other.close()
    assert list(tmp_path.iterdir()) == []


def make_deep(folder: Path, depth: int) -> None:
    """Nest folders deeper than a path may be long, and than Python may recurse."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("folder", dir_fd=at)
        below = os.open("folder", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


# Machines that do not isolate


def test_where_nothing_isolates_nothing_runs(folder: Path) -> None:
    with pytest.raises(AssertionError) as raised, restricted(folder, "--without-landlock"):
        pass
    said = str(raised.value)
    assert "nothing on this machine isolates" in said
    assert "namespaces: PermissionError: [Errno 1] unshare" in said
    assert "landlock: OSError: [Errno 38] Landlock version 0" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_root_without_namespaces_becomes_somebody_else_or_nobody() -> None:
    pool = Pool("landlock")
    try:
        outcome = pool.run("import os; print(os.getuid(), os.geteuid())", None, LIMITS)
    finally:
        pool.close()
    is_hidden = any(not folder.stat().st_mode & 0o001 for folder in Path(os.__file__).parents)
    if is_hidden:
        assert "cannot read" in outcome.stderr, outcome
    else:
        assert outcome.stdout == "65534 65534\n", outcome


def test_unsafe_has_to_be_asked_for_and_warns(folder: Path) -> None:
    before = ("-m", "tests.support.unprivileged", "--without-landlock", sys.executable)
    limits = LIMITS.model_copy(update={"unsafe": True})
    with serving(folder, *before, limits=limits) as (client, process):
        assert client.check().tier == "unsafe"
        assert client.run("print(len(open('/etc/passwd').read()) > 0)", None, limits).kind == "ok"
        assert client.run(
            "while True: pass", None, limits.model_copy(update={"cpu_s": 1})
        ).kind == ("timeout")
        process.terminate()
        assert "WITHOUT isolation" in (process.stderr.read() if process.stderr else "")


BROKEN = {
    "no filter": ("seccomp.install(jail.filter)", "pass", "started a process"),
    "no limits": ("limits.apply(", "dict(own_processes=True) or print(", "did not end as oom"),
    "open descriptors": ("os.closerange(ARMED + 1, 2**31 - 1)", "pass", "holds descriptors"),
    "environment": ("os.environ.clear()", "pass", "has an environment"),
    "set-up fails": ("seccomp.install(jail.filter)", "raise OSError('no filter')", "no filter"),
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_jail_with_a_hole_is_not_used(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why_not("namespaces") is not None:
        pytest.skip("this machine forbids user namespaces")
    line, instead, noticed = BROKEN[name]
    shutil.copytree(REPO / "afm" / "sandbox", tmp_path / "sandbox")
    zygote = tmp_path / "sandbox" / "jail" / "zygote.py"
    source = zygote.read_text()
    assert source.count(line) == 1
    zygote.write_text(source.replace(line, instead))
    monkeypatch.setattr(image_module, "__file__", str(tmp_path / "sandbox" / "image.py"))
    pool = Pool("namespaces")
    try:
        with pytest.raises(SandboxError, match=noticed):
            pool.zygote("plain")
        assert pool.run("print('ran')", None, LIMITS).kind == "sandbox_failure"
    finally:
        pool.close()


def test_worlds_are_what_they_say() -> None:
    """The restricted world must not be more than a pod: no namespace, no root."""
    look = (
        "import ctypes, os; print(os.getuid() > 0, ctypes.CDLL(None).unshare(1 << 28), "
        "open('/proc/self/status').read().split('CapEff:')[1].split()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.unprivileged", sys.executable, "-c", look],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True -1 0000000000000000\n"
