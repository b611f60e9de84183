"""What an execution in the sandbox costs: CPU time against a one-shot run in the jail of the same tier.

CPU time is that of everything: supervisor, zygote, forks. A one-shot run is a new `python -I` for each program: under
bubblewrap (`bwrap` on the PATH, or BWRAP) for the tier of namespaces, else under the tier's own set-up; with the same
system-call filter. Executions per CPU-second leave out what starting the pool costs, which is a figure of its own.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from afm.params.reading import cut, parse_section, read_tree
from afm.params.tools import SandboxParams
from afm.sandbox.base import Tier
from afm.sandbox.image import _INTERPRETER
from afm.sandbox.jail.system import prctl
from afm.sandbox.paths import libraries, readable
from afm.sandbox.pool import Pool
from benchmarks._figures import Figure, at_least, print_figures
from tests.support.sandboxes import why_not

REPO = Path(__file__).parents[1]
LIMITS = parse_section(
    cut(read_tree(REPO / "params.yaml"), "sandbox", where="params.yaml"),
    SandboxParams,
    where="params.yaml",
)
PROGRAMS = {
    "trivial": "print(1)",
    "scientific": "import numpy, sympy\nprint(numpy.arange(3).sum(), sympy.Integer(2) ** 10)",
}
OUTPUT = {"trivial": "1\n", "scientific": "3 1024\n"}
NUM_RUNS = {"trivial": (200, 30), "scientific": (150, 6)}
"""Executions in the pool, and one-shot runs."""
MIN_RATIO = {"trivial": 2.2, "scientific": 20.0}
MIN_PER_CPU_SECOND = 40.0
PR_SET_CHILD_SUBREAPER = 36
TIERS: tuple[Tier, ...] = ("namespaces", "landlock")

ONE_SHOT = """
import os, sys, types
for name, folder in {packages!r}.items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from afm.sandbox.jail import landlock, limits, namespaces, runner, seccomp
from afm.sandbox.jail.libraries import LibraryFinder
from afm.sandbox.jail.system import prctl
sys.meta_path.insert(0, LibraryFinder({libraries!r}))
tier, settings = {tier!r}, {settings!r}
proc = None if tier == "bubblewrap" else os.open("/proc", os.O_PATH | os.O_DIRECTORY)
prctl(38, 1)
if tier == "namespaces":
    namespaces.enter({readable!r}, proc)
    namespaces.isolate(proc, settings["scratch_bytes"], settings["max_files"])
elif tier == "landlock":
    if os.geteuid() == 0:
        namespaces.drop_root()
    landlock.restrict(landlock.open_paths({readable!r}), os.getcwd())
limits.apply(settings, 2**28, own_processes=tier != "landlock")
seccomp.install(seccomp.build())
runner.run(sys.argv[1].encode())
"""
"""The jail around one program, in a new interpreter."""


def cpu(work: Callable[[], None]) -> float:
    """Return the CPU that `work` takes in a process of its own, with all that it starts [s]."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # what outlives its parent is counted too
        work()
        with suppress(ChildProcessError):
            while True:
                os.wait()
        os.write(writing, b"done")
        os._exit(0)
    os.close(writing)
    done = os.read(reading, 4)
    os.close(reading)
    _, _, usage = os.wait4(pid, 0)
    assert done == b"done"
    return usage.ru_utime + usage.ru_stime


def pooled(tier: Tier, name: str, count: int) -> Callable[[], None]:
    """Return work: a pool's start, `count` executions, and its end."""

    def work() -> None:
        pool = Pool(tier)
        pool.zygote("plain" if name == "trivial" else "scientific")
        for _ in range(count):
            outcome = pool.run(PROGRAMS[name], None, LIMITS)
            assert (outcome.kind, outcome.stdout) == ("ok", OUTPUT[name]), outcome
        pool.close()

    return work


