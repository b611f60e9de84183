"""The images without a container engine: what the Dockerfiles say, and what their scripts would run."""

import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from dockerfile_parse import DockerfileParser

from flows import setup
from flows.environment import CONSTRAINTS_FILE, ENVIRONMENTS
from flows.executors.cluster.settings import read_settings
from tests.support.toy import REPO

FOLDER = REPO / "k8s" / "images"
IMAGES = ("pipeline", "rl", "serve")
CONSTRAINTS = sorted(
    path.stem
    for path in (REPO / "constraints").glob("*.txt")
    if not path.stem.startswith("overrides-")
)
RECORDER = """#!{python}
import json, os, sys
with open(os.environ["RECORD"], "a") as record:
    record.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
if sys.argv[1:2] == ["venv"]:
    os.makedirs(os.path.join(sys.argv[-1], "bin"))
if "inspect" in sys.argv:
    print("sha256:1234" if "{{{{.Id}}}}" in sys.argv else "python@sha256:" + "a" * 64)
"""


def instructions(image: str) -> list[tuple[str, str]]:
    """Return a Dockerfile's instructions and their values, comments left out."""
    parser = DockerfileParser(path=str(FOLDER / f"{image}.Dockerfile"))
    return [
        (one["instruction"], one["value"])
        for one in parser.structure
        if one["instruction"] != "COMMENT"
    ]


def values(image: str, instruction: str) -> list[str]:
    return [value for name, value in instructions(image) if name == instruction]


def final_stage(image: str) -> list[tuple[str, str]]:
    found = instructions(image)
    last = max(index for index, (name, _) in enumerate(found) if name == "FROM")
    return found[last:]


def recorded(tmp_path: Path, tool: str, command: list[str], **environ: str) -> list[list[str]]:
    """Run a script with a stand-in for one tool; return the tool's calls."""
    programs = tmp_path / "programs"
    programs.mkdir(parents=True)
    fake = programs / tool
    fake.write_text(RECORDER.format(python=sys.executable))
    fake.chmod(stat.S_IRWXU)
    record = tmp_path / "record"
    path = f"{programs}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        env={"PATH": path, "RECORD": str(record), **environ},
        cwd=REPO,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in record.read_text().splitlines()]


