.DEFAULT_GOAL := help
.PHONY: help envs demo smoke test test-cluster check soak bench base-model images manifests

PYTHON := .venv/bin/python
WORKERS := 2
AFM := $(PYTHON) -m flows.cli

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:[^#]*## /\t/' | expand -t 14

envs: ## create or update the environments (ARGS=--gpu for the GPU variants)
	@bin/setup $(if $(filter envs,$(MAKECMDGOALS)),$(ARGS))

demo: envs ## the whole pipeline at scale tiny, through Prefect, DVC and MLflow
	@$(AFM) demo

smoke: envs ## the same graph at scale smoke, in a checkout of its own under build/
	@$(AFM) smoke

test: envs ## every test that this machine can run (ARGS for pytest; WORKERS=1 one after the other)
	@$(PYTHON) -m pytest -m "not soak" -n $(WORKERS) --dist loadscope $(ARGS)

# Without KUBECONFIG the double stands in, and the output says so. AFM_TEST_IMAGE: any image with `python` on its PATH.
# AFM_TEST_SHARED: a folder with this checkout that the nodes see at the same path; then the smoke run is included.
test-cluster: envs ## how a cluster behaves, against the one of KUBECONFIG=... (ARGS for pytest)
	@KUBECONFIG='$(KUBECONFIG)' $(PYTHON) -m tests.cluster.run $(ARGS)

check: envs ## style, types, layers
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy --strict afm stages flows
	@.venv/bin/lint-imports
	@$(PYTHON) -m stages._closure

soak: envs ## tests that run for hours
	@$(PYTHON) -m pytest -m soak $(ARGS)

bench: envs ## performance measurements; print ratios
	@missed=0; for script in benchmarks/[!_]*.py; do \
	  $(PYTHON) -m benchmarks.$$(basename $$script .py) || missed=1; done; exit $$missed

base-model: envs ## make models/tiny-base again, from nothing: an hour or three
	@$(PYTHON) -m afm.training.pretrain --out models/tiny-base $(ARGS)

images: ## build the cluster's images (ARGS="--gpu rl"; CONTAINER=podman PREFIX=registry/team/ TAG=... BASE=...)
	@k8s/images/build.sh $(ARGS)

manifests: envs ## render the manifests anew into tests/golden/k8s; look at the difference before you commit it
	@$(PYTHON) -m tests.support.manifests
