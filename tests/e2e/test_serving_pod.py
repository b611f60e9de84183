"""The pod of an endpoint with a real vLLM: ready by its probe, asked under its own name, gone when nobody asks."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from afm.chat import ModelClient
from afm.endpoint_client import with_endpoint
from afm.params.endpoints import EndpointModel, EndpointParams
from afm.params.reading import parse_section
from tests.support.endpoint_toy import block
from tests.support.toy import REPO

PYTHON = REPO / ".venv-serve" / "bin" / "python"
READY = REPO / "k8s" / "services" / "serving" / "ready.py"
NAME = "own/tiny-base"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PYTHON.exists(), reason="no serve environment"),
]


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name: vLLM's sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="afm") as name:
        yield Path(name)


def test_a_real_server_is_ready_answers_and_ends_without_use(short: Path) -> None:
    values = block("r", model=str(REPO / "models" / "tiny-base"), max_model_len=1024)
    values["serve"]["startup_timeout_s"] = 300.0
    found = parse_section(values, EndpointParams, where="block")
    assert found.serve is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [
        *(str(PYTHON), "-m", "afm.serving_pod", found.serve.model, "--name", NAME),
        *("--serve", found.serve.model_dump_json(), "--port", port, "--idle-s", "30"),
    ]
    environ = os.environ | {"PYTHONPATH": str(REPO), "TMPDIR": str(short)}
    pod = subprocess.Popen(command, env=environ, cwd=REPO, stdout=subprocess.PIPE, text=True)
    try:
        probe = [sys.executable, "-I", "-c", READY.read_text()]
        variables = {"PORT": port, "SERVED_MODEL_NAME": NAME}
        while subprocess.run(probe, env=variables, capture_output=True).returncode != 0:
            assert pod.poll() is None
            time.sleep(1)
        assert ask(found, port, short)
        output, _ = pod.communicate(timeout=120)
    finally:
        pod.kill()
    assert pod.returncode == 0, output
    assert "nobody has asked for 30 s" in output
    assert not list(short.glob("afm-*")), "its folders are gone"


def ask(found: EndpointParams, port: str, folder: Path) -> str:
    async def work(client: ModelClient) -> str:
        message = {"role": "user", "content": "Answer from memory."}
        return await client.chat([message], max_tokens=8, temperature=1.0, seed=3)

    return with_endpoint(
        "own",
        EndpointModel(name=NAME, revision="r"),
        work,
        access=found,
        log=folder / "log",
        facts=folder / "facts.json",
        environ={"AFM_ENDPOINT_OWN": f"http://127.0.0.1:{port}/v1"},
    )
