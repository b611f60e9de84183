"""The small programs that run beside the services, from their ConfigMaps."""

import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest
import sqlalchemy

from tests.support.manifests import K8S, objects

READY = K8S / "services" / "serving" / "ready.py"
KEY = "a key"


class Completions(BaseHTTPRequestHandler):
    """Answers as vLLM does; `tokens` None: the engine behind it is dead."""

    tokens: int | None = 1
    asked: list[dict[str, object]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        allowed = self.headers["Authorization"] == f"Bearer {KEY}"
        type(self).asked.append({"path": self.path, "allowed": allowed, **body})
        if self.tokens is None or not allowed:
            self.send_error(500 if allowed else 401)
            return
        answer = json.dumps({"usage": {"completion_tokens": self.tokens}}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    Completions.asked, Completions.tokens = [], 1
    with HTTPServer(("127.0.0.1", 0), Completions) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def probe(port: int, key: str = KEY) -> "subprocess.CompletedProcess[str]":
    environ = {"PORT": str(port), "SERVED_MODEL_NAME": "teacher", "VLLM_API_KEY": key}
    command = [sys.executable, "-I", str(READY)]
    return subprocess.run(command, env=environ, capture_output=True, text=True)


def test_a_completed_token_makes_it_ready(server: HTTPServer) -> None:
    assert probe(server.server_port).returncode == 0
    (asked,) = Completions.asked
    assert asked["path"] == "/v1/completions"
    assert asked["model"] == "teacher"
    assert asked["max_tokens"] == 1


@pytest.mark.parametrize("tokens", [None, 0])
def test_without_a_token_it_is_not_ready(server: HTTPServer, tokens: int | None) -> None:
    Completions.tokens = tokens
    done = probe(server.server_port)
    assert done.returncode == 1
    assert done.stderr


def test_a_wrong_key_and_a_closed_port_are_not_ready(server: HTTPServer) -> None:
    assert "401" in probe(server.server_port, "another").stderr
    assert "no completion" in probe(1).stderr


def test_a_server_without_a_key_is_asked_without_one(server: HTTPServer) -> None:
    environ = {"PORT": str(server.server_port), "SERVED_MODEL_NAME": "teacher"}
    command = [sys.executable, "-I", str(READY)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert "401" in done.stderr, "this server has one"
    assert len(Completions.asked) == 1


def test_the_probe_waits_longer_than_the_script() -> None:
    (deployment,) = [one for one in objects("services/serving") if one["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["timeoutSeconds"] > load(READY).TIMEOUT_S


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def waiting() -> ModuleType:
    return load(K8S / "services" / "mlflow" / "wait_for_schema.py")


def test_schemas_are_those_of_the_installed_mlflow(waiting: ModuleType, tmp_path: Path) -> None:
    for folder, table in waiting.SCHEMAS:
        url = f"sqlite:///{tmp_path / table}"
        reason = waiting.lacks(url, folder, table)
        assert reason.startswith(f"{table} is None, wanted ")
        stamp(url, table, "another")
        assert "another" in waiting.lacks(url, folder, table)
        stamp(url, table, reason.rsplit(" ", 1)[1])
        assert waiting.lacks(url, folder, table) is None


def stamp(url: str, table: str, revision: str) -> None:
    with sqlalchemy.create_engine(url).begin() as connection:
        connection.execute(sqlalchemy.text(f"DROP TABLE IF EXISTS {table}"))
        connection.execute(sqlalchemy.text(f"CREATE TABLE {table} (version_num VARCHAR(32))"))
        connection.execute(sqlalchemy.text(f"INSERT INTO {table} VALUES ('{revision}')"))


def test_no_connection_is_waited_for(waiting: ModuleType, tmp_path: Path) -> None:
    folder, table = waiting.SCHEMAS[0]
    assert "no connection" in waiting.lacks(f"sqlite:///{tmp_path}/none/db", folder, table)
