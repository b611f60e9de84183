"""bin/setup: what it takes over from pip, and when it takes CPU builds of torch."""

import subprocess
from pathlib import Path

import pytest

from flows import setup
from tests.support.toy import REPO


def test_find_links_and_index_of_pip_reach_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UV_FIND_LINKS", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)
    config = {"find-links": "\\n/a/wheels\\nhttps://h/links", "index-url": "https://h/simple"}
    assert setup.uv_settings(config) == {
        "UV_FIND_LINKS": "/a/wheels,https://h/links",
        "UV_DEFAULT_INDEX": "https://h/simple",
    }
    assert setup.uv_settings({}) == {}
    monkeypatch.setenv("UV_FIND_LINKS", "/mine")
    assert setup.uv_settings(config)["UV_FIND_LINKS"] == "/mine"


def test_pips_own_listing_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = "global.find-links='/a'\n:env:.cert='/c'\nuser.index-url='https://h?a=b'\n"
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=listing)
    )
    assert setup.pip_config() == {"find-links": "/a", "cert": "/c", "index-url": "https://h?a=b"}


def test_a_folder_with_a_build_of_torch_is_recognised(tmp_path: Path) -> None:
    assert not setup.offers_torch("")
    assert not setup.offers_torch(str(tmp_path))
    (tmp_path / "torchvision-1.whl").touch()
    assert not setup.offers_torch(str(tmp_path))
    (tmp_path / "torch-2.13.0+cpu-cp311.whl").touch()
    assert setup.offers_torch(f"/nowhere,file://{tmp_path}")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> setup.Environment:
    (tmp_path / "constraints").mkdir()
    (tmp_path / "constraints" / "serve.txt").write_text("a==1\n")
    (tmp_path / "constraints" / "overrides-serve.txt").write_text("b==1\n")
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    return setup.Environment(name="serve", constraints="serve")


def test_it_installs_once_and_again_when_a_pin_changes(
    environment: setup.Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> None:
        commands.append([str(word) for word in command])
        environment.folder.mkdir(exist_ok=True)

    monkeypatch.setattr(subprocess, "run", run)
    assert not environment.is_current()
    setup.install(environment, "uv", ["--torch-backend", "cpu"], {})
    install = " ".join(commands[-1])
    assert "--torch-backend cpu" in install
    assert f"-c {environment.files[0]} --overrides {environment.files[1]}" in install
    assert install.endswith("-e .[serve]")
    assert environment.is_current()
    environment.files[0].write_text("a==2\n")
    assert not environment.is_current()


def test_an_install_that_fails_is_not_current(
    environment: setup.Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.folder.mkdir()
    (environment.folder / setup.STAMP).write_text(environment.stamp())

    def fail(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(subprocess.CalledProcessError):
        setup.install(environment, "uv", [], {})
    assert not environment.is_current()


def test_an_old_python_is_refused_with_a_remedy(tmp_path: Path) -> None:
    for name in ("python3", "python3.11", "python3.12", "python"):
        fake = tmp_path / name
        fake.write_text(
            '#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.8.1" && exit 0\nexit 1\n'
        )
        fake.chmod(0o755)
    done = subprocess.run(
        [REPO / "bin" / "setup"],
        env={"PATH": f"{tmp_path}:/bin_without_python", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "needs Python 3.11 or 3.12; found: Python 3.8.1" in done.stderr
    assert "AFM_BASE_PYTHON" in done.stderr


def test_an_unknown_environment_lists_the_known() -> None:
    done = subprocess.run([REPO / "bin" / "setup", "serv"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "unknown: serv; there are pipeline, serve, rl, math" in done.stderr
