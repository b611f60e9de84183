"""The sandbox against programs that misbehave, once in each tier: each ends in its outcome, and nothing is left."""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from afm.sandbox.base import Outcome
from tests.support.sandboxes import LIMITS, NUM_SLOTS, World, open_world, why_not

pytestmark = pytest.mark.timeout(300)

TIERS = ("namespaces", "landlock")


@pytest.fixture(scope="module", params=TIERS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    reason = why_not(request.param)
    if reason is not None:
        pytest.skip(f"tier {request.param}: {reason}")
    with open_world(request.param) as opened:
        assert opened.tier == request.param
        yield opened


@pytest.fixture(autouse=True)
def nothing_is_left(world: World) -> Iterator[None]:
    before = world.processes()
    yield
    assert world.run("print(1)") == Outcome(kind="ok", stdout="1\n", stderr="", exit_code=0)
    assert world.processes() == before
    assert world.left_files() == []


# What programs may rely on


def test_output_exit_code_and_stdin(world: World) -> None:
    done = world.run(
        "import sys\nprint(input()[::-1], '漢字😀')\nprint('e', file=sys.stderr)", "abc\n"
    )
    assert done == Outcome(kind="ok", stdout="cba 漢字😀\n", stderr="e\n", exit_code=0)
    assert world.run("import sys; sys.exit(3)").exit_code == 3
    assert world.run("raise SystemExit").kind == "ok"
    said = world.run("import sys; sys.exit('no')")
    assert (said.kind, said.exit_code, said.stderr) == ("error", 1, "no\n")
    assert world.run("exit(4)").exit_code == 4
    assert world.run("import sys; print(repr(sys.stdin.read()))").stdout == "''\n"


def test_a_large_input_arrives_whole(world: World) -> None:
    text = "x" * 3_000_000
    assert world.run("import sys; print(len(sys.stdin.read()))", text).stdout == "3000000\n"
    long = f"print({len(text)!r}) # {text}"
    assert world.run(long).stdout == "3000000\n"


def test_errors_are_those_of_python(world: World) -> None:
    failed = world.run("def f():\n    1/0\nf()")
    assert failed.kind == "error"
    assert failed.stderr.startswith(
        'Traceback (most recent call last):\n  File "main.py", line 3, in <module>\n    f()\n'
        '  File "main.py", line 2, in f\n'
    )
    assert failed.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert world.run("x = (").stderr.startswith('  File "main.py", line 1\n')
    assert (
        world.run("import sys; sys.excepthook = lambda *_: print('mine')\n1/0").stdout == "mine\n"
    )


def test_what_the_end_of_a_program_does(world: World) -> None:
    ending = "import atexit\natexit.register(print, 'bye')\nprint('hi', end=' ')"
    assert world.run(ending).stdout == "hi bye\n"
    late = (
        "import threading, time\n"
        "def work():\n    time.sleep(0.2)\n    print('late')\n"
        "threading.Thread(target=work).start()"
    )
    assert world.run(late).stdout == "late\n"


def test_a_program_is_main_in_an_empty_world(world: World) -> None:
    program = (
        "import os, sys\nassert __name__ == '__main__' and sys.modules['__main__'].os is os\n"
        "print(dict(os.environ), os.listdir('.'), os.getcwd() and sys.argv, os.getuid())"
    )
    seen = world.run(program)
    assert seen.stdout == "{} ['main.py'] ['main.py'] 65534\n", seen
    assert world.run("import os; print(os.getcwd())").stdout.startswith("/tmp")


def test_files_of_its_own(world: World) -> None:
    program = (
        "import pathlib\npathlib.Path('a').mkdir()\npathlib.Path('a/b').write_text('x')\n"
        "pathlib.Path('a/b').rename('c')\nprint(open('c').read())"
    )
    assert world.run(program).stdout == "x\n"


def test_sets_print_alike_and_random_numbers_do_not(world: World) -> None:
    words = "print({f'word{n}' for n in range(50)})"
    assert world.run(words).stdout == world.run(words).stdout
    for program in (
        "import random; print(random.random())",
        "import numpy; print(numpy.random.rand())",
    ):
        assert world.run(program).stdout != world.run(program).stdout


def test_libraries(world: World) -> None:
    program = (
        "import numpy, sympy\nprint(numpy.arange(4).sum(), sympy.factorint(12), sympy.pi.n(5))"
    )
    assert world.run(program).stdout == "6 {2: 2, 3: 1} 3.1416\n"
    hidden = "name = 'num' + 'py'\nprint(__import__(name).arange(3).sum())"
    assert world.run(hidden).stdout == "3\n"
    assert "No module named 'pydantic'" in world.run("import pydantic").stderr
    assert "No module named 'afm'" in world.run("import afm").stderr


def test_threads_and_event_loops_work(world: World) -> None:
    program = "import threading\nt = threading.Thread(target=print, args=(1,))\nt.start()\nt.join()"
    assert world.run(program).stdout == "1\n"
    loop = "import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    print(2)\nasyncio.run(f())"
    assert world.run(loop).stdout == "2\n"


# Limits


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "import os, time; os.close(1); os.close(2); time.sleep(60)",
        "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        "import threading\nthreading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()",
    ],
)
def test_endless_programs_time_out(world: World, program: str) -> None:
    start = time.monotonic()
    assert world.run(program, wall_s=0.3).kind == "timeout"
    assert time.monotonic() - start < 5


