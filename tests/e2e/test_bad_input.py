"""Bad input stops a real run early, with one message that says what, which value, what is allowed and what to do.

All cases share one checkout in which the pipeline has run up to SFT; each mistake is undone after it, and at the end
nothing needs to run again.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.checkout import SFT, Checkout, alone, refused, repro
from tests.support.flow_runs import shared_server
from tests.support.toy import REPO

TRAJECTORIES = "data/rollout/mhqa/trajectories.jsonl"

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("bad") / "checkout")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with shared_server(tmp_path_factory.mktemp("prefect")) as variables:
        yield variables


AFM_RUN = ["flows.cli", "run"]

SECTIONS = [
    *(
        "run",
        "prepare",
        "agents.mhqa",
        "sandbox",
        "teacher",
        "rollout",
        "filter",
        "screen",
        "select",
    ),
    *("evaluate", "score", "report", "scales.smoke", "scales.smoke.base", "scales.smoke.sft"),
    *("scales.smoke.dapo", "scales.smoke.serve", "teacher.mistakes", "filter.complexity"),
]


QUICK = ("run", "agents.mhqa", "scales.smoke.dapo", "teacher.mistakes")
"""One section of each depth; the others are soak."""


@pytest.mark.parametrize(
    "section",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.soak) for name in SECTIONS],
)
def test_a_misspelt_key_in_any_section(checkout: Checkout, section: str) -> None:
    node = checkout.tree()
    for part in section.split("."):
        node = node[part]
    key = next(iter(node))
    misspelt = {f"{name}x" if name == key else name: value for name, value in node.items()}
    with checkout.params(section, misspelt):
        output = refused(checkout, AFM_RUN, f"unknown key '{section}.{key}x'; allowed here: ")
    assert f"missing key '{section}.{key}'" in output
    assert key in output.partition("allowed here: ")[2]


def test_a_misspelt_section(checkout: Checkout) -> None:
    """DVC itself stops here, and names file and section; `afm run` says what is allowed."""
    text = (checkout.root / "params.yaml").read_text()
    with checkout.content("params.yaml", text.replace("\nfilter:", "\nfiler:")):
        refused(checkout, repro(SFT), "Parameters 'filter' are missing from 'params.yaml'")
        refused(checkout, AFM_RUN, "unknown key 'filer'; allowed here: agents, ", "missing key 'f")


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A value in params.yaml that is wrong, and what is said of it."""

    key: str
    value: Any
    target: str
    said: tuple[str, ...]


VALUES = [
    Wrong(key="filter.seed", value="29", target="filter@mhqa", said=("seed", "integer", "'29'")),
    Wrong(
        key="scales.smoke.sft.lr", value="fast", target=SFT, said=("sft: lr", "number", "'fast'")
    ),
    Wrong(key="rollout", value=[], target="rollout@mhqa", said=("RolloutParams", "[]")),
    Wrong(
        key="scales.smoke.sft.epochs", value=-1.0, target=SFT, said=("greater than 0", "got -1.0")
    ),
    Wrong(
        key="filter.reflection.keep_share_without",
        value=1.5,
        target="filter@mhqa",
        said=("reflection.keep_share_without", "less than or equal to 1", "got 1.5"),
    ),
    Wrong(
        key="agents.mhqa.tools",
        value=["wiki_serch"],
        target="prepare@mhqa",
        said=("tools.0", "'wiki_search', 'web_search'", "got 'wiki_serch'"),
    ),
    Wrong(
        key="agents.mhqa.reward",
        value="exactmatch",
        target="rollout@mhqa",
        said=("reward", "'exact_match', 'exact_match_first'", "'exactmatch'"),
    ),
    Wrong(
        key="teacher.kind",
        value="scriptd",
        target="rollout@mhqa",
        said=("kind", "'scripted' or 'recorded'", "'scriptd'"),
    ),
    Wrong(
        key="prepare.sources.mhqa",
        value=["geografy", "elements"],
        target="prepare@mhqa",
        said=("'geografy'", "prepare.sources.mhqa", "known: geography, elements"),
    ),
    Wrong(
        key="scales.smoke.base.by_agent",
        value={"mhqa": {"memorise_step": 3}},
        target="base@mhqa-smoke",
        said=("unknown key 'memorise_step'", "memorise_steps"),
    ),
    Wrong(
        key="filter.complexity.minimum",
        value=50,
        target="filter@mhqa",
        said=("none of 60 trajectories", "too_few_hops", "lower filter.complexity.minimum"),
    ),
    Wrong(
        key="scales.smoke.sft.max_tokens",
        value=20,
        target=SFT,
        said=("no example is left to train on", "max_tokens=20", "raise sft.max_tokens"),
    ),
    Wrong(
        key="teacher.recording",
        value={"path": "nowhere.jsonl", "sha256": "0"},
        target="rollout@mhqa",
        said=("teacher.recording.path", "no such file: nowhere.jsonl"),
    ),
]
"""Wrong types, values out of range, unknown names, and values with which nothing is left."""


