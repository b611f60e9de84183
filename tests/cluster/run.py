"""`make test-cluster`: the behaviour table against the cluster of KUBECONFIG.

Without one the double stands in, reached through a kubeconfig like any cluster.
"""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cluster.world import image
from tests.support.cluster import ClusterProcess, Config, Image

TARGETS = ["-m", "cluster", "tests/cluster", "-rs"]


def main(arguments: list[str]) -> int:
    kubeconfig = os.environ.get("KUBECONFIG", "")
    if kubeconfig:
        print(f"cluster: the one of {kubeconfig}, image {image()}", flush=True)
        return run(kubeconfig, arguments)
    print(
        "NO REAL CLUSTER IS USED: without KUBECONFIG the double stands in, reached through a kubeconfig.",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="afm-cluster-") as folder:
        config = Config(images={image(): Image()}, scratch=("/tmp/afm-scratch",))
        with ClusterProcess(Path(folder, "state"), config) as cluster:
            path = cluster.kubeconfig(Path(folder, "kubeconfig"), namespace="default")
            return run(str(path), arguments)


def run(kubeconfig: str, arguments: list[str]) -> int:
    os.environ["AFM_TEST_KUBECONFIG"] = kubeconfig
    return int(pytest.main([*TARGETS, *arguments]))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
