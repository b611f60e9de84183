"""A Kubernetes API double over real HTTP; each pod's command runs as a local process.

Start it in the test process, or as a program that can be killed and started again:

    config = Config(
        nodes=(Node(name="node-0", gpus=8, labels={"nvidia.com/gpu.product": "H200"}),),
        images={"afm-pipeline:0.1.0": Image()},          # any other name is ErrImagePull for ever
        users=(User(name="launcher", token="t", rules=(Rule(verbs=("*",), resources=("jobs", "pods")),)),),
        namespaces={"afm": {"pod-security.kubernetes.io/enforce": "restricted"}},
        time_scale=0.02,
    )
    with Cluster(tmp_path / "cluster", config) as cluster:     # or ClusterProcess: .kill() is SIGKILL, .start()
        cluster.volume("afm", host_folder)                     # a bound PVC: mount it at that very path
        cluster.service_account("afm-stage")                   # a pod that names a missing one is refused
        path = cluster.kubeconfig(tmp_path / "kubeconfig", user="launcher", token_file=tmp_path / "token")
        kubernetes.config.load_kube_config(str(path))

A user is one of the configuration, with its own rules, or a service account (`kubeconfig(account=...)`) with what Roles
and RoleBindings posted to the API allow. Faults are methods: freeze, outage, stale_watches, expire_watches, break_logs,
evict, preempt, lose_node, return_node, taint, kill_pod, rotate; the same orders stand at POST /double/<name>.
`requests()` counts, `history("jobs")` lists every change, `processes()` every process of a pod,
`read_only_violations()` what changed below read-only mounts.

How it differs from a cluster, on purpose:
- There are no mount namespaces: a mountPath must be the volume's very host path (volumes.py says what else is legal).
- Pods share the machine's loopback: names of Services in env and args become 127.0.0.1 at start (containers.py).
- A container's main process is not PID 1: without a handler SIGTERM ends it at once (143), where a cluster would wait
  for the grace period and send SIGKILL (137).
- It runs as the test's own user, whatever runAsUser says; where the root is read-only, HOME is a place that nobody can
  write, but the rest of the machine's file system is not protected.
- One container per pod beside init containers; restartPolicy is Never. No Kueue, no liveness probe, no ClusterRole.
- `time_scale` shortens what the cluster itself waits for; times in manifests hold (but tolerationSeconds).
- Controllers stand still while the API is frozen or out: all that they do goes through it.

It is built on aiohttp. The library kmock was looked at (0.8): it keeps objects and a live watch, but has no
resourceVersion, no resumed watch, no selectors, no kinds of patches, no authorization and no persistence, and these are
the larger part of what a client can get wrong; controllers and a kubelet would be our own in any case.
"""

from tests.support.cluster.config import Config, Image, Node, Rule, User
from tests.support.cluster.handle import Handle
from tests.support.cluster.running import Cluster, ClusterProcess

__all__ = ["Cluster", "ClusterProcess", "Config", "Handle", "Image", "Node", "Rule", "User"]
