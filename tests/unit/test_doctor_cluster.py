"""`afm doctor` on a cluster: against the API double, with the rights that k8s/base grants and with others."""

import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.doctor import cluster as doctor
from flows.doctor.capacity import capacity
from flows.doctor.finding import Finding, Site, State
from flows.doctor.view import View
from tests.support.cluster import Cluster, Node, Rule, User
from tests.support.cluster_toy import config, settings
from tests.support.toy import REPO

CORE = "/api/v1/namespaces/afm"
ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/afm"
QUEUES = "/apis/kueue.x-k8s.io/v1beta2/namespaces/afm/localqueues"
PRODUCT = "nvidia.com/gpu.product"
POOR = User(
    name="poor",
    token="poor-token",
    rules=(Rule(verbs=("get", "list", "watch"), resources=("jobs", "pods"), namespace="afm"),),
)
NODES = (
    Node(name="h200", gpus=8, labels={PRODUCT: "H200"}),
    Node(name="t4", gpus=4, labels={PRODUCT: "T4"}),
    Node(name="taken", gpus=8, taints=({"key": "other-team", "effect": "NoSchedule"},)),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with the accounts and rights of k8s/base, a claim that all may write and one that one may."""
    folder = tmp_path_factory.mktemp("doctor")
    with Cluster(folder / "cluster", config(nodes=NODES, users=(POOR,))) as made:
        for one in yaml.safe_load_all((REPO / "k8s" / "base" / "access.yaml").read_text()):
            path = CORE if one["kind"] == "ServiceAccount" else ROLES
            made.post(f"{path}/{one['kind'].lower()}s", one)
        made.volume("afm", folder)
        one_writer = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        }
        for name in ("single", "pending"):
            made.post(
                f"{CORE}/persistentvolumeclaims", {"metadata": {"name": name}, "spec": one_writer}
            )
        volume = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
        volume |= {
            "claimRef": {"namespace": "afm", "name": "single"},
            "hostPath": {"path": str(folder)},
        }
        made.post("/api/v1/persistentvolumes", {"metadata": {"name": "single"}, "spec": volume})
        yield made


@pytest.fixture
def look(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., View]:
    """Prepare a look at the cluster as some account, with some settings."""
    shutil.copy(REPO / "params.yaml", tmp_path)

    def prepare(*, account: str = "", user: str = "admin", **changes: Any) -> View:
        path = cluster.kubeconfig(tmp_path / "kubeconfig", account=account, user=user)
        monkeypatch.setenv("KUBECONFIG", str(path))
        return doctor.view_of(site(tmp_path, **changes))

    return prepare


def site(folder: Path, **changes: Any) -> Site:
    """Write settings and return what is looked at."""
    (folder / "cluster.yaml").write_text(json.dumps(settings(folder) | changes))
    environ = {"AFM_CLUSTER": str(folder / "cluster.yaml")}
    return Site(root=folder, home=folder, environ=environ, is_cluster=True)


def scaled(folder: Path, nodes: int, gpus: int, product: str = "null") -> Path:
    """Let scale tiny take this of a cluster."""
    path = folder / "params.yaml"
    text, tiny = path.read_text(), path.read_text().index("  tiny:")
    for key, value in (("nodes", nodes), ("gpus_per_node", gpus), ("gpu_product", product)):
        line = re.compile(rf"^      {key}: \w+", re.MULTILINE)
        at = line.search(text, tiny)
        assert at is not None
        text = f"{text[: at.start()]}      {key}: {value}{text[at.end() :]}"
    path.write_text(text)
    return folder


def said(found: Iterable[Finding], words: str) -> State:
    """Return how bad it is what a line with these words says; there must be one."""
    fitting = [one for one in found if words in one.text]
    assert len(fitting) == 1, [one.text for one in found]
    if fitting[0].state is not State.OK:
        assert fitting[0].todo or "not in run.scales" in fitting[0].text
    return fitting[0].state


def test_the_launcher_has_its_rights_and_is_told_what_it_may_not_see(
    look: Any, tmp_path: Path
) -> None:
    look(account="afm-launcher")
    secrets = {"TOKEN": {"name": "hub", "key": "token"}}
    scaled(tmp_path, 1, 8)
    found = list(doctor.check(site(tmp_path, queue="afm", secrets=secrets)))
    assert said(found, "answers; namespace afm") is State.OK
    assert said(found, "all 34 rights") is State.OK
    assert said(found, "claim afm is bound, 1Ti, ReadWriteMany") is State.OK
    assert said(found, "no quota") is State.OK
    for words in ("ServiceAccount afm-stage", "Secret hub", "nodes and their", "LocalQueue afm"):
        assert said(found, words) is State.HIDDEN, words


def test_each_missing_right_is_named(look: Any) -> None:
    view = look(user="poor")
    found = list(doctor.rights(view))
    assert said(found, "may not create, update, patch, delete jobs (stages)") is State.PROBLEM
    assert said(found, "may not get pods/log") is State.PROBLEM
    assert said(found, "may not get, list resourcequotas") is State.WARNING
    assert not [one for one in found if "how stages end" in one.text], "it may read pods"
    assert said(doctor.named(view), "claim afm") is State.HIDDEN


def test_what_the_settings_name_is_looked_for(look: Any, cluster: Cluster) -> None:
    secret = {"metadata": {"name": "hub"}, "stringData": {"token": "s3cret"}}
    cluster.post(f"{CORE}/secrets", secret)
    cluster.post(QUEUES, {"metadata": {"name": "afm"}, "spec": {"clusterQueue": "afm"}})
    secrets = {"A": {"name": "hub", "key": "token"}, "B": {"name": "judge", "key": "key"}}
    found = list(doctor.named(look(secrets=secrets, queue="afm", service_account="nobody")))
    assert said(found, "Secret hub is there") is State.OK
    assert said(found, "no Secret judge") is State.PROBLEM
    assert said(found, "no ServiceAccount nobody") is State.PROBLEM
    assert said(found, "LocalQueue afm is there") is State.OK
    assert said(doctor.named(look(queue="other")), "no LocalQueue other") is State.PROBLEM


def test_of_a_secret_only_the_metadata_travel(
    look: Any, monkeypatch: pytest.MonkeyPatch, cluster: Cluster
) -> None:
    cluster.post(f"{CORE}/secrets", {"metadata": {"name": "x"}, "stringData": {"token": "s3cret"}})
    view = look()
    client, calls = view.api._client, []
    send = client.call_api

    def noted(method: str, url: str, headers: dict[str, str], *rest: Any, **more: Any) -> Any:
        calls.append(headers["Accept"])
        return send(method, url, headers, *rest, **more)

    monkeypatch.setattr(client, "call_api", noted)
    assert view.api.exists(view.path("secrets", "x"))
    assert not view.api.exists(view.path("secrets", "y"))
    assert all("as=PartialObjectMetadata" in accept for accept in calls)
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ("single", "claim single is bound, 1Gi, ReadWriteOnce"),
        ("pending", "claim pending is Pending, not Bound"),
        ("none", "there is no claim none"),
    ],
)
def test_a_claim_that_pods_cannot_share_is_a_problem(look: Any, claim: str, words: str) -> None:
    assert said(doctor.named(look(shared_claim=claim)), words) is State.PROBLEM
    view = look(mounts=[{"claim": claim, "path": "/models", "read_only": True}])
    read = said(doctor.named(view), words)
    assert read is (State.OK if claim == "single" else State.PROBLEM)


@pytest.mark.parametrize(
    ("need", "state", "words"),
    [
        ((1, 8, "H200"), State.OK, "hold 1 x 8 H200"),
        ((2, 4), State.OK, "hold 3 x 4 nvidia.com/gpu"),
        ((2, 8), State.PROBLEM, "takes 2 x 8 nvidia.com/gpu, the usable nodes hold 1"),
        ((1, 1, "A100"), State.PROBLEM, "hold 0 x 1 A100"),
    ],
)
def test_gpus_are_counted_where_stages_may_go(
    look: Any, tmp_path: Path, need: tuple[Any, ...], state: State, words: str
) -> None:
    view = look()
    found = list(capacity(view, scaled(tmp_path, *need)))
    assert said(found, f"scale tiny takes {need[0]} x {need[1]}") is state
    assert [one for one in found if words in one.text]
    assert said(found, "scale 32b takes 4 x 8") is State.WARNING, "nothing needs it now"


def test_a_toleration_makes_a_tainted_node_usable(look: Any, tmp_path: Path) -> None:
    view = look(tolerations=[{"key": "other-team", "operator": "Exists"}])
    assert said(capacity(view, scaled(tmp_path, 2, 8)), "scale tiny") is State.OK
    view = look(tolerations=[{"key": "other-team", "operator": "Equal", "value": "x"}])
    assert said(capacity(view, scaled(tmp_path, 2, 8)), "scale tiny") is State.PROBLEM


def test_a_quota_is_held_against_what_stages_take(
    look: Any, cluster: Cluster, tmp_path: Path
) -> None:
    hard = {"requests.nvidia.com/gpu": "4", "requests.cpu": "2", "requests.memory": "2Gi"}
    cluster.post(f"{CORE}/resourcequotas", {"metadata": {"name": "small"}, "spec": {"hard": hard}})
    try:
        view = look(stages={"sft": {"gpu": True}, "prepare": {"cpu": "3"}})
        deadline = time.monotonic() + 20
        while not view.api.get(view.path("resourcequotas"))["items"][0].get("status"):
            assert time.monotonic() < deadline
        found = list(capacity(view, scaled(tmp_path, 1, 4)))
        line = "quota small: prepare takes 3 requests.cpu, 0 of 2 are used"
        assert said(found, line) is State.PROBLEM
        assert len([one for one in found if "quota small" in one.text]) == 1, "the rest fits"
        found = list(capacity(view, scaled(tmp_path, 1, 8)))
        assert said(found, "sft at scale tiny takes 8 requests.nvidia.com/gpu") is State.PROBLEM
    finally:
        cluster.delete(f"{CORE}/resourcequotas/small")


def test_endpoints_that_are_services_are_looked_up(
    look: Any, cluster: Cluster, tmp_path: Path
) -> None:
    ports = [{"port": 8000}]
    cluster.post(
        f"{CORE}/services", {"metadata": {"name": "afm-serving"}, "spec": {"ports": ports}}
    )
    view = look()
    names = {"judge": "afm-serving", "teacher": "afm-gone"}
    block = {"endpoints": {key: {"base_url": f"http://{at}:8000/v1"} for key, at in names.items()}}
    with (tmp_path / "params.yaml").open("a") as stream:
        stream.write(yaml.safe_dump(block))
    found = list(doctor.servers(view, site(tmp_path)))
    assert said(found, "Service afm-serving is there") is State.OK
    assert said(found, "no Service afm-gone") is State.PROBLEM


@pytest.mark.parametrize("fault", ["token", "away"])
def test_an_api_that_is_away_or_refuses_the_token_is_told_at_once(
    look: Any, tmp_path: Path, fault: str
) -> None:
    look()
    path = tmp_path / "kubeconfig"
    old, new = {
        "token": ("admin-token", "gone"),
        "away": ("http://127.0.0.1:", "http://127.0.0.1:1"),
    }[fault]
    path.write_text(path.read_text().replace(old, new))
    began = time.monotonic()
    (one,) = doctor.check(site(tmp_path))
    assert one.state is State.PROBLEM
    assert ("401" in one.text) == (fault == "token")
    assert time.monotonic() - began < 10
