"""One stage command in one workspace: what it wants, what that depends on, and who serves it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from afm.errors import UserError
from afm.jsonl import read_json, write_json
from afm.params.root import read_params
from flows.attempts import attempt_record
from flows.executors import ClusterNeeds, Executor, Job, NamedEndpoint, Outcome, make_executor
from flows.hashing import Hasher
from flows.identity import (
    Ingredients,
    Request,
    differences,
    ingredients,
    known_mentions,
    params_tree,
    parse_request,
)
from flows.memory import Memory
from flows.owner import Owner
from flows.records import Record, read_record, write_record
from flows.space import size_of
from flows.store import RECORD, Manifest, Store
from flows.workspace import Workspace, home_of
from stages._stage import ENDPOINTS

PARAMS = "params.json"
"""File in scratch with the declared sections as they were when the job was asked for."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One request in one workspace, and what serves it."""

    workspace: Workspace
    request: Request
    ingredients: Ingredients
    hasher: Hasher
    mentions: Memory
    store: Store
    executor: Executor
    owner: Owner

    @property
    def identity(self) -> str:
        """Identity of the wanted result."""
        return self.ingredients.identity

    @property
    def scratch(self) -> Path:
        """Where its job keeps checkpoints and logs."""
        return self.workspace.scratch(self.identity)

    @property
    def cell(self) -> str:
        """DVC's name for the cell; by hand, the stage's name and axes."""
        return os.environ.get("DVC_STAGE", "").rpartition(":")[2] or self.request.cell

    @property
    def deps(self) -> dict[str, str]:
        """md5 of every input, as DVC knows it, by path."""
        known = self.ingredients.deps
        return {str(path): known[name] for name, path in self.request.inputs.items()}

    def job(self) -> Job:
        """Return the stage command, with outputs in the store and params as they are now."""
        relative = self.workspace.relative
        outputs = self.store.plan(self.identity, self.request.outputs)
        arguments = self.request.arguments({name: relative(path) for name, path in outputs.items()})
        arguments += ["--params", str(relative(self.scratch / PARAMS))]
        arguments += ["--scratch", str(relative(self.scratch))]
        return Job(
            identity=self.identity,
            stage=self.request.stage.name,
            cell=self.cell,
            environment=self.request.stage.environment,
            arguments=tuple(arguments),
            workspace=self.workspace.root,
            home=self.workspace.home,
            scratch=self.scratch,
            partial=self.store.partial(self.identity),
            cluster=_cluster_needs(self.workspace.root, self.request),
            pipeline_run=os.environ.get("AFM_PIPELINE_RUN"),
            endpoints=_endpoints(self.workspace.root, self.request),
        )

    def write_settings(self) -> None:
        """Write what the stage reads of params.yaml: the tracked sections, and how its endpoints are reached.

        Raises:
            UserError: an endpoint would serve another model than its revision says.
        """
        endpoints = _endpoints(self.workspace.root, self.request)
        for one in endpoints:
            self._check_revision(one)
        write_json(self.scratch / PARAMS, params_tree(self.ingredients.params))
        blocks = {one.name: one.params.model_dump(mode="json") for one in endpoints}
        write_json(self.scratch / ENDPOINTS, blocks)

    def _check_revision(self, endpoint: NamedEndpoint) -> None:
        """A model in the checkout is no dep of the stage, so its revision must say which one it is."""
        serve, model = endpoint.params.serve, endpoint.params.model
        if serve is None or Path(serve.model).is_absolute():
            return
        found = self.hasher.md5(self.workspace.root / serve.model)
        if found != model.revision:
            raise UserError(
                f"endpoints.{endpoint.name}.model.revision is {model.revision!r}, but {serve.model} is {found!r}: set "
                "the revision to that if this is the model you mean; the stages that ask it then run again"
            )

    def changes(self) -> list[str]:
        """Name what has changed since the identity was computed."""
        now = _ingredients(self.request, self.workspace, self.hasher, self.executor, self.mentions)
        return differences(self.ingredients, now)

    def check_unchanged(self) -> None:
        """Look again at inputs, code and params.

        Raises:
            UserError: something has changed since the identity was computed.
        """
        changed = self.changes()
        if changed:
            raise UserError(
                f"changed while this command ran: {', '.join(changed)}; nothing is published, because DVC would "
                "record the new content beside the old output. Run the same command again"
            )

    def record(self, outcome: Outcome, manifest: Manifest | None) -> Record:
        """Return the run record of the last attempt; without a manifest, that of one that gave no result."""
        request = self.request
        written = self.store.plan(self.identity, request.outputs) if manifest else {}
        outs = manifest.outs if manifest else {}
        return attempt_record(
            self.scratch,
            outcome,
            gpu_price=_gpu_price(self.workspace.root, request),
            identity=self.identity,
            stage=request.stage.name,
            axes=dict(request.axes),
            params=params_tree(self.ingredients.params),
            code=self.ingredients.code,
            deps=self.deps,
            outs={str(request.outputs[name]): out.md5 for name, out in outs.items()},
            out_bytes=sum(map(size_of, written.values())),
            metrics=read_json(written["metrics"]) if "metrics" in written else {},
            constraints=self.ingredients.constraints,
            environment=request.stage.environment,
        )

    def keep_record(self) -> None:
        """Copy the record that lies beside the finished result to where lineage reads it."""
        path = self.store.result(self.identity) / RECORD
        write_record(self.workspace.lineage, read_record(path))

    def say(self, text: str) -> None:
        """Tell the user something about this request."""
        print(f"submit: {self.cell} {self.identity}: {text}", flush=True)


