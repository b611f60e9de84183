"""The objects that the executor creates for a stage, without a cluster: a small one, and one on several nodes of GPUs.

Until `flows.executors.cluster.manifest` can be imported, the template is filled here with the same fields; afterwards
this module asks `stage_job` and `headless_service`.
"""

import yaml

from flows.executors.cluster.settings import Settings, read_settings
from tests.support.manifests import K8S, Object
from tests.support.toy import REPO


def stage_objects() -> dict[str, Object]:
    """Return them by stage."""
    settings = read_settings(REPO, {})
    return {stage: _filled(stage, settings) for stage in ("filter", "dapo")}


def _filled(stage: str, settings: Settings) -> Object:
    job: Object = yaml.safe_load((K8S / "jobs" / "stage.yaml").read_text())
    profile = settings.profile(stage)
    job["metadata"]["name"] = f"afm-{stage}-0123456789abcdef"
    job["spec"] |= {
        "suspend": settings.queue is not None,
        "backoffLimit": settings.backoff_limit,
        "activeDeadlineSeconds": profile.deadline_s,
        "ttlSecondsAfterFinished": settings.ttl_s,
    }
    pod = job["spec"]["template"]["spec"]
    job["spec"]["template"]["metadata"]["labels"]["afm.dev/stage"] = stage
    pod["serviceAccountName"] = settings.service_account
    pod["terminationGracePeriodSeconds"] = profile.grace_s
    pod["securityContext"] |= dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), settings.run_as)
    pod["volumes"][1]["emptyDir"]["sizeLimit"] = profile.shm
    amounts = {
        "cpu": profile.cpu,
        "memory": profile.memory,
        "ephemeral-storage": profile.ephemeral_storage,
    } | ({settings.gpu_resource: "8"} if profile.gpu else {})
    pod["containers"][0] |= {
        "image": settings.images["pipeline"],
        "command": [settings.python["pipeline"], "-m", f"stages.{stage}"],
        "resources": {"requests": amounts, "limits": amounts},
    }
    return job
