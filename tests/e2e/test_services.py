"""MLflow, Prefect and the worker, started with the manifests' own commands and variables, on a real PostgreSQL.

Two minutes, and it wants PostgreSQL's programs, hence among the long tests.
"""

import base64
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows import lineage
from flows.aliases import aliased_content
from flows.guard import guarded
from flows.lineage_live import LiveCurves
from flows.records import write_record
from flows.servers import free_port
from tests.support.live_curves import begin, curve, open_study, record_of, write
from tests.support.manifests import Object, objects
from tests.support.records import BASE, MODEL, record
from tests.support.toy import REPO

PROGRAMS = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), None)
SECRETS = {
    "afm-postgres": {
        "postgres-password": "any thing",
        "mlflow-password": "it's :odd@/%",
        "prefect-password": "so:is/@this'",
    },
    "afm-mlflow": {"username": "admin", "password": "long enough 1", "flask-secret-key": "k" * 32},
    "afm-prefect": {"auth-string": "admin:a word"},
}
START_S = 240.0

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(PROGRAMS is None, reason="no PostgreSQL here (apt-get install postgresql)"),
]


class World:
    """The namespace on this machine: names become ports of the loopback interface, mounts become folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {
            name: free_port()
            for name in ("afm-postgres:5432", "afm-mlflow:5000", "afm-prefect:4200")
        }
        self.health = free_port()
        self.objects = objects("overlays/local")

    def find(self, kind: str, name: str) -> Object:
        (found,) = [
            one for one in self.objects if (one["kind"], one["metadata"]["name"]) == (kind, name)
        ]
        return found

    def here(self, text: str) -> str:
        """Translate what the manifest says; the list of allowed hosts stays as it is."""
        if text.startswith("--allowed-hosts"):
            return text
        for name, port in self.ports.items():
            text = text.replace(name, f"127.0.0.1:{port}")
        return text.replace("/etc/mlflow", str(self.folder / "etc")).replace(
            "/artifacts", str(self.folder / "artifacts")
        )

    def command(self, container: Object) -> list[str]:
        found = [self.here(one) for one in [*container["command"], *container.get("args", [])]]
        ports = {"5000": "afm-mlflow:5000", "4200": "afm-prefect:4200"}
        found = [str(self.ports[ports[one]]) if one in ports else one for one in found]
        return [
            sys.executable,
            *(
                one.replace("--port=5000", f"--port={self.ports['afm-mlflow:5000']}")
                for one in found[1:]
            ),
        ]

    def environment(self, container: Object) -> dict[str, str]:
        found: dict[str, str] = {}
        for source in container.get("envFrom", []):
            found |= self.find("ConfigMap", source["configMapRef"]["name"])["data"]
        for variable in container["env"]:
            reference: dict[str, Any] = variable.get("valueFrom", {})
            secret = reference.get("secretKeyRef")
            found[variable["name"]] = (
                SECRETS[secret["name"]][secret["key"]] if secret else variable.get("value", "afm")
            )
        changed = {
            "PREFECT_SERVER_DATABASE_HOST": "127.0.0.1",
            "PREFECT_SERVER_DATABASE_PORT": str(self.ports["afm-postgres:5432"]),
            "PREFECT_WORKER_WEBSERVER_PORT": str(self.health),
        }
        found |= {name: value for name, value in changed.items() if name in found}
        home = self.folder / "tmp"
        home.mkdir(exist_ok=True)
        return {"PATH": "/usr/bin:/bin"} | {
            name: self.here(value.replace("/tmp", str(home))) for name, value in found.items()
        }

    @contextmanager
    def running(self, container: Object) -> Iterator[Path]:
        log = self.folder / f"{container['name']}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                guarded(self.command(container)),
                env=self.environment(container),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        try:
            yield log
        finally:
            process.terminate()
            process.wait()

    def run(self, container: Object) -> None:
        done = subprocess.run(
            self.command(container),
            env=self.environment(container),
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr

    def status(
        self, address: str, login: str = "", host: str = "", body: bytes | None = None
    ) -> int:
        """Return the status of a request; 0 where nothing answers."""
        headers = {"Content-Type": "application/json"}
        if login:
            headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        if host:
            headers["Host"] = host
        try:
            request = urllib.request.Request(self.here(f"http://{address}"), body, headers)
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def wait_for(self, address: str, log: Path) -> None:
        deadline = time.monotonic() + START_S
        while self.status(address) != 200:
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)


@contextmanager
def postgres(world: World) -> Iterator[None]:
    """Run an empty server with the databases that its ConfigMap's script makes."""
    assert PROGRAMS is not None
    data, port = world.folder / "data", str(world.ports["afm-postgres:5432"])
    data.mkdir()
    as_user: list[str] = []
    if os.getuid() == 0:  # it refuses root
        for folder in (data, world.folder):
            shutil.chown(folder, "postgres", "postgres")
        as_user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
    arguments = world.find("StatefulSet", "afm-postgres")["spec"]["template"]["spec"]["containers"][
        0
    ]["env"]
    (init,) = [one["value"] for one in arguments if one["name"] == "POSTGRES_INITDB_ARGS"]
    make = [
        str(PROGRAMS / "initdb"),
        "-D",
        str(data),
        "-U",
        "postgres",
        "--auth-local=trust",
        *init.split(),
    ]
    subprocess.run([*as_user, *make], check=True, capture_output=True, cwd="/")
    server = [
        str(PROGRAMS / "postgres"),
        "-D",
        str(data),
        "-p",
        port,
        "-k",
        str(world.folder),
        "-h",
        "127.0.0.1",
    ]
    process = subprocess.Popen([*as_user, *server], stderr=subprocess.DEVNULL, cwd="/")
    try:
        ready = [str(PROGRAMS / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", port]
        deadline = time.monotonic() + 60
        while subprocess.run(ready).returncode:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        words = SECRETS["afm-postgres"]
        script = world.find("ConfigMap", "afm-postgres")["data"]["databases.sh"]
        environ = {
            "PATH": f"{PROGRAMS}:/usr/bin:/bin",
            "PGHOST": str(world.folder),
            "PGPORT": port,
            "POSTGRES_USER": "postgres",
        }
        environ |= {
            "MLFLOW_PASSWORD": words["mlflow-password"],
            "PREFECT_PASSWORD": words["prefect-password"],
        }
        subprocess.run(["bash", "-e", "-c", script], check=True, env=environ, capture_output=True)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


@pytest.fixture
def world() -> Iterator[World]:
    """A folder that PostgreSQL's user can reach, unlike pytest's own."""
    folder = Path(
        subprocess.run(["mktemp", "-d"], check=True, capture_output=True, text=True).stdout.strip()
    )
    folder.chmod(0o755)
    made = World(folder)
    for name, text in made.find("ConfigMap", "afm-mlflow")["data"].items():
        (folder / "etc").mkdir(exist_ok=True)
        (folder / "etc" / name).write_text(made.here(text))
    yield made
    shutil.rmtree(folder)


def test_the_services_start_and_ask_for_passwords(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    migration = world.find("Job", "afm-mlflow-migration")["spec"]["template"]["spec"]
    mlflow = world.find("Deployment", "afm-mlflow")["spec"]["template"]["spec"]
    prefect = world.find("Deployment", "afm-prefect")["spec"]["template"]["spec"]["containers"][0]
    worker = world.find("Deployment", "afm-worker")["spec"]["template"]["spec"]["containers"][0]
    with ExitStack() as stack:
        stack.enter_context(postgres(world))
        waiting = stack.enter_context(world.running(mlflow["initContainers"][0]))
        for container in [*migration["initContainers"], *migration["containers"]]:
            world.run(container)
        assert "waiting for job afm-mlflow-migration" in waiting.read_text()
        world.run(mlflow["initContainers"][0])  # nothing left to wait for
        world.wait_for(
            "afm-mlflow:5000/health", stack.enter_context(world.running(mlflow["containers"][0]))
        )
        world.wait_for("afm-prefect:4200/api/ready", stack.enter_context(world.running(prefect)))
        world.wait_for(
            f"127.0.0.1:{world.health}/health", stack.enter_context(world.running(worker))
        )
        experiments = "afm-mlflow:5000/api/2.0/mlflow/experiments/search?max_results=1"
        login = "admin:long enough 1"
        assert [world.status(experiments, one) for one in ("", "admin:wrong", login)] == [
            401,
            401,
            200,
        ]
        assert [
            world.status(experiments, login, one) for one in ("afm-mlflow:5000", "evil.example")
        ] == [200, 403]
        pools = "afm-prefect:4200/api/work_pools/filter"
        assert [world.status(pools, one, body=b"{}") for one in ("", "admin:a word")] == [401, 200]
        monkeypatch.setenv(
            "MLFLOW_TRACKING_URI", f"http://127.0.0.1:{world.ports['afm-mlflow:5000']}"
        )
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "long enough 1")
        lineage_reaches_it(world.folder / "checkout")


def lineage_reaches_it(root: Path) -> None:
    """Bring two runs and a live curve of a third to the server, and ask which content its alias leads to."""
    (root / ".lineage").mkdir(parents=True)
    (root / "params.yaml").write_text((REPO / "params.yaml").read_text())
    subprocess.run(["git", "init", "-q", "-b", "study-x", str(root)], check=True)
    curves, steps = LiveCurves(home=root), begin(root)
    write(steps, 3.0, 2.0)
    curves.flush(lambda: open_study(root))
    assert curve(root) == ("RUNNING", [(1, 3.0), (2, 2.0)])
    write(steps, 3.0, 2.0, 1.0)
    kept = record_of(root, steps)
    write_record(root / ".lineage", record("sft"))
    assert (lineage.sync(root), lineage.sync(root)) == (2, 0)
    curves.close(open_study(root))
    assert curve(root) == ("FINISHED", [(1, 3.0), (2, 2.0), (3, 1.0)])
    assert aliased_content(root) == {MODEL, BASE, kept}