def prepare(words: Sequence[str]) -> Submission:
    """Parse a command line and hash what its result depends on.

    Raises:
        UserError: unknown stage, missing input, malformed params, unknown executor.
        OwnerGone: the DVC process that started this command has died already.
    """
    owner = Owner()
    root = Path.cwd()
    workspace = Workspace(root=root, home=home_of(root))
    hasher = Hasher(workspace.home / ".scratch" / "hashes.json")
    request = parse_request(words)
    executor = make_executor(os.environ)
    mentions = known_mentions(workspace.home)
    parts = _ingredients(request, workspace, hasher, executor, mentions)
    hasher.save()
    mentions.save()
    return Submission(
        workspace=workspace,
        request=request,
        ingredients=parts,
        hasher=hasher,
        mentions=mentions,
        store=Store(workspace.results, hasher),
        executor=executor,
        owner=owner,
    )


def _gpu_price(root: Path, request: Request) -> float:
    """Return what a GPU-hour costs at the cell's scale; 0 for a cell without one."""
    scale = request.axes.get("scale")
    return read_params(root / "params.yaml").scales[scale].cluster.gpu_price if scale else 0.0


def _cluster_needs(root: Path, request: Request) -> ClusterNeeds | None:
    """Return what a stage takes of a cluster at its scale: not part of the identity, since it changes no result."""
    scale = request.axes.get("scale")
    if scale is None:
        return None
    section = read_params(root / "params.yaml").scales[scale].cluster
    needs = ClusterNeeds(**section.model_dump(exclude={"gpu_price"}))
    if "endpoint" in request.axes:
        return ClusterNeeds()  # the endpoint computes
    return needs if request.stage.launcher != "single" else replace(needs, nodes=1)


def _endpoints(root: Path, request: Request) -> tuple[NamedEndpoint, ...]:
    """Return the endpoints that a cell asks: of how they are reached nothing is part of the identity."""
    own, asks_judge = request.axes.get("endpoint"), request.stage.asks_judge
    if own is None and not asks_judge:
        return ()
    params = read_params(root / "params.yaml")
    judge = params.asked_judge(request.axes.get("agent")) if asks_judge else None
    names = dict.fromkeys(filter(None, (own, judge)))
    return tuple(NamedEndpoint(name=name, params=params.endpoints[name]) for name in names)


def _ingredients(
    request: Request,
    workspace: Workspace,
    hasher: Hasher,
    executor: Executor,
    mentions: Memory,
) -> Ingredients:
    constraints = executor.constraints(request.stage.environment, workspace.home)
    return ingredients(request, workspace.root, hasher, constraints, mentions)
