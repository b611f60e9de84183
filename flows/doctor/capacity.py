"""Whether the cluster can hold what stages ask for: GPUs of its nodes, quotas of the namespace."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from afm.params.root import Params, read_params
from afm.params.scales import ClusterParams
from flows.doctor.finding import Finding, ok, problem, warning
from flows.doctor.view import TOPIC, View, judged
from flows.executors.cluster.api import quantity
from flows.executors.cluster.settings import Profile
from flows.identity import load_stage, stage_names

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """What one Job takes of a quota."""

    who: str
    amounts: Mapping[str, Decimal]
    """By the quota's name for it."""


def capacity(view: View, root: Path) -> Iterator[Finding]:
    """Compare what the scales of params.yaml take with what there is.

    Raises:
        UserError: params.yaml or the settings are malformed.
    """
    params = read_params(root / "params.yaml")
    needing = {
        name: one.cluster for name, one in params.scales.items() if one.cluster.gpus_per_node
    }
    if needing:
        yield from judged(
            "nodes and their GPUs", "kubectl describe nodes", lambda: _gpus(view, params, needing)
        )
    yield from judged(
        "quotas",
        view.kubectl("describe quota"),
        lambda: _quotas(view, list(_demands(view, params))),
    )


def _gpus(view: View, params: Params, needing: Mapping[str, ClusterParams]) -> Iterator[Finding]:
    nodes = [node for node in view.api.get("/api/v1/nodes")["items"] if _is_usable(view, node)]
    for scale, need in needing.items():
        places = sum(_places(view, node, need) for node in nodes)
        kind = need.gpu_product or view.settings.gpu_resource
        each = f"x {need.gpus_per_node} {kind}"
        text = f"scale {scale} takes {need.nodes} {each}, the usable nodes hold {places} {each}"
        if places >= need.nodes:
            yield ok(TOPIC, text)
        elif scale in params.run.scales:
            todo = f"add nodes, or mend `scales.{scale}.cluster`, gpu_resource and tolerations"
            yield problem(TOPIC, text, todo)
        else:
            yield warning(TOPIC, f"{text}; it is not in run.scales")


def _places(view: View, node: Object, need: ClusterParams) -> int:
    """Return how many pods of a scale a node could hold if it were empty."""
    label = (node["metadata"].get("labels") or {}).get(view.settings.gpu_product_label)
    if need.gpu_product not in (None, label):
        return 0
    allocatable = node["status"].get("allocatable") or {}
    return int(quantity(allocatable.get(view.settings.gpu_resource, "0"))) // need.gpus_per_node


def _is_usable(view: View, node: Object) -> bool:
    """Tell whether a stage may go to a node: ready, chosen by the settings, its taints tolerated."""
    spec, labels = node.get("spec") or {}, node["metadata"].get("labels") or {}
    conditions = node["status"].get("conditions") or []
    is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    is_chosen = view.settings.node_selector.items() <= labels.items()
    tainted = any(
        taint["effect"] != "PreferNoSchedule" and not _is_tolerated(view, taint)
        for taint in spec.get("taints") or []
    )
    return is_ready and is_chosen and not tainted and not spec.get("unschedulable")


def _is_tolerated(view: View, taint: Object) -> bool:
    return any(
        one.get("key") in (None, taint["key"])
        and one.get("effect") in (None, taint["effect"])
        and (one.get("operator") == "Exists" or one.get("value") == taint.get("value"))
        for one in view.settings.tolerations
    )


def _demands(view: View, params: Params) -> Iterator[Demand]:
    """Yield what each stage takes at each scale that runs."""
    for name in stage_names():
        stage, profile = load_stage(name), view.settings.profile(name)
        for scale in params.run.scales if "scale" in stage.axes and profile.gpu else (None,):
            cluster = params.scales[scale].cluster if scale else None
            nodes = cluster.nodes if cluster and stage.launcher != "single" else 1
            gpus = cluster.gpus_per_node if cluster else 0
            who = f"{name} at scale {scale}" if scale else name
            yield Demand(who=who, amounts=_amounts(view, profile, nodes, gpus))


def _amounts(view: View, profile: Profile, nodes: int, gpus: int) -> dict[str, Decimal]:
    """Return what a Job takes, under every name that a quota may have for it."""
    each = {
        "cpu": quantity(profile.cpu),
        "memory": quantity(profile.memory),
        "ephemeral-storage": quantity(profile.ephemeral_storage),
        view.settings.gpu_resource: Decimal(gpus),
    }
    total = {key: value * nodes for key, value in each.items()}
    named = {
        f"{half}.{key}": value for key, value in total.items() for half in ("requests", "limits")
    }
    return {
        **total,
        **named,
        "pods": Decimal(nodes),
        "count/pods": Decimal(nodes),
        "count/jobs.batch": Decimal(1),
    }


def _quotas(view: View, demands: list[Demand]) -> Iterator[Finding]:
    quotas = view.api.get(view.path("resourcequotas"))["items"]
    if not quotas:
        yield ok(TOPIC, "the namespace has no quota")
    for quota in quotas:
        status = quota.get("status") or {}
        hard, used = status.get("hard") or {}, status.get("used") or {}
        found = [
            _quota_line(demands, quota["metadata"]["name"], key, hard[key], used.get(key, "0"))
            for key in hard
        ]
        faults = [one for one in found if one is not None]
        shown = ", ".join(f"{key} {used.get(key, '0')} of {hard[key]}" for key in hard)
        yield from faults or [ok(TOPIC, f"quota {quota['metadata']['name']}: used {shown}")]


def _quota_line(demands: list[Demand], name: str, key: str, hard: str, used: str) -> Finding | None:
    """Compare the greatest demand with one line of a quota; None where it fits."""
    greatest = max(demands, key=lambda one: one.amounts.get(key, Decimal(0)))
    amount = greatest.amounts.get(key, Decimal(0))
    text = f"quota {name}: {greatest.who} takes {amount:f} {key}, {used} of {hard} are used"
    if amount > quantity(hard):
        return problem(TOPIC, text, "raise the quota, or take less: its Job would never start")
    if amount > quantity(hard) - quantity(used):
        return warning(TOPIC, text, "its Job waits until others have ended")
    return None