@pytest.mark.parametrize("wrong", VALUES, ids=[wrong.key for wrong in VALUES])
def test_a_wrong_value(checkout: Checkout, wrong: Wrong) -> None:
    is_recorded = wrong.key == "teacher.recording"
    kind = "recorded" if is_recorded else checkout.tree()["teacher"]["kind"]
    if wrong.key == "teacher.kind":
        kind = wrong.value
    with checkout.params("teacher.kind", kind), checkout.params(wrong.key, wrong.value):
        refused(checkout, repro(wrong.target), *wrong.said)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("run.scales", ["smoek"], ("unknown scale 'smoek'", "'smoke'", "'tiny'")),
        ("run.agents", ["mhqaa"], ("run.agents.0", "'web', 'mhqa' or 'code'", "'mhqaa'")),
        ("run.variants", ["base", "sftt"], ("run.variants.1", "'sft'", "'sftt'")),
        ("screen.base_scale", "nope", ("unknown scale 'nope'", "'smoke'")),
    ],
)
def test_an_unknown_name_of_a_cell(
    checkout: Checkout, key: str, value: Any, said: tuple[str, ...]
) -> None:
    with checkout.params(key, value):
        refused(checkout, AFM_RUN, *said)


def test_no_params_file(checkout: Checkout) -> None:
    with checkout.content("params.yaml", None):
        refused(checkout, AFM_RUN, "no such params file", "params.yaml")
        refused(checkout, repro(SFT), "run.agents")


def test_params_that_are_no_yaml(checkout: Checkout) -> None:
    with checkout.content("params.yaml", "run:\n  agents: [mhqa\nfilter: 3\n"):
        refused(checkout, AFM_RUN, "params.yaml is not YAML", "line 3")
        refused(checkout, repro(SFT), "params.yaml", "line")


def test_an_unknown_target(checkout: Checkout, server: dict[str, str]) -> None:
    said = ("unknown stage 'sfft'; the pipeline has", "sft@mhqa-smoke")
    refused(checkout, [*AFM_RUN, "sfft"], *said, **server)


def cut(line: str) -> str:
    return line[:50] + "\n"


def with_field(**fields: Any) -> Callable[[str], str]:
    return lambda line: json.dumps(json.loads(line) | fields) + "\n"


