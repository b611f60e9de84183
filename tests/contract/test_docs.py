"""Documentation says what is there: keys, values, modules, files, links; and every knob is explained."""

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from afm.params.reading import cut, read_tree
from afm.params.root import Params, read_params
from afm.params.scales import AgentSection
from flows.audit_page.drift import Row, markdown_rows
from tests.support.toy import REPO

MAP = REPO / "docs" / "paper-to-code.md"
DOCS = sorted([*REPO.glob("*.md"), *REPO.glob("docs/**/*.md")])
DECISIONS = sorted((REPO / "docs" / "decisions").glob("*.md"))
AGENTS = ("mhqa", "web", "code")
REFERENCE_SCALE = "tiny"
"""The scale at which params.yaml explains its keys."""

QUOTED = re.compile(r"`([^`\n]+)`")
DOTTED = re.compile(r"[a-z_]+(?:\.(?:\w+|<\w+>))+")
PATH = re.compile(r"(?:afm|stages|flows|tests|docs|constraints|models|bin)/[\w./-]*\w")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SOURCE = re.compile(r"\b(?:paper|script|ours|DAPO)\b")
PACKAGES = ("afm", "stages", "flows")


def params() -> Params:
    return read_params(REPO / "params.yaml")


@cache
def tree() -> dict[str, Any]:
    return read_tree(REPO / "params.yaml")


def rows(path: Path, *wanted: str) -> list[Row]:
    """Return the rows of all tables of a document that have the wanted columns."""
    found = markdown_rows(path.read_text(encoding="utf-8"))
    return [row for row in found if set(wanted) <= row.keys()]


def quoted(text: str) -> list[str]:
    return QUOTED.findall(text)


def expanded(key: str) -> list[str]:
    """Put every scale and agent into a key with placeholders."""
    scales = tree()["scales"] if "<scale>" in key else [""]
    agents = AGENTS if "<agent>" in key else ("",)
    return [key.replace("<scale>", s).replace("<agent>", a) for s in scales for a in agents]


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_params_keys_exist(path: Path) -> None:
    for token in quoted(path.read_text(encoding="utf-8")):
        if DOTTED.fullmatch(token) and token.split(".")[0] in tree():
            for key in expanded(token):
                cut(tree(), key, where=path.name)


def test_the_params_column_of_the_map_holds_keys_alone() -> None:
    found = [row["Params"] for row in rows(MAP, "Params")]
    assert len(found) > 100
    keys = [key for cell in found for key in quoted(cell)]
    for key in keys:
        assert key.split(".")[0] in tree(), key
    for cell in found:
        assert cell == "-" or cell == ", ".join(f"`{key}`" for key in quoted(cell)), cell


def test_single_values_in_the_map_are_those_of_params() -> None:
    compared = 0
    for row in rows(MAP, "Params", "Ours"):
        keys, values = quoted(row["Params"]), quoted(row["Ours"])
        if len(keys) == 1 and "<" not in keys[0] and row["Ours"] == f"`{(values or [''])[0]}`":
            assert yaml.safe_load(values[0]) == cut(tree(), keys[0], where=MAP.name), row
            compared += 1
    assert compared > 20


def shown(value: Any) -> Any:
    """Return a value as the map writes it; a response schedule is written in words."""
    if not isinstance(value, tuple):
        return value
    words = [
        f"{stage.max_response_tokens}" + (f" after step {stage.from_step}" * bool(stage.from_step))
        for stage in value
    ]
    return yaml.safe_load("; ".join(words))


def test_values_by_scale_in_the_map_are_those_of_params() -> None:
    scales = params().scales
    compared = rows(MAP, "Params", "Agent")
    assert len(compared) > 30
    for row in compared:
        (key,) = quoted(row["Params"])
        section, name = key.removeprefix("scales.<scale>.").split(".")
        for scale in scales.keys() & row.keys():
            (written,) = quoted(row[scale])
            settings = getattr(scales[scale], section)
            assert isinstance(settings, AgentSection)
            for agent in AGENTS if row["Agent"] == "all" else (row["Agent"],):
                value = shown(getattr(settings.for_agent(agent), name))
                assert yaml.safe_load(written) == value, f"{key} of {agent} at {scale}"


