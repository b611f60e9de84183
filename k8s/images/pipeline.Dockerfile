# Flow runner, Prefect server and worker, MLflow, and the stages that need no model server. Dependencies alone.
# Pin BASE by digest: build.sh looks it up and says it. The zeros are a placeholder, which no registry has.
ARG BASE=python:3.11.14-slim-bookworm@sha256:0000000000000000000000000000000000000000000000000000000000000000

FROM ${BASE} AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# Some dependencies come as source. Debian removes old versions from its mirrors: what is pinned is the base image.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ git && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY constraints/ constraints/
# hadolint ignore=DL3013
RUN pip install --no-cache-dir -c constraints/pipeline.txt uv
COPY pyproject.toml k8s/images/install.sh ./
ARG TORCH_BACKEND=cpu
RUN --mount=type=cache,target=/var/cache/uv UV_CACHE_DIR=/var/cache/uv UV_LINK_MODE=copy sh install.sh /opt/afm-math math
ARG CONSTRAINTS=pipeline
RUN --mount=type=cache,target=/var/cache/uv UV_CACHE_DIR=/var/cache/uv UV_LINK_MODE=copy sh install.sh /opt/afm "$CONSTRAINTS"
# The label below must not lie: the identity of every result holds this hash.
ARG CONSTRAINTS_MD5
RUN echo "$CONSTRAINTS_MD5  constraints/$CONSTRAINTS.txt" | md5sum -c -

FROM ${BASE}
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git openssh-client \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 afm && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home afm
COPY --from=build /opt/afm-math /opt/afm-math
COPY --from=build /opt/afm /opt/afm
ENV PATH=/opt/afm/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1 \
    AFM_PYTHON=/opt/afm/bin/python AFM_MATH_PYTHON=/opt/afm-math/bin/python
ARG CONSTRAINTS=pipeline
ARG CONSTRAINTS_MD5
LABEL org.opencontainers.image.title="afm-pipeline" org.opencontainers.image.licenses="Apache-2.0" \
      dev.afm.constraints="${CONSTRAINTS}" dev.afm.constraints.md5="${CONSTRAINTS_MD5}"
USER 10001:10001
WORKDIR /tmp
CMD ["/opt/afm/bin/python"]