@pytest.mark.parametrize("image", IMAGES)
def test_linted(image: str) -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    command = [str(hadolint), "--no-color", str(FOLDER / f"{image}.Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_there_is_an_image_for_each_environment_that_stages_name() -> None:
    assert {path.stem for path in FOLDER.glob("*.Dockerfile")} == set(IMAGES)
    assert set(read_settings(REPO, {}).images) == set(IMAGES) == set(ENVIRONMENTS) - {"math"}


@pytest.mark.parametrize("image", IMAGES)
def test_it_does_not_run_as_root(image: str) -> None:
    users = [value for name, value in final_stage(image) if name == "USER"]
    assert users == ["10001:10001"]
    after = [name for name, _ in final_stage(image)]
    assert set(after[after.index("USER") :]) <= {"USER", "WORKDIR", "CMD"}


@pytest.mark.parametrize("image", IMAGES)
def test_the_base_is_pinned_and_the_same_for_all_stages(image: str) -> None:
    first = instructions(image)[0]
    assert first[0] == "ARG"
    assert re.fullmatch(r"BASE=python:3\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}", first[1])
    assert first == instructions(IMAGES[0])[0]
    assert values(image, "FROM") == ["${BASE} AS build", "${BASE}"]
    tag = re.search(r"base_tag=(\S+)", (FOLDER / "build.sh").read_text())
    assert tag is not None
    assert first[1].startswith(f"BASE={tag[1]}@")


@pytest.mark.parametrize("image", IMAGES)
def test_the_base_is_the_python_that_the_project_wants(image: str) -> None:
    version = re.match(r"BASE=python:3\.(\d+)\.", instructions(image)[0][1])
    assert version is not None
    assert int(version[1]) in (11, 12)


@pytest.mark.parametrize("image", IMAGES)
def test_versions_come_from_the_constraints_alone(image: str) -> None:
    rest = "\n".join(value for name, value in instructions(image)[1:] if name != "FROM")
    assert re.findall(r"==|~=|>=|\bv?\d+\.\d+(?:\.\d+)?\b", rest.replace("Apache-2.0", "")) == []


@pytest.mark.parametrize("image", IMAGES)
def test_what_is_copied_exists_and_is_sent_to_the_engine(image: str) -> None:
    kept = [
        line[1:].rstrip("/")
        for line in (REPO / ".dockerignore").read_text().splitlines()
        if line[:1] == "!"
    ]
    for value in values(image, "COPY"):
        *sources, _ = value.split()
        if not sources[0].startswith("--from="):
            for source in sources:
                assert (REPO / source).exists(), source
                assert source.rstrip("/") in kept, source
    assert (REPO / ".dockerignore").read_text().splitlines()[1] == "*"


@pytest.mark.parametrize("image", IMAGES)
def test_it_holds_no_project_code(image: str) -> None:
    copied = [value.split()[:-1] for value in values(image, "COPY") if "--from=" not in value]
    assert copied == [["constraints/"], ["pyproject.toml", "k8s/images/install.sh"]]


@pytest.mark.parametrize("image", IMAGES)
def test_the_constraints_that_it_names_exist(image: str) -> None:
    defaults = [
        value.partition("=")[2]
        for value in values(image, "ARG")
        if value.startswith("CONSTRAINTS=")
    ]
    assert defaults == [image, image]
    for value in values(image, "RUN"):
        for folder, constraints in re.findall(r"install\.sh (\S+) (\S+)", value.replace(";", " ")):
            assert constraints == '"$CONSTRAINTS"' or constraints in CONSTRAINTS, folder


@pytest.mark.parametrize("image", IMAGES)
def test_labels_name_the_constraints_by_the_hash_in_identities(image: str) -> None:
    (labels,) = [value for name, value in final_stage(image) if name == "LABEL"]
    assert 'dev.afm.constraints="${CONSTRAINTS}"' in labels
    assert 'dev.afm.constraints.md5="${CONSTRAINTS_MD5}"' in labels
    # The build refuses another hash than the file's.
    assert 'echo "$CONSTRAINTS_MD5  constraints/$CONSTRAINTS.txt" | md5sum -c -' in values(
        image, "RUN"
    )


@pytest.mark.parametrize("image", IMAGES)
def test_every_image_finds_math_verify(image: str) -> None:
    (environment,) = [value for name, value in final_stage(image) if name == "ENV"]
    assert "AFM_MATH_PYTHON=/opt/afm-math/bin/python" in environment
    assert "--from=build /opt/afm-math /opt/afm-math" in values(image, "COPY")
    settings = read_settings(REPO, {})
    assert settings.python == dict.fromkeys(IMAGES, "/opt/afm/bin/python")


@pytest.mark.parametrize("backend", ["cpu", ""])
@pytest.mark.parametrize("constraints", CONSTRAINTS)
def test_it_installs_what_setup_installs(
    constraints: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "environment"
    script = ["sh", str(FOLDER / "install.sh"), str(folder), constraints]
    environ = {"TORCH_BACKEND": backend} if backend else {}
    venv, install = recorded(tmp_path, "uv", script, **environ)
    assert venv[1] == "venv"
    assert (folder / CONSTRAINTS_FILE).read_text() == constraints
    assert install == wanted_install(constraints, backend, folder, tmp_path, monkeypatch)


def wanted_install(
    constraints: str, backend: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Return setup's own command, with the dependencies in place of the project and without tools for development."""
    calls: list[list[str]] = []
    monkeypatch.setattr("flows.setup.subprocess.run", lambda command, **_: calls.append(command))
    environment = setup.Environment(name=constraints.removesuffix("-gpu"), constraints=constraints)
    root = tmp_path / "root"
    root.mkdir()
    (root / "constraints").symlink_to(REPO / "constraints")
    (root / "pyproject.toml").symlink_to(REPO / "pyproject.toml")
    environment_folder = root / (
        ".venv" if environment.name == "pipeline" else f".venv-{environment.name}"
    )
    environment_folder.mkdir()
    monkeypatch.setattr(setup, "ROOT", root)
    setup.install(environment, "uv", ["--torch-backend", backend] if backend else [], {})
    command = [
        part.replace(str(environment_folder), str(folder)).replace(f"{root}/", "")
        for part in calls[-1]
    ]
    assert command[-2] == "-e"
    extra = command[-1].removeprefix(".[").removesuffix("]").split(",")[0]
    return [*command[:-2], "-r", "pyproject.toml", "--extra", extra]


@pytest.mark.parametrize("gpu", [False, True])
def test_build_names_base_constraints_and_hash(gpu: bool, tmp_path: Path) -> None:
    script = [str(FOLDER / "build.sh"), *(["--gpu"] if gpu else [])]
    calls = recorded(tmp_path, "docker", script, PREFIX="registry.example/team/")
    builds = [call for call in calls if call[1] == "build"]
    assert [call[-2] for call in builds] == [
        f"registry.example/team/afm-{name}:{project_version()}"
        for name in ("pipeline", "serve", "rl")
    ]
    for call, name in zip(builds, ("pipeline", "serve", "rl"), strict=True):
        variant = f"{name}-gpu" if gpu and name in setup.GPU_VARIANTS else name
        arguments = dict(
            call[i + 1].split("=", 1) for i, part in enumerate(call) if part == "--build-arg"
        )
        assert arguments == {
            "BASE": "python@sha256:" + "a" * 64,
            "CONSTRAINTS": variant,
            "CONSTRAINTS_MD5": md5(variant),
            "TORCH_BACKEND": "" if gpu else "cpu",
        }


def test_a_base_that_is_given_is_not_looked_up(tmp_path: Path) -> None:
    calls = recorded(
        tmp_path,
        "podman",
        [str(FOLDER / "build.sh"), "rl"],
        CONTAINER="podman",
        BASE="other@sha256:0",
    )
    assert [call[1] for call in calls] == ["build", "image"]
    assert "BASE=other@sha256:0" in calls[0]


def md5(constraints: str) -> Any:
    from flows.hashing import file_md5

    return file_md5(REPO / "constraints" / f"{constraints}.txt")


def project_version() -> str:
    return str(tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["version"])


def test_the_settings_name_this_version_of_the_images() -> None:
    assert set(read_settings(REPO, {}).images.values()) == {
        f"afm-{name}:{project_version()}" for name in IMAGES
    }