def module_file(dotted: Sequence[str]) -> tuple[Path, Sequence[str]] | None:
    """Return the longest module that a dotted name starts with, and the names that are left."""
    for length in range(len(dotted), 0, -1):
        stem = REPO.joinpath(*dotted[:length])
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if path.exists():
                return path, dotted[length:]
    return None


def defined(nodes: Sequence[ast.stmt]) -> dict[str, Sequence[ast.stmt]]:
    """Map each name that statements define to what a class of that name contains."""
    names: dict[str, Sequence[ast.stmt]] = {}
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names[node.name] = node.body if isinstance(node, ast.ClassDef) else ()
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id: () for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: () for alias in node.names}
    return names


def is_defined(name: str) -> bool:
    """Tell whether `package.module.Name.attribute` exists, without importing anything."""
    found = module_file(name.split("."))
    if found is None or (found[0].name == "__init__.py" and found[0].parent.parent == REPO):
        return False
    path, left = found
    nodes: Sequence[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for part in left:
        names = defined(nodes)
        if part not in names:
            return False
        nodes = names[part]
    return True


def test_a_name_that_is_gone_would_be_found() -> None:
    assert is_defined("afm.rollout.rollout")
    assert is_defined("afm.types.StopReason.FAILED")
    assert not is_defined("afm.rollout.no_such_thing")
    assert not is_defined("afm.no_such_module")


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_modules_and_names_exist(path: Path) -> None:
    for token in quoted(path.read_text(encoding="utf-8")):
        if DOTTED.fullmatch(token) and token.split(".")[0] in PACKAGES:
            assert is_defined(token), f"{path.name}: {token}"


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_paths_exist(path: Path) -> None:
    for token in quoted(path.read_text(encoding="utf-8")):
        if PATH.fullmatch(token):
            assert (REPO / token).exists(), f"{path.name}: {token}"


def slugs(path: Path) -> set[str]:
    """Return the anchors of a document's headings."""
    lines = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    heads = re.findall(r"^#+ (.+)$", lines, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_links_resolve(path: Path) -> None:
    for link in LINK.findall(path.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", link):
            name, _, anchor = link.partition("#")
            target = path.parent / name if name else path
            assert target.exists(), f"{path.name}: {link}"
            assert not anchor or anchor in slugs(target), f"{path.name}: {link}"


def keys(node: yaml.Node, path: tuple[str, ...], block: tuple[int, ...]) -> Iterator[Any]:
    """Yield path, line numbers (its own, its block's) and value of every key that has a line of its own."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style:
        for key, value in node.value:
            own = key.start_mark.line
            yield (*path, key.value), (own, *block), value
            yield from keys(value, (*path, key.value), (own,))


def test_every_knob_has_a_comment_with_its_source() -> None:
    text = (REPO / "params.yaml").read_text(encoding="utf-8")
    comments = [line.partition("#")[2] for line in text.splitlines()]
    root = yaml.compose(text)
    assert root is not None
    found = list(keys(root, (), ()))
    explained = {path for path, at, _ in found if any(SOURCE.search(comments[n]) for n in at)}
    knobs = [path for path, _, value in found if not list(keys(value, (), ()))]
    assert len(knobs) > 300
    for path in knobs:
        twin = ("scales", REFERENCE_SCALE, *path[2:])
        assert path in explained or (path[0] == "scales" and twin in explained), ".".join(path)


def test_decisions_are_numbered_and_dated() -> None:
    assert [path.name[:4] for path in DECISIONS] == [
        f"{number:04d}" for number in range(1, len(DECISIONS) + 1)
    ]
    for path in DECISIONS:
        title, _, date, *_ = path.read_text(encoding="utf-8").splitlines()
        assert title.startswith(f"# {path.name[:4]} "), path.name
        assert re.fullmatch(r"Date: \d{4}-\d{2}-\d{2}", date), path.name
