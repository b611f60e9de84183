"""The cluster itself: store, controllers, kubelets and API in one event loop."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.support.cluster import faults as fault
from tests.support.cluster.admission import update_quotas
from tests.support.cluster.auth import Users
from tests.support.cluster.config import Config
from tests.support.cluster.creation import create
from tests.support.cluster.deletion import collect
from tests.support.cluster.errors import ApiError
from tests.support.cluster.faults import Faults
from tests.support.cluster.jobs import JobController
from tests.support.cluster.kubelet import Kubelets
from tests.support.cluster.logs import LogReader
from tests.support.cluster.nodes import NodeController, bind_claims, node_object
from tests.support.cluster.processes import kill_main, kill_marked, marked
from tests.support.cluster.resources import RESOURCES
from tests.support.cluster.scheduler import Scheduler
from tests.support.cluster.server import MAX_BODY, ApiServer
from tests.support.cluster.store import Object, Store

TICK_S = 0.05
IDLE_S = 0.5
HOST = "127.0.0.1"
LOG = logging.getLogger(__name__)


class Double:
    """A cluster whose state lives in a folder."""

    def __init__(self, config: Config, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.config = config
        self.store = Store(folder / "changes.jsonl")
        self.faults = Faults()
        self.users = Users(self.store, config.users)
        self.pods = folder / "pods"
        self.kubelets = Kubelets(self.store, config, self.pods)
        self._fill()
        self._nodes = NodeController(self.store, config)
        self._jobs = JobController(self.store, config.time_scale)
        self._scheduler = Scheduler(self.store)
        self._api = ApiServer(
            self.store, self.users, self.faults, LogReader(self.store, self.faults, self.pods)
        )
        self.failure: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    def _fill(self) -> None:
        for name, labels in {"default": {}, "kube-system": {}, **self.config.namespaces}.items():
            self._ensure("namespaces", "", {"metadata": {"name": name, "labels": dict(labels)}})
        for node in self.config.nodes:
            if self.store.find("nodes", "", node.name) is None:
                self.store.create("nodes", node_object(node))

    def _ensure(self, resource: str, namespace: str, body: Object) -> None:
        if self.store.find(resource, namespace, body["metadata"]["name"]) is None:
            create(self.store, RESOURCES[resource], namespace, body)

    async def serve(self, port: int) -> tuple[web.AppRunner, int]:
        """Open the port; 0 takes a free one. The port that was taken comes back."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/double/{action}", self._control)
        app.router.add_route("*", "/{path:.*}", self._api.handle)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, HOST, port, reuse_address=True)
        await site.start()
        self._runner = runner
        self._task = asyncio.create_task(self._control_loop())
        return runner, runner.addresses[0][1]

    async def _control_loop(self) -> None:
        """Reconcile until told to end. A bug here must not look like a quiet cluster: it ends the API too."""
        try:
            while True:
                if not self.faults.is_paused:
                    self.reconcile()
                await self.store.changed(TICK_S if self._is_busy() else IDLE_S)
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            LOG.exception("a controller of the double failed")
            self.failure = error
            raise
        finally:
            if self.failure is not None:
                await self._runner.cleanup()

    def _is_busy(self) -> bool:
        live = any(
            pod["status"]["phase"] not in ("Succeeded", "Failed")
            or pod["metadata"].get("deletionTimestamp")
            for pod in self.store.each("pods")
        )
        return live or any("finished" not in job["_double"] for job in self.store.each("jobs"))

    def reconcile(self) -> None:
        """Let every controller do one round."""
        for space in list(self.store.each("namespaces")):
            if not space["metadata"].get("deletionTimestamp"):
                name = space["metadata"]["name"]
                self._ensure("serviceaccounts", name, {"metadata": {"name": "default"}})
        bind_claims(self.store, self.config.time_scale)
        self._nodes.sync()
        collect(self.store)
        self._jobs.sync()
        self._scheduler.sync()
        self.kubelets.sync()
        update_quotas(self.store)

    async def failed(self) -> None:
        """Return when a controller has failed."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def stop(self) -> None:
        """End the controllers; the pods go on until `kubelets.close`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.kubelets.prober.close()
        self.store.close()

    async def _control(self, request: web.Request) -> web.Response:
        """Take one order of a test: /double/<action> with a JSON object of arguments."""
        arguments = await request.json() if request.can_read_body else {}
        try:
            answer = self._order(request, request.match_info["action"], arguments)
        except ApiError as error:
            return web.json_response(error.body(), status=error.code)
        return web.json_response(answer)

    def _order(self, request: web.Request, action: str, arguments: dict[str, Any]) -> Any:
        actions: dict[str, Callable[..., Any]] = {
            "freeze": self.faults.freeze,
            "stop_controllers": self.faults.stop_controllers,
            "age": lambda **what: fault.age(self.store, **what),
            "outage": lambda seconds: self._outage(request, seconds),
            "stale_watches": self.faults.stale,
            "expire_watches": self.store.compact,
            "break_logs": self.faults.break_logs,
            "evict": lambda **at: fault.evict(self.store, **at)["metadata"]["name"],
            "preempt": lambda **at: fault.preempt_pod(self.store, **at),
            "lose_node": self._lose_node,
            "return_node": lambda name: fault.return_node(self.store, name),
            "taint": lambda **taint: fault.taint_node(self.store, **taint),
            "kill_pod": self._kill_pod,
            "rotate": lambda name, token: self.users.rotate(name, token),
            "token": self.users.token,
            "requests": lambda: dict(self.faults.requests),
            "reset_requests": self.faults.requests.clear,
            "violations": lambda: self.kubelets.violations,
            "processes": lambda: [process.pid for process in marked(str(self.pods))],
        }
        if action not in actions:
            raise ApiError(404, f"no action {action!r}; there are {', '.join(sorted(actions))}")
        return actions[action](**arguments)

    def _outage(self, request: web.Request, seconds: float) -> None:
        server = self._runner.server
        assert server is not None
        self.faults.outage(seconds, server, request.transport)

    def _lose_node(self, name: str, power_off: bool = False) -> None:
        for uid in fault.lose_node(self.store, name):
            if power_off:
                kill_marked(str(self.pods / uid))

    def _kill_pod(self, namespace: str, name: str, everything: bool = False) -> None:
        """Kill a pod's main process, as the kernel would; `everything`: with its supervisor, as a crashed runtime."""
        pod = self.store.get("pods", namespace, name)
        folder = self.kubelets.folder_of(pod)
        if everything:
            kill_marked(str(folder))
            return
        if not (folder / "state.json").exists():
            raise ApiError(409, f"pod {name} runs nothing")
        kill_main(folder)
