"""One process per pod that outlives the API: runs its containers in turn, keeps their log and their end.

Runs as a script without any package: `python -I -S supervisor.py FOLDER`. FOLDER holds `pod.json`; the supervisor
writes `<container>.log` (the kubelet's format: time, stream, F, text) and `state.json`. SIGTERM, with `stop.json`
beside it, ends the pod. It is the subreaper of everything that the pod starts: nothing gets away by a double fork.
"""

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
PAGE = os.sysconf("SC_PAGE_SIZE")
TICK_S = 0.05
MEMORY_CHECK_S = 0.5
LINE_BYTES = 16384
DRAIN_S = 2.0


class Supervisor:
    """The pod's main loop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pod = json.loads((folder / "pod.json").read_text())
        self.state: dict[str, Any] = {"pid": os.getpid(), "started": start_time(), "containers": {}}
        self.stopping_at: float | None = None
        self.child: subprocess.Popen[bytes] | None = None
        self.oom = False

    def save(self) -> None:
        part = self.folder / "state.part"
        part.write_text(json.dumps(self.state))
        part.rename(self.folder / "state.json")

    def stop(self, _signum: int, _frame: FrameType | None) -> None:
        """Pass the request to end on, and remember until when it may take."""
        grace_s = float(json.loads((self.folder / "stop.json").read_text())["grace_s"])
        until = time.time() + grace_s
        self.stopping_at = until if self.stopping_at is None else min(until, self.stopping_at)
        if self.child is not None and self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)

    def run(self) -> None:
        self.save()
        for container in self.pod["containers"]:
            if self.stopping_at is not None:
                break
            code = self.run_container(container)
            if code != 0:
                break
        end_tree()
        self.state["ended"] = time.time()
        self.save()

    def run_container(self, container: dict[str, Any]) -> int:
        row: dict[str, Any] = {"started": time.time(), "reason": "Completed"}
        self.state["containers"][container["name"]] = row
        log = Log(self.folder / f"{container['name']}.log")
        try:
            self.child = start(container)
        except OSError as error:
            row |= {
                "code": 128,
                "reason": "StartError",
                "message": str(error),
                "ended": time.time(),
            }
            self.save()
            return 128
        if self.stopping_at is not None:
            self.child.send_signal(signal.SIGTERM)
        row["pid"] = self.child.pid
        self.save()
        log.attach(self.child)
        code = self.wait(container, log)
        row |= {"code": code, "reason": self.reason(code), "ended": time.time()}
        self.save()
        return code

    def reason(self, code: int) -> str:
        if self.oom:
            return "OOMKilled"
        return "Completed" if code == 0 else "Error"

    def wait(self, container: dict[str, Any], log: "Log") -> int:
        assert self.child is not None
        limit = container.get("memory_limit")
        check_at = 0.0
        while self.child.poll() is None:
            log.pump(TICK_S)
            now = time.time()
            if self.stopping_at is not None and now >= self.stopping_at:
                self.child.kill()
            if limit is not None and now >= check_at:
                check_at = now + MEMORY_CHECK_S
                if memory() > limit:
                    self.oom = True
                    end_tree()
        end_tree()
        log.drain()
        status = self.child.returncode
        return status if status >= 0 else 128 - status


class Log:
    """Both streams of a container, line by line, each with its time."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("ab", buffering=0)
        self.selector = selectors.DefaultSelector()
        self.rest: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def attach(self, child: "subprocess.Popen[bytes]") -> None:
        for name, pipe in (("stdout", child.stdout), ("stderr", child.stderr)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self.selector.register(pipe, selectors.EVENT_READ, name)

    def pump(self, timeout_s: float) -> None:
        if not self.selector.get_map():
            time.sleep(timeout_s)
            return
        for key, _ in self.selector.select(timeout_s):
            try:
                data = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            if not data:
                self.selector.unregister(key.fileobj)
            self.take(key.data, data)

    def take(self, stream: str, data: bytes) -> None:
        *lines, self.rest[stream] = (self.rest[stream] + data).split(b"\n")
        for line in lines:
            self.write(stream, "F", line)
        if len(self.rest[stream]) >= LINE_BYTES or (not data and self.rest[stream]):
            self.write(stream, "P", self.rest[stream])
            self.rest[stream] = b""

    def write(self, stream: str, tag: str, text: bytes) -> None:
        moment = time.time_ns()
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment // 10**9))
        head = f"{seconds}.{moment % 10**9:09d}Z {stream} {tag} "
        self.file.write(head.encode() + text + b"\n")

    def drain(self) -> None:
        until = time.time() + DRAIN_S
        while self.selector.get_map() and time.time() < until:
            self.pump(TICK_S)
        for stream in self.rest:
            self.take(stream, b"")


def start(container: dict[str, Any]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        container["argv"],
        env=container["env"],
        cwd=container["cwd"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        restore_signals=True,
    )


def descendants() -> set[int]:
    """The live processes below this one, whoever their parent was."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = stat_fields(int(entry.name))
            if fields and fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found: set[int] = set()
    layer = {os.getpid()}
    while layer:
        layer = {pid for pid, parent in parents.items() if parent in layer}
        found |= layer
    return found


def stat_fields(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def start_time() -> float:
    """When this process started, as psutil computes it, so that both can be compared."""
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if "btime" in line)
    return float(boot.split()[1]) + int(stat_fields(os.getpid())[19]) / os.sysconf("SC_CLK_TCK")


def end_tree() -> None:
    """Kill everything below, until nothing is."""
    while pids := descendants():
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)


def memory() -> int:
    """Resident memory of the tree [bytes]; what processes share counts once, as in a cgroup."""
    pids = descendants()
    return sum(proportional(pid) for pid in pids)


def proportional(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0


def main() -> None:
    folder = Path(sys.argv[1])
    try:
        os.close(os.open(folder / "lock", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return  # another one was started for this pod
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    supervisor = Supervisor(folder)
    signal.signal(signal.SIGTERM, supervisor.stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    supervisor.run()


if __name__ == "__main__":
    main()