def test_cpu_time_is_limited(world: World) -> None:
    assert world.run("while True: pass", cpu_s=1).kind == "timeout"


def test_memory_is_limited(world: World) -> None:
    assert world.run("x = bytearray(10 * 2**30)").kind == "oom"
    assert world.run("x = []\nwhile True: x.append(bytearray(2**25))").kind == "oom"
    assert world.run("import numpy; numpy.ones(2**30)").kind == "oom"
    assert world.run("x = bytearray(400 * 2**20); print(len(x))").kind == "ok"


def test_output_is_limited(world: World) -> None:
    ended = world.run("while True: print('x' * 1000)")
    assert ended.kind == "output_limit"
    assert len(ended.stdout) + len(ended.stderr) == LIMITS.max_output_bytes
    assert world.run("import sys\nwhile True: sys.stderr.write('x' * 999)").kind == "output_limit"
    exact = world.run(f"import sys; sys.stdout.write('x' * {LIMITS.max_output_bytes})")
    assert exact.kind == "ok"


def test_one_file_is_limited(world: World) -> None:
    ended = world.run("open('big', 'w').write('x' * 2_000_000)")
    assert (ended.kind, "File too large" in ended.stderr) == ("error", True)
    sparse = world.run("open('big', 'w').truncate(2**40)")
    assert sparse.kind == "error"


FULL = {
    "disk": "n = 0\nwhile True:\n    n += 1\n    open(str(n), 'wb').write(bytes(2**20))",
    "files": "n = 0\nwhile True:\n    n += 1\n    open(str(n), 'w').close()",
    "folders": "import os\nwhile True:\n    os.mkdir('d')\n    os.chdir('d')",
    "links": "import os\nn = 0\nwhile True:\n    n += 1\n    os.symlink('/etc/passwd', str(n))",
    "hidden": (
        "import os\nos.mkdir('d', 0o300)\nos.chdir('d')\nn = 0\n"
        "while True:\n    n += 1\n    open(str(n), 'wb').write(bytes(2**20))"
    ),
}


@pytest.mark.parametrize("name", sorted(FULL))
def test_all_files_together_are_limited(world: World, name: str) -> None:
    ended = world.run(FULL[name])
    expected = {"namespaces": ("error", "No space left"), "landlock": ("output_limit", "ended by")}
    kind, said = expected[world.tier]
    assert (ended.kind, said in ended.stderr) == (kind, True), ended


def test_threads_are_limited(world: World) -> None:
    ended = world.run(
        "import threading, time\nthreading.stack_size(65536)\nfor n in range(500):\n"
        "    threading.Thread(target=time.sleep, args=(5,), daemon=True).start()\ntime.sleep(1)"
    )
    expected = {
        "namespaces": ("error", "can't start new thread"),
        "landlock": ("output_limit", "threads"),
    }
    kind, said = expected[world.tier]
    assert (ended.kind, said in ended.stderr) == (kind, True), ended


# Attacks

