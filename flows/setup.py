"""`bin/setup`: create the environments with uv, each from its constraints file. Uses the standard library alone.

It honours the find-links and the index that pip is configured with, which uv does not look at, and on a machine without
an NVIDIA GPU it takes CPU builds of torch.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from afm.errors import UserError
from flows.environment import CONSTRAINTS_FILE, ENVIRONMENTS

ROOT = Path(__file__).resolve().parent.parent
STAMP = "afm-stamp"
EXTRAS = {"pipeline": "pipeline,dev"}
"""Extras of pyproject.toml by environment, where they are not the environment's name."""
GPU_VARIANTS = ("rl", "serve")


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """One environment to create."""

    name: str
    constraints: str
    """Name of its constraints file without suffix; for a GPU variant `rl-gpu`."""

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return ROOT / (".venv" if self.name == "pipeline" else f".venv-{self.name}")

    @property
    def requirement(self) -> str:
        """What to install: the project itself, with the environment's extras."""
        return f".[{EXTRAS.get(self.name, self.constraints)}]"

    @property
    def files(self) -> list[Path]:
        """The constraints file, and the overrides where it has some."""
        folder = ROOT / "constraints"
        files = [folder / f"{self.constraints}.txt", folder / f"overrides-{self.constraints}.txt"]
        return [path for path in files if path.exists()]

    def stamp(self) -> str:
        """Hash everything that decides what is installed; the path too, since the project is installed in place."""
        digest = hashlib.sha256(f"{ROOT} {self.requirement}".encode())
        for path in (*self.files, ROOT / "pyproject.toml"):
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def is_current(self) -> bool:
        """Tell whether the environment is as it should be."""
        stamp = self.folder / STAMP
        return stamp.exists() and stamp.read_text() == self.stamp()


def main() -> None:
    """Create what is asked for."""
    parser = argparse.ArgumentParser(prog="bin/setup", description=__doc__)
    parser.add_argument(
        "environments", nargs="*", metavar="ENVIRONMENT", help=", ".join(ENVIRONMENTS)
    )
    parser.add_argument(
        "--gpu", action="store_true", help=f"GPU variants of {', '.join(GPU_VARIANTS)}"
    )
    args = parser.parse_args()
    names = args.environments or list(ENVIRONMENTS)
    unknown = sorted(set(names) - set(ENVIRONMENTS))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(ENVIRONMENTS)}")
    wanted = [
        Environment(
            name=name, constraints=f"{name}-gpu" if args.gpu and name in GPU_VARIANTS else name
        )
        for name in names
    ]
    try:
        set_up([environment for environment in wanted if not environment.is_current()])
        precompile()
    except (UserError, subprocess.CalledProcessError) as error:
        sys.exit(f"bin/setup: {error}")


def set_up(wanted: Sequence[Environment]) -> None:
    """Create or update environments, one after the other."""
    if not wanted:
        return
    uv = find_uv()
    settings = uv_settings(pip_config())
    backend = (
        []
        if has_gpu() or offers_torch(settings.get("UV_FIND_LINKS", ""))
        else ["--torch-backend", "cpu"]
    )
    for environment in wanted:
        began = time.monotonic()
        print(f"setting up {environment.folder.name} ...", flush=True)
        install(environment, uv, backend, {**os.environ, **settings})
        print(f"{environment.folder.name} is ready ({time.monotonic() - began:.0f} s)", flush=True)


def precompile() -> None:
    """Let the environment of the pipeline compile the checkout's code, where there is one."""
    python = ROOT / ".venv" / "bin" / "python"
    if python.exists():
        subprocess.run([str(python), "-m", "flows.precompile"], check=True, cwd=ROOT)


def install(
    environment: Environment, uv: str, backend: Sequence[str], environ: Mapping[str, str]
) -> None:
    """Bring one environment to its constraints; a stamp written last says that it is whole."""
    (environment.folder / STAMP).unlink(missing_ok=True)
    python = environment.folder / "bin" / "python"
    if not python.exists():
        command = [
            uv,
            "venv",
            "-q",
            "--allow-existing",
            "-p",
            sys.executable,
            str(environment.folder),
        ]
        subprocess.run(command, check=True, env=environ)
    command = [uv, "pip", "install", "-q", "--compile-bytecode", "-p", str(python), *backend]
    for option, path in zip(("-c", "--overrides"), environment.files, strict=False):
        command += [option, str(path)]
    subprocess.run([*command, "-e", environment.requirement], check=True, env=environ, cwd=ROOT)
    (environment.folder / CONSTRAINTS_FILE).write_text(environment.constraints)
    (environment.folder / STAMP).write_text(environment.stamp())


def find_uv() -> str:
    """Return uv: the one on PATH, or one installed into a small environment of its own.

    Raises:
        UserError: Python cannot make environments.
    """
    for candidate in (shutil.which("uv"), str(ROOT / ".venv-uv" / "bin" / "uv")):
        if candidate and Path(candidate).exists() and _answers(candidate):
            return candidate
    folder = ROOT / ".venv-uv"
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(folder)], capture_output=True, text=True
    )
    if made.returncode != 0:
        raise UserError(
            f"{sys.executable} -m venv failed: {made.stdout.strip() or made.stderr.strip()}; install the package "
            "that brings venv (on Debian and Ubuntu python3-venv), or install uv yourself"
        )
    subprocess.run([str(folder / "bin" / "pip"), "install", "-q", "uv"], check=True)
    return str(folder / "bin" / "uv")


def _answers(uv: str) -> bool:
    return subprocess.run([uv, "--version"], capture_output=True).returncode == 0


def pip_config() -> dict[str, str]:
    """Return pip's configuration by option name, from files and environment; empty where there is no pip."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True
    )
    config: dict[str, str] = {}
    for line in done.stdout.splitlines():
        name, separator, value = line.partition("=")
        if separator:
            config[name.rpartition(".")[2]] = value.strip().strip("'\"")
    return config


def uv_settings(config: Mapping[str, str]) -> dict[str, str]:
    """Translate what pip is configured with into uv's variables; those that are set already stay."""
    # pip prints several values with an escaped newline between them.
    links = config.get("find-links", "").replace("\\n", " ").split()
    settings = {"UV_FIND_LINKS": ",".join(links), "UV_DEFAULT_INDEX": config.get("index-url", "")}
    return {
        name: os.environ.get(name) or value
        for name, value in settings.items()
        if os.environ.get(name) or value
    }


def has_gpu() -> bool:
    """Tell whether this machine has an NVIDIA driver."""
    return shutil.which("nvidia-smi") is not None


def offers_torch(find_links: str) -> bool:
    """Tell whether a find-links place offers its own build of torch; whoever set it up chose which."""
    return any("torch-" in _listing(place) for place in find_links.replace(",", " ").split())


def _listing(place: str) -> str:
    path = Path(place.removeprefix("file://"))
    if path.is_dir():
        return " ".join(entry.name for entry in path.iterdir() if entry.name.startswith("torch-"))
    if not place.startswith(("http://", "https://")):
        return ""
    try:
        with urllib.request.urlopen(place, timeout=10) as answer:
            return str(answer.read().decode(errors="replace"))
    except OSError as error:
        print(f"find-links {place} does not answer ({error}); going on without it", file=sys.stderr)
        return ""


if __name__ == "__main__":
    main()
