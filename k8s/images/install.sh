#!/bin/sh
# One environment of an image: install.sh FOLDER CONSTRAINTS. Dependencies alone: the code comes with each run's checkout.
# The same command as flows/setup.py's, so that an image and a laptop get the same versions; a test compares the two.
# TORCH_BACKEND (cpu; empty: what the index has, built for CUDA) chooses the build of torch.
set -eu
folder=$1 constraints=$2
uv venv -q --allow-existing -p "${PYTHON:-python3}" "$folder"
set -- -q --compile-bytecode -p "$folder/bin/python"
if [ -n "${TORCH_BACKEND:-}" ]; then
  set -- "$@" --torch-backend "$TORCH_BACKEND"
fi
set -- "$@" -c "constraints/$constraints.txt"
if [ -f "constraints/overrides-$constraints.txt" ]; then
  set -- "$@" --overrides "constraints/overrides-$constraints.txt"
fi
uv pip install "$@" -r pyproject.toml --extra "$constraints"
printf %s "$constraints" > "$folder/afm-constraints"