@pytest.mark.parametrize(
    ("path", "edit", "target", "said"),
    [
        (TRAJECTORIES, cut, "filter@mhqa", ("malformed Trajectory", "Invalid JSON")),
        (
            TRAJECTORIES,
            with_field(stop_reason="tired"),
            "filter@mhqa",
            ("malformed Trajectory: stop_reason", "'answered'", "got 'tired'"),
        ),
        (
            TRAJECTORIES,
            with_field(query_id="0" * 16),
            "filter@mhqa",
            ("unknown query_id '0000000000000000'", "run prepare and rollout again"),
        ),
        (
            "data/prepare/mhqa/queries/sft.jsonl",
            with_field(question=7),
            "rollout@mhqa",
            ("malformed Query: question", "valid string", "got 7", "mend the line"),
        ),
        (
            "data/prepare/mhqa/index/passages.jsonl",
            with_field(title=None),
            "rollout@mhqa",
            ("malformed Passage: title", "got None"),
        ),
        (
            "data/filter/mhqa/accepted.jsonl",
            with_field(segments="x"),
            SFT,
            ("malformed Trajectory: segments", "got 'x'"),
        ),
    ],
)
def test_a_malformed_row(
    checkout: Checkout, path: str, edit: Callable[[str], str], target: str, said: tuple[str, ...]
) -> None:
    checkout.bring_back(path)
    lines = (checkout.root / path).read_text().splitlines(keepends=True)
    lines[3] = edit(lines[3])
    with checkout.content(path, "".join(lines)):
        refused(checkout, alone(target), f"{path}:4: ", *said)


def test_a_recording_that_is_not_the_pinned_one_or_malformed(checkout: Checkout) -> None:
    recording = checkout.root / "recording.jsonl"
    recording.write_text('{"a": 1}\n')
    found = subprocess.run(["sha256sum", recording], capture_output=True, text=True).stdout[:64]
    with checkout.params("teacher.kind", "recorded"):
        pinned = {"path": recording.name, "sha256": "00"}
        with checkout.params("teacher.recording", pinned):
            refused(checkout, repro("rollout@mhqa"), f"has {found}, params have 00", "put the new")
        with checkout.params("teacher.recording", pinned | {"sha256": found}):
            refused(checkout, repro("rollout@mhqa"), "recording.jsonl:1: malformed Trajectory")


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("data/prepare/mhqa/corpus.jsonl", "base@mhqa-smoke"),
        ("models/tiny-base", "base@mhqa-smoke"),
    ],
)
def test_a_missing_file(checkout: Checkout, path: str, target: str) -> None:
    checkout.bring_back(path)
    with checkout.content(path, None):
        refused(checkout, alone(target), "No such file or directory", path)


def test_a_missing_weight_file(checkout: Checkout) -> None:
    with checkout.content("models/tiny-base/model.safetensors", None):
        said = ("models/tiny-base holds no model.safetensors", "`make base-model`")
        refused(checkout, repro("base@mhqa-smoke"), *said)


def test_a_missing_environment(checkout: Checkout, server: dict[str, str]) -> None:
    link = checkout.root / ".venv-serve"
    target = link.readlink() if link.is_symlink() else None
    if target is not None:
        link.unlink()
    said = ("environment 'serve' is not installed: no ", "run `make envs`", "AFM_SERVE_PYTHON")
    try:
        refused(checkout, repro("screen@mhqa"), *said)
        output = refused(checkout, [*AFM_RUN, "screen"], *said, **server)
        assert "submit: " not in output, "before any stage began"
    finally:
        if target is not None:
            link.symlink_to(target)


@pytest.mark.skipif(not (REPO / ".venv-serve").exists(), reason="no .venv-serve: run `make envs`")
def test_a_server_that_never_answers(checkout: Checkout) -> None:
    with checkout.params("scales.smoke.serve.startup_timeout_s", 1.0):
        said = ("did not answer within serve.startup_timeout_s 1 s", "vllm.log")
        refused(checkout, repro("screen@mhqa"), *said)


def test_a_failing_stage_ends_a_flow_with_its_message(
    checkout: Checkout, server: dict[str, str]
) -> None:
    with checkout.params("filter.complexity.minimum", 50):
        said = "afm: filter@mhqa failed: filter: none of 60 trajectories of agent 'mhqa'"
        output = refused(checkout, [*AFM_RUN, "filter"], said, **server)
    assert said in output.splitlines()[-1]


def test_afterwards_nothing_runs_again(checkout: Checkout) -> None:
    """Last in this file: all mistakes are undone."""
    code, output = checkout.run(*repro(SFT))
    assert code == 0, output
    assert "starting" not in output
    assert checkout.outputs() == checkout.outs
    assert checkout.everything_made() == checkout.made