def one_shot(tier: str, name: str, count: int) -> Callable[[], None]:
    """Return work: `count` new interpreters in the jail of a tier."""

    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o777)
            for _ in range(count):
                done = subprocess.run(
                    [*command(tier), PROGRAMS[name]],
                    cwd=folder,
                    env={"OPENBLAS_NUM_THREADS": "1"},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert (done.returncode, done.stdout) == (0, OUTPUT[name]), done

    return work


def command(tier: str) -> list[str]:
    """Return the one-shot run's command, but for the program."""
    packages = {"afm": str(REPO / "afm"), "afm.sandbox": str(REPO / "afm" / "sandbox")}
    settings = {
        "memory_bytes": LIMITS.memory_mib * 2**20,
        "cpu_s": LIMITS.cpu_s,
        "max_file_bytes": LIMITS.max_file_bytes,
        "max_processes": LIMITS.max_processes,
        "scratch_bytes": LIMITS.scratch_mib * 2**20,
        "max_files": LIMITS.max_files,
    }
    bwrap = os.environ.get("BWRAP") or shutil.which("bwrap")
    kind = "bubblewrap" if tier == "namespaces" and bwrap else tier
    source = ONE_SHOT.format(
        packages=packages,
        libraries=libraries(),
        tier=kind,
        settings=settings,
        readable=readable(),
    )
    python = [_INTERPRETER, "-I", "-B", "-c", source]
    return [*bubblewrap(bwrap), *python] if kind == "bubblewrap" and bwrap else python


def bubblewrap(program: str) -> list[str]:
    """Return bubblewrap's part of a command: the same view of the machine that the tier gives."""
    shown = [
        *readable(),
        str(Path(sys.base_prefix) / "bin"),
        str(REPO / "afm" / "sandbox" / "jail"),
    ]
    binds = [
        word
        for path in shown
        for word in ("--dev-bind" if path.startswith("/dev") else "--ro-bind", path, path)
    ]
    alone = ["--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--clearenv"]
    user = ["--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"]
    return [
        program,
        *alone,
        *user,
        "--tmpfs",
        "/tmp",
        *binds,
        "--remount-ro",
        "/",
        "--chdir",
        "/tmp",
    ]


def tier_figures(tier: Tier) -> Iterator[Figure]:
    """Measure one tier."""
    for name in PROGRAMS:
        count, shots = NUM_RUNS[name]
        start = min(cpu(pooled(tier, name, 1)) for _ in range(2))
        ours = (cpu(pooled(tier, name, count + 1)) - start) / count
        theirs = cpu(one_shot(tier, name, shots)) / shots
        bar = MIN_RATIO[name]
        yield Figure(
            name=f"sandbox_{tier}_{name}",
            value=ours * 1000,
            unit="CPU ms per execution",
            baseline=theirs * 1000,
            ratio=theirs / ours,
            target=f"ratio >= {bar}",
            passed=theirs / ours >= bar,
        )
        if name == "scientific":
            yield at_least(f"sandbox_{tier}_rate", 1 / ours, MIN_PER_CPU_SECOND, "per CPU-second")
            print(json.dumps({"name": f"sandbox_{tier}_start", "value": start, "unit": "CPU s"}))


def figures(tiers: Sequence[str]) -> Iterator[Figure]:
    """Measure those tiers that this machine has."""
    for tier in TIERS:
        if tier in tiers:
            reason = why_not(tier)
            if reason is not None:
                print(json.dumps({"name": f"sandbox_{tier}", "skipped": reason}), flush=True)
                continue
            yield from tier_figures(tier)


def main() -> None:
    """Measure the tiers named, or both; the one without namespaces as an unprivileged user."""
    tiers = sys.argv[1:] or list(TIERS)
    missed = 0
    if os.geteuid() == 0 and "landlock" in tiers:
        tiers.remove("landlock")
        user = [sys.executable, "-m", "tests.support.unprivileged", sys.executable]
        missed = subprocess.run(
            [*user, "-m", "benchmarks.sandbox", "landlock"], cwd=REPO, check=False
        ).returncode
    try:
        print_figures(figures(tiers))
    except SystemExit as end:
        sys.exit(end.code or missed)


if __name__ == "__main__":
    main()
