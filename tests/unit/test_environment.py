"""What every process that the project starts finds in its environment."""

from pathlib import Path

import pytest

from afm.errors import UserError
from flows.environment import (
    constraints_name,
    interpreter,
    job_environment,
    quiet_environment,
    stage_environment,
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for folder in (".venv", ".venv-serve"):
        python = tmp_path / folder / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()
    return tmp_path


def test_telemetry_is_off_whatever_the_caller_has() -> None:
    quiet = quiet_environment({"DO_NOT_TRACK": "1", "KEEP": "x"})
    assert quiet["DO_NOT_TRACK"] == "true"
    assert quiet["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert quiet["KEEP"] == "x"


@pytest.mark.parametrize("leaking", ["MLFLOW_RUN_ID", "DVC_STAGE", "VIRTUAL_ENV"])
def test_a_callers_own_run_does_not_leak(leaking: str) -> None:
    assert leaking not in stage_environment({leaking: "x"})


def test_a_job_finds_its_own_programs_first_and_the_other_interpreters(home: Path) -> None:
    given = {"PATH": "/bin"}
    environment = job_environment(
        given, stage="sft", environment="serve", home=home, workspace=Path("/w")
    )
    assert environment["PATH"] == f"{home}/.venv-serve/bin:/bin"
    assert environment["AFM_SERVE_PYTHON"] == f"{home}/.venv-serve/bin/python"
    assert environment["AFM_PYTHON"] == f"{home}/.venv/bin/python"
    assert "AFM_RL_PYTHON" not in environment, "it is not installed"
    assert environment["PYTHONPATH"] == "/w"


@pytest.mark.parametrize(("stage", "offline"), [("prepare", None), ("base", None), ("sft", "1")])
def test_only_prepare_and_base_may_reach_a_hub(home: Path, stage: str, offline: str | None) -> None:
    environment = job_environment(
        {}, stage=stage, environment="pipeline", home=home, workspace=home
    )
    assert environment.get("HF_HUB_OFFLINE") == offline


def test_an_environment_that_is_not_installed_is_named_with_a_remedy(home: Path) -> None:
    with pytest.raises(UserError, match=r"'rl' is not installed.*make envs.*AFM_RL_PYTHON"):
        interpreter({}, "rl", home)
    assert interpreter({"AFM_RL_PYTHON": "/bin/sh"}, "rl", home) == Path("/bin/sh")


def test_a_gpu_variant_is_another_environment(home: Path) -> None:
    assert constraints_name({}, "serve", home) == "serve"
    (home / ".venv-serve" / "afm-constraints").write_text("serve-gpu")
    assert constraints_name({}, "serve", home) == "serve-gpu"
