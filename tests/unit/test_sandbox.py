"""The sandbox against programs that misbehave."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from afm.errors import SandboxError
from afm.params.tools import SandboxParams
from afm.sandbox import open_sandbox
from afm.sandbox import process as process_module
from afm.sandbox.base import Outcome
from afm.sandbox.process import ProcessSandbox, require_isolation

LIMITS = SandboxParams(
    wall_s=20.0,
    cpu_s=10,
    memory_mib=512,
    max_output_bytes=20_000,
    max_file_bytes=100_000,
    max_processes=16,
)


def run(program: str, stdin: str | None = None, **changes: object) -> Outcome:
    return open_sandbox().run(program, stdin, LIMITS.model_copy(update=changes))


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    open_sandbox()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    assert list(tmp_path.iterdir()) == []
    assert {child.pid for child in psutil.Process().children(recursive=True)} == before


def test_output_exit_code_and_stdin() -> None:
    done = run("import sys\nprint(input()[::-1], '漢字😀')\nprint('e', file=sys.stderr)", "abc\n")
    assert done == Outcome(kind="ok", stdout="cba 漢字😀\n", stderr="e\n", exit_code=0)
    assert run("import sys; sys.exit(3)").exit_code == 3


def test_no_stdin_is_an_empty_one() -> None:
    assert run("import sys; print(repr(sys.stdin.read()))").stdout == "''\n"


def test_errors_name_no_folder() -> None:
    failed = run("1/0")
    assert failed.kind == "error"
    assert failed.stderr.startswith('Traceback (most recent call last):\n  File "main.py", line 1')
    assert failed.stderr == run("1/0").stderr


def test_sets_print_alike_in_every_run() -> None:
    program = "print({f'word{n}' for n in range(50)})"
    assert run(program).stdout == run(program).stdout


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "import os, time; os.close(1); os.close(2); time.sleep(60)",
    ],
)
def test_endless_programs_time_out(program: str) -> None:
    start = time.monotonic()
    assert run(program, wall_s=0.7).kind == "timeout"
    assert time.monotonic() - start < 5


def test_cpu_time_is_limited() -> None:
    assert run("while True: pass", cpu_s=1).kind == "timeout"


def test_memory_is_limited() -> None:
    assert run("x = bytearray(10 * 2**30)").kind == "oom"
    assert run("x = []\nwhile True: x.append(bytearray(2**25))").kind == "oom"


def test_output_is_limited() -> None:
    ended = run("while True: print('x' * 1000)")
    assert ended.kind == "output_limit"
    assert len(ended.stdout) + len(ended.stderr) == LIMITS.max_output_bytes
    exact = run(f"import sys; sys.stdout.write('x' * {LIMITS.max_output_bytes})")
    assert exact.kind == "ok"


def test_files_are_limited() -> None:
    ended = run("open('big', 'w').write('x' * 200_000)")
    assert (ended.kind, "File too large" in ended.stderr) == ("error", True)


DENIED = {
    "fork bomb": "import os\nwhile True: os.fork()",
    "subprocess": "import subprocess; subprocess.run(['ls'])",
    "multiprocessing": "import multiprocessing as m; m.Process(target=print).start()",
    "tcp": "import socket; socket.create_connection(('127.0.0.1', 80))",
    "udp": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "unix": "import socket; socket.socket(socket.AF_UNIX)",
    "kill": "import os; os.kill(os.getppid(), 9)",
    "kill all": "import os; os.kill(-1, 9)",
    "limits": "import resource as r; r.prlimit(0, r.RLIMIT_NOFILE, (10, 10))",
    "leave group": "import os; os.setpgid(0, 1)",
}


@pytest.mark.parametrize("name", sorted(DENIED))
def test_denied(name: str) -> None:
    ended = run(DENIED[name])
    assert ended.kind == "error"
    assert "Operation not permitted" in ended.stderr, ended.stderr


def test_the_environment_is_empty() -> None:
    seen = run("import os; print(sorted(os.environ), os.listdir('.'))").stdout
    assert seen == "['LC_CTYPE', 'PYTHONHASHSEED'] ['main.py']\n"


def test_threads_work() -> None:
    program = "import threading\nt = threading.Thread(target=print, args=(1,))\nt.start()\nt.join()"
    assert run(program).stdout == "1\n"


def test_other_files_are_out_of_reach(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not has_landlock():
        pytest.skip("this kernel has no Landlock")
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_text("s3cret")
    read = run(f"print(open({str(secret)!r}).read())")
    assert (read.kind, "Permission denied" in read.stderr) == ("error", True)
    written = run(f"open({str(secret)!r}, 'w')")
    assert written.kind == "error"
    assert secret.read_text() == "s3cret"


def has_landlock() -> bool:
    import ctypes

    return ctypes.CDLL(None).syscall(444, None, 0, 1) > 0


def test_what_cannot_be_armed_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = process_module._CHILD.read_text()
    broken = tmp_path.parent / "broken_child.py"
    broken.write_text(source.replace("    _seccomp()\n", "    raise OSError('no seccomp')\n"))
    monkeypatch.setattr(process_module, "_CHILD", broken)
    outcome = ProcessSandbox().run("print('ran')", None, LIMITS)
    assert outcome.kind == "sandbox_failure"
    assert outcome.stdout == ""
    assert "no seccomp" in outcome.stderr
    with pytest.raises(SandboxError, match="code is not run"):
        require_isolation(ProcessSandbox())


def test_a_leak_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = process_module._CHILD.read_text()
    leaky = tmp_path.parent / "leaky_child.py"
    leaky.write_text(source.replace("    _seccomp()\n", ""))
    monkeypatch.setattr(process_module, "_CHILD", leaky)
    with pytest.raises(SandboxError, match="started a process"):
        require_isolation(ProcessSandbox())


def test_without_namespaces_there_is_no_network_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = process_module._CHILD.read_text()
    line = "    LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC)\n"
    assert line in source
    bare = tmp_path.parent / "bare_child.py"
    bare.write_text(source.replace(line, ""))
    monkeypatch.setattr(process_module, "_CHILD", bare)
    require_isolation(ProcessSandbox())
    ended = ProcessSandbox().run(DENIED["tcp"], None, LIMITS)
    assert "Operation not permitted" in ended.stderr