DENIED = {
    "fork bomb": "import os\nwhile True: os.fork()",
    "detached grandchild": "import os\nif os.fork() == 0:\n    os.setsid()\n    os.fork()",
    "subprocess": "import subprocess; subprocess.run(['ls'])",
    "exec": "import os; os.execv('/usr/bin/env', ['env'])",
    "multiprocessing": "import multiprocessing as m; m.Process(target=print).start()",
    "tcp": "import socket; socket.create_connection(('127.0.0.1', 80))",
    "udp": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "raw": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "unix": "import socket; socket.socket(socket.AF_UNIX)",
    "pair of datagrams": "import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "kill": "import os; os.kill(os.getppid(), 9)",
    "kill all": "import os; os.kill(-1, 9)",
    "kill group": "import os; os.killpg(0, 9)",
    "limits": "import resource as r; r.prlimit(0, r.RLIMIT_NOFILE, (10, 10))",
    "leave group": "import os; os.setpgid(0, 1)",
    "chmod": "import os; os.chmod('main.py', 0o777)",
    "owner": "import os; os.setuid(0)",
    "memory file": "import os; os.memfd_create('x')",
    "device": "import os; os.mknod('disk', 0o60600, os.makedev(8, 0))",
}


@pytest.mark.parametrize("name", sorted(DENIED))
def test_denied(world: World, name: str) -> None:
    ended = world.run(DENIED[name])
    assert ended.kind == "error"
    assert "Operation not permitted" in ended.stderr, ended.stderr


CALLS = {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "unshare": 272, "setns": 308, "mount": 165,
    "pivot_root": 155, "chroot": 161, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425,
    "keyctl": 250, "add_key": 248, "init_module": 175, "kexec_load": 246, "open_by_handle_at": 304, "shmget": 29,
    "semget": 64, "msgget": 68, "mq_open": 240, "pidfd_open": 434, "pidfd_getfd": 438, "rt_sigqueueinfo": 129,
    "tkill": 200, "utimensat": 280, "setxattr": 188, "quotactl": 179, "fsopen": 430, "mount_setattr": 442,
}  # fmt: skip


def test_calls_into_the_kernel_are_refused(world: World) -> None:
    program = (
        "import ctypes, platform\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"for name, number in {CALLS}.items():\n"
        "    ctypes.set_errno(0)\n"
        "    if (libc.syscall(number, 0, 0, 0, 0, 0), ctypes.get_errno()) != (-1, 1):\n"
        "        print(name)\n"
        "print(platform.machine())"
    )
    ended = world.run(program)
    if ended.stdout.endswith("aarch64\n"):
        pytest.skip("the numbers are those of x86-64")
    assert ended.stdout == "x86_64\n", ended


READING = (
    "/etc/passwd", "/etc/shadow", "/root", "/home", "/proc/1/environ", "/proc/self/environ", "/proc/self/maps", "/sys",
    "/var/log", "/dev/kmsg", "/dev/tty", "/run", "/",
)  # fmt: skip


