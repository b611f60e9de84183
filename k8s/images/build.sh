#!/bin/sh
# Builds the images: build.sh [--gpu] [pipeline] [serve] [rl]. CONTAINER: docker or podman; PREFIX: of the names, for
# instance registry.example.org/team/; TAG; BASE: the base image, by digest.
set -eu
cd "$(dirname "$0")/../.."
container=${CONTAINER:-docker} prefix=${PREFIX:-} tag=${TAG:-0.1.0}
base_tag=python:3.11.14-slim-bookworm
variant='' backend=cpu
if [ "${1:-}" = --gpu ]; then
  variant=-gpu backend=''
  shift
fi
[ $# -gt 0 ] || set -- pipeline serve rl
if [ -z "${BASE:-}" ]; then
  "$container" pull -q "docker.io/library/$base_tag" > /dev/null
  BASE=$("$container" image inspect --format '{{index .RepoDigests 0}}' "docker.io/library/$base_tag")
  echo "base: $BASE  (set BASE to it, and the next build starts from the same)"
fi
for image in "$@"; do
  constraints=$image$variant
  [ -f "constraints/$constraints.txt" ] || constraints=$image
  md5=$(md5sum < "constraints/$constraints.txt" | cut -d ' ' -f 1)
  "$container" build --file "k8s/images/$image.Dockerfile" --build-arg "BASE=$BASE" \
    --build-arg "CONSTRAINTS=$constraints" --build-arg "CONSTRAINTS_MD5=$md5" --build-arg "TORCH_BACKEND=$backend" \
    --tag "${prefix}afm-$image:$tag" .
  echo "afm-$image: $("$container" image inspect --format '{{.Id}}' "${prefix}afm-$image:$tag")"
done
