"""Environment variables and interpreters of every process the project starts, in one place."""

from collections.abc import Mapping
from pathlib import Path

from afm.errors import UserError

ENVIRONMENTS = ("pipeline", "serve", "rl", "math")
CONSTRAINTS_FILE = "afm-constraints"
"""File in an environment that names its constraints: a GPU variant is another environment, so other results."""
HUB_STAGES = ("prepare", "base")
"""Stages that may reach a model or data hub; all others run offline."""

_QUIET = {
    # MLflow ignores DO_NOT_TRACK=1.
    "DO_NOT_TRACK": "true",
    "DVC_NO_ANALYTICS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "WANDB_MODE": "disabled",
}
_STEADY = {
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
    # vLLM and Ray rename their processes, which overwrites the environment that a job's processes are known by.
    "SPT_NOENV": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_LEAKING = ("MLFLOW_RUN_ID", "PYTHONHOME", "VIRTUAL_ENV", "DVC_STAGE", "DVC_ROOT")
"""Variables of a caller that would change what a child does."""


def quiet_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with every telemetry that our dependencies bring switched off."""
    return {**environ, **_QUIET}


def stage_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a process that runs stages: no telemetry, nothing of the caller's own run."""
    kept = {name: value for name, value in environ.items() if name not in _LEAKING}
    return {**quiet_environment(kept), **_STEADY}


def job_environment(
    environ: Mapping[str, str], *, stage: str, environment: str, home: Path, workspace: Path
) -> dict[str, str]:
    """Return the environment of a stage's own process.

    Its environment's programs come first on PATH, and it is told where the other environments' interpreters are.
    """
    python = interpreter(environ, environment, home)
    others = {
        variable(name): str(path)
        for name in ENVIRONMENTS
        if (path := _place(environ, name, home)).exists()
    }
    offline = {} if stage in HUB_STAGES else {"HF_HUB_OFFLINE": "1"}
    paths = {
        "PATH": f"{python.parent}:{environ.get('PATH', '/usr/bin:/bin')}",
        "PYTHONPATH": str(workspace),
        "AFM_HOME": str(home),
    }
    return {**stage_environment(environ), **others, **offline, **paths}


def pod_environment(*, stage: str, home: Path, workspace: Path) -> dict[str, str]:
    """Return the plain variables of a stage that runs in a pod: its image knows where interpreters are."""
    offline = {} if stage in HUB_STAGES else {"HF_HUB_OFFLINE": "1"}
    places = {"PYTHONPATH": str(workspace), "AFM_HOME": str(home), "HOME": "/tmp"}
    return {**_QUIET, **_STEADY, **offline, **places}


def variable(environment: str) -> str:
    """Return the variable that overrides where an environment's interpreter is."""
    return "AFM_PYTHON" if environment == "pipeline" else f"AFM_{environment.upper()}_PYTHON"


def interpreter(environ: Mapping[str, str], environment: str, home: Path) -> Path:
    """Return the interpreter of an environment.

    Raises:
        UserError: it is not installed.
    """
    path = _place(environ, environment, home)
    if not path.exists():
        raise UserError(
            f"environment {environment!r} is not installed: no {path}; run `make envs`, "
            f"or set {variable(environment)} to an interpreter that has it"
        )
    return path


def constraints_name(environ: Mapping[str, str], environment: str, home: Path) -> str:
    """Return which constraints file an environment was made from; its own name where it does not say."""
    note = _place(environ, environment, home).parent.parent / CONSTRAINTS_FILE
    return note.read_text().strip() if note.exists() else environment


def _place(environ: Mapping[str, str], environment: str, home: Path) -> Path:
    folder = ".venv" if environment == "pipeline" else f".venv-{environment}"
    return Path(environ.get(variable(environment)) or home / folder / "bin" / "python")