def test_other_files_are_out_of_reach(world: World, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    secret.chmod(0o666)
    for path in (*READING, str(secret), __file__):
        read = f"import os\nprint(os.listdir({path!r}) if os.path.isdir({path!r}) else open({path!r}).read())"
        ended = world.run(read)
        assert (ended.kind, ended.stdout) == ("error", ""), path
    world.run(f"open({str(secret)!r}, 'w').write('changed')")
    world.run(f"import os; os.truncate({str(secret)!r}, 0)")
    world.run(f"import os; os.remove({str(secret)!r})")
    assert secret.read_text() == "s3cret"


def test_links_lead_nowhere(world: World, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    linked = world.run(
        f"import os\nos.symlink({str(secret)!r}, 'here')\nprint(open('here').read())"
    )
    assert (linked.kind, linked.stdout) == ("error", "")
    # What removes the folder afterwards follows no link either.
    world.run(f"import os\nos.symlink({str(tmp_path)!r}, 'folder')")
    hard = world.run(f"import os\nos.link({str(secret)!r}, 'hard')\nprint(open('hard').read())")
    assert (hard.kind, hard.stdout) == ("error", "")
    assert secret.read_text() == "s3cret"


@pytest.mark.parametrize("place", ["parent", "zygote"])
def test_other_processes_are_out_of_reach(world: World, place: str) -> None:
    pid = world.root.pid if place == "parent" else min(world.processes())
    program = (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        f"for path in ('environ', 'mem', 'cmdline', 'status', 'fd'):\n"
        f"    try:\n        os.open(f'/proc/{pid}/{{path}}', 0)\n        print(path)\n"
        "    except OSError: pass\n"
        f"try:\n    os.kill({pid}, 0)\n    print('kill')\nexcept OSError: pass\n"
        f"print(libc.ptrace(16, {pid}, 0, 0), end='')"
    )
    assert world.run(program).stdout == "-1"


def test_nothing_open_but_the_three_streams(world: World) -> None:
    program = (
        "import os\nfor n in range(3, 1024):\n    try:\n        os.fstat(n)\n        print(n)\n"
        "    except OSError: pass"
    )
    assert world.run(program).stdout == ""


FORGED = {
    "status on every descriptor": (
        'import os\nfor n in range(256):\n    try:\n        os.write(n, b\'{"status": 0, "cpu_s": 0}\')\n'
        "    except OSError: pass\nos._exit(7)",
        7,
    ),
    "a set-up that failed": (
        "import os\nos.write(2, b'OSError: [Errno 1] unshare: Operation not permitted')\nos._exit(125)",
        125,
    ),
    "a zygote that ended": ("import os\nos.closerange(0, 256)\nos._exit(9)", 9),
}


@pytest.mark.parametrize("name", sorted(FORGED))
def test_an_end_cannot_be_forged(world: World, name: str) -> None:
    program, exit_code = FORGED[name]
    ended = world.run(program)
    assert (ended.kind, ended.exit_code) == ("error", exit_code)


CRASHES = {
    "segfault": "import ctypes; ctypes.string_at(0)",
    "abort": "import os; os.abort()",
    "stack": "import ctypes\nf = ctypes.CFUNCTYPE(None)(lambda: f())\nimport sys\nsys.setrecursionlimit(10**9)\nf()",
}


@pytest.mark.parametrize("name", sorted(CRASHES))
def test_crashes_are_errors(world: World, name: str) -> None:
    ended = world.run(CRASHES[name])
    assert ended.kind == "error"
    assert ended.exit_code is not None and ended.exit_code < 0


def test_nothing_goes_over_to_the_next_execution(world: World) -> None:
    leave = (
        "import builtins, json, os, random, sys\nopen('left', 'w').write('x')\n"
        "builtins.print = None\nbuiltins.left = json.loads = json.left = 1\nos.environ['LEFT'] = '1'\n"
        "sys.path.insert(0, 'left')\nsys.modules['left'] = json\nsys.setrecursionlimit(77)\nrandom.seed(1)"
    )
    look = (
        "import builtins, json, os, sys\nprint(hasattr(builtins, 'left'), hasattr(json, 'left'), json.loads('2'),"
        " 'LEFT' in os.environ, 'left' in sys.modules, sys.getrecursionlimit(), 'left' in sys.path,"
        " os.path.exists('left'))"
    )
    before = world.run(look)
    assert world.run(leave).kind == "ok"
    assert world.run(look) == before
    assert before.stdout == "False False 2 False False 1000 False False\n"


# Many


def test_128_clients_at_once(world: World) -> None:
    with ThreadPoolExecutor(128) as clients:
        programs = [f"print({n} ** 2)" for n in range(128)]
        outcomes = list(clients.map(world.run, programs))
    assert [one.stdout for one in outcomes] == [f"{n**2}\n" for n in range(128)]


def many_timeouts(world: World, count: int) -> None:
    zygotes = world.processes()
    with ThreadPoolExecutor(NUM_SLOTS) as clients:
        sleeping = ["import time; time.sleep(60)"] * count
        kinds = Counter(
            one.kind
            for one in clients.map(lambda program: world.run(program, wall_s=0.02), sleeping)
        )
    assert kinds == {"timeout": count}
    assert world.processes() == zygotes
    states = [psutil.Process(pid).status() for pid in zygotes]
    assert psutil.STATUS_ZOMBIE not in states


def test_1000_timeouts_leave_nothing(world: World) -> None:
    many_timeouts(world, 1000)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_10000_timeouts_leave_nothing(world: World) -> None:
    many_timeouts(world, 10_000)
