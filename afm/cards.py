"""The data card of a prepared data set, in the form of a Hugging Face dataset card."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

import yaml

from afm.card_sizes import size_category
from afm.params.prepare import PrepareParams
from afm.sources import Attribution, FactSource, TaskSource
from afm.taskgen.dataset import Dataset
from afm.taskgen.summary import count_by, entities
from afm.types import Query

KeyT = TypeVar("KeyT", bound=Hashable)

"""Upper bound of rows -> size category of the Hub."""

FACT_SUMMARY = """\
Questions over real facts, the passages that state the facts, and known solution chains.

`sft` and `rl` are for training, `eval` is held out. No entity, and no answer that is a name or a
code, stands in both: entities are held out as whole clusters (a country with its cities and
airports; one element). The corpus holds the passages of all entities.
"""
TASK_SUMMARY = """\
Tasks that a short program solves, with a reference program and an answer or unit tests.

`sft` and `rl` are for training, `eval` is held out: part of its task families stand in no other
split, and none of its tasks does.
"""
TRIED_FACTS = "Every look-up was tried with the agent's tools; what they do not find is left out.\n"
TRIED_TASKS = "Every program was run; where it does not print the answer, the task is left out.\n"
LIMITS = """\
## Limits

Questions are made from templates, and facts are as good as the packages: head counts are rounded
and age, cities with ambiguous names are left out. Who trains on this learns a format and the use
of tools rather than geography.
"""


def data_card(
    dataset: Dataset,
    sources: Mapping[str, FactSource] | Mapping[str, TaskSource],
    *,
    agent: str,
    prepare: PrepareParams,
) -> str:
    """Write the card: what is in the data, where it comes from, and under which licences."""
    attributions = [a for source in sources.values() for a in source.attributions]
    is_factual = bool(dataset.passages)
    sections = (
        _front_matter(dataset, attributions, agent),
        f"# Embedded queries for agent `{agent}`\n",
        FACT_SUMMARY if is_factual else TASK_SUMMARY,
        _counts(dataset),
        _sources(sources),
        _making(dataset, prepare),
        LIMITS,
    )
    return "\n".join(sections)


def _front_matter(dataset: Dataset, attributions: Iterable[Attribution], agent: str) -> str:
    rows = sum(len(queries) for queries in dataset.questions.queries.values())
    has_geonames = any(a.data_license == "CC-BY-4.0" for a in attributions)
    files = [
        {"split": split, "path": f"queries/{split}.jsonl"} for split in dataset.questions.queries
    ]
    fields = {
        "language": ["en"],
        "license": "cc-by-4.0" if has_geonames else "apache-2.0",
        "pretty_name": f"AFM Pipeline, embedded queries for agent {agent}",
        "size_categories": [size_category(rows)],
        "task_categories": ["question-answering" if dataset.passages else "text-generation"],
        "tags": ["agents", "tool-use", "multi-hop", "generated-questions"],
        "configs": [{"config_name": "queries", "data_files": files}],
    }
    return f"---\n{yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)}---\n"


def _counts(dataset: Dataset) -> str:
    queries = dataset.questions.queries
    train = entities([*queries["sft"], *queries["rl"]])
    held_out = entities(queries["eval"])
    return "\n".join(
        (
            "## Counts\n",
            f"Passages: {len(dataset.passages)}. Closed-book facts of the training side: "
            f"{len(dataset.facts)}.",
            f"Entities on solution chains: {len(train)} in training questions, {len(held_out)} in "
            "held-out ones.\n",
            _table("hops", dataset, lambda query: query.hops),
            _table("phrasing", dataset, lambda query: query.phrasing),
            _table("source", dataset, lambda query: query.source),
        )
    )


def _table(label: str, dataset: Dataset, key: Callable[[Query], KeyT]) -> str:
    columns = {s: count_by(rows, key) for s, rows in dataset.questions.queries.items()}
    keys = sorted({str(value): value for column in columns.values() for value in column}.items())
    lines = [f"| {label} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for text, value in keys:
        counts = (str(column[value]) for column in columns.values())
        lines.append(f"| {text} | {' | '.join(counts)} |")
    totals = (str(column.total()) for column in columns.values())
    return "\n".join((*lines, f"| all | {' | '.join(totals)} |", ""))


def _sources(sources: Mapping[str, FactSource] | Mapping[str, TaskSource]) -> str:
    lines = [
        "## Sources, licences and attribution\n",
        "| source | package | version | licence of code | licence of data | origin of data |",
        "|---|---|---|---|---|---|",
    ]
    for name, source in sources.items():
        for a in source.attributions:
            package = f"[{a.package}]({a.url}) | {a.version}"
            terms = f"{a.code_license} | {a.data_license} | {a.data_origin}"
            lines.append(f"| {name} | {package} | {terms} |")
        if not source.attributions:
            lines.append(f"| {name} | this project | | Apache-2.0 | Apache-2.0 | own templates |")
    return "\n".join((*lines, ""))


def _making(dataset: Dataset, prepare: PrepareParams) -> str:
    return "\n".join(
        (
            "## How it was made\n",
            "By stage `prepare`, offline, from the packages above.",
            TRIED_FACTS if dataset.passages else TRIED_TASKS,
            f"Seed: {prepare.seed}. Share of clusters held out: {prepare.held_out_entities}.",
            f"Shares of 1 to 4 hops: {', '.join(map(str, prepare.hop_shares))}.",
            f"Share that combines two chains: {prepare.combined_share}.\n",
            "| left out because | count |",
            "|---|---|",
            *(f"| {reason} | {count} |" for reason, count in sorted(dataset.dropped.items())),
            "",
        )
    )
