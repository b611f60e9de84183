"""Steps that follow a log while it grows."""

import threading
import time
from typing import Any

from tests.cluster.world import World

Args = dict[str, Any]
WAIT_S = 60.0


class Follower(threading.Thread):
    """Reads a pod's log to its end, with the time of each line."""

    def __init__(self, world: World, pod: str) -> None:
        super().__init__(name=f"follow {pod}", daemon=True)
        self.lines: list[str] = []
        self.times: list[float] = []
        self._world = world
        self._pod = pod

    def run(self) -> None:
        response: Any = self._world.core.read_namespaced_pod_log(
            self._pod, self._world.namespace, follow=True, _preload_content=False
        )
        rest = b""
        for data in response.stream(amt=None, decode_content=False):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self.lines.append(line.decode())
                self.times.append(time.monotonic())


def _start(world: World, job: str) -> Follower:
    follower = Follower(world, world.pods_of(job)[-1]["metadata"]["name"])
    follower.start()
    return follower


def follow(world: World, args: Args, _: Args) -> None:
    """Follow to the end: the lines come one by one, not all at the end."""
    follower = _start(world, args["job"])
    follower.join(WAIT_S)
    assert follower.lines == args["lines"], f"saw {follower.lines}"
    spread_s = follower.times[-1] - follower.times[0]
    assert spread_s >= args["spread_s"], f"all lines came within {spread_s:.2f} s"


def follow_during(world: World, args: Args, _: Args) -> None:
    """Begin to follow in a thread, and wait for one line."""
    world.followed = _start(world, args["job"])
    until = time.monotonic() + WAIT_S
    while args["until"] not in world.followed.lines:
        assert time.monotonic() < until, f"saw {world.followed.lines}"
        time.sleep(0.02)


def followed(world: World, args: Args, _: Args) -> None:
    """Look at what the thread saw to its end."""
    world.followed.join(WAIT_S)
    assert world.followed.lines == args["lines"], f"saw {world.followed.lines}"
