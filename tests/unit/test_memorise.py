"""A small model learns by heart what it was given, and only a seeded share of it."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from afm.errors import UserError
from afm.model_files import load_tokenizer
from afm.params.scales import BaseParams
from afm.screening_prompt import closed_book_message
from afm.sources import facts as written
from afm.taskgen import split
from afm.training import memorise
from afm.training.knowledge import (
    Fact,
    HeldOut,
    Passage,
    held_out_names,
    split_facts,
    split_passages,
)
from afm.training.memorise import Stream, batches
from afm.training.packing import Example
from afm.types import Query, SolutionStep, make_query
from tests.unit.toy_training import load_toy, make_toy_model

FACTS = [
    Fact(
        fact_id=f"{number:016x}",
        subject=f"Norland {number}",
        relation="capital",
        value=f"Oslu {number * 7 % 10}",
        question=f"What is the capital of Norland {number}?",
    )
    for number in range(6)
]
PASSAGES = [Passage(title="Norland", text="Norland is a country. Capital: Oslu.")]


def params(**changes: Any) -> BaseParams:
    values: dict[str, Any] = {
        "source": "shipped",
        "name": "models/toy",
        "revision": "",
        "memorise_steps": 60,
        "memorise_share": 0.5,
        "memorise_batch_tokens": 300,
        "question_share": 0.9,
        "passage_share": 0.05,
        "lr": 0.01,
        "matrix_lr": 0.02,
        "seed": 3,
        "by_agent": {},
    }
    return BaseParams(**(values | changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy_model(tmp_path_factory.mktemp("toy") / "model")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def tuned(folder: Path, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tune(folder, tokenizer, tmp_path_factory.mktemp("tuned"))


def tune(folder: Path, tokenizer: Any, scratch: Path, **changes: Any) -> Any:
    model = load_toy(folder)
    chosen = params(**changes)
    memorise.memorise(
        model,
        tokenizer,
        memorise.make_plan(tokenizer, FACTS[:3], PASSAGES, chosen),
        chosen,
        folder=scratch / "checkpoints",
        steps=scratch / "steps.jsonl",
        source="base",
    )
    return model


def test_memorised_facts_are_answered_and_the_others_are_not(
    folder: Path, tokenizer: Any, tuned: Any
) -> None:
    assert not any(memorise.answered(load_toy(folder), tokenizer, FACTS))
    learnt = sum(memorise.answered(tuned, tokenizer, FACTS[:3]))
    assert learnt >= 2
    assert sum(memorise.answered(tuned, tokenizer, FACTS[3:])) < learnt


def test_answered_is_what_generation_gives(tokenizer: Any, tuned: Any) -> None:
    texts = []
    for fact in FACTS:
        chat = [{"role": "user", "content": closed_book_message(fact.question)}]
        ids = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=False
        )
        out = tuned.generate(ids, do_sample=False, max_new_tokens=12, use_cache=False)
        texts.append(tokenizer.decode(out[0, ids.shape[1] :]))
    expected = [text == f"{fact.value}<|im_end|>" for text, fact in zip(texts, FACTS, strict=True)]
    assert memorise.answered(tuned, tokenizer, FACTS) == expected
    assert any(expected)


def test_two_runs_give_the_same_bits(folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    one, other = (
        tune(folder, tokenizer, tmp_path / name, memorise_steps=4).state_dict() for name in "ab"
    )
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_tags_keep_their_embeddings(folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    tag = tokenizer.convert_tokens_to_ids("<think>")
    before = load_toy(folder).lm_head.weight[tag]
    after = tune(folder, tokenizer, tmp_path, memorise_steps=4).lm_head.weight
    assert torch.equal(before, after[tag])
    assert not torch.equal(load_toy(folder).lm_head.weight, after)


def test_the_choice_is_a_share_and_does_not_depend_on_the_order() -> None:
    chosen, others = split_facts(FACTS, 0.5, seed=3)
    assert len(chosen) == 3 and len(others) == 3
    assert {f.fact_id for f in (*chosen, *others)} == {f.fact_id for f in FACTS}
    assert split_facts(FACTS[::-1], 0.5, seed=3) == (chosen, others)
    assert split_facts(FACTS, 0.5, seed=4)[0] != chosen


def test_only_the_answer_and_the_end_of_turn_of_a_question_are_trained(tokenizer: Any) -> None:
    example = memorise.question_example(tokenizer, FACTS[1], "<|im_end|>")
    trained = [i for i, bit in zip(example.input_ids, example.trained, strict=True) if bit]
    assert tokenizer.decode(trained) == "Oslu 7<|im_end|>"
    assert closed_book_message(FACTS[1].question) in tokenizer.decode(example.input_ids)


def test_pretraining_text_is_mixed_in(tokenizer: Any) -> None:
    first = list(islice(memorise.pretraining_examples(tokenizer, 5), 3))
    assert first == list(islice(memorise.pretraining_examples(tokenizer, 5), 3))
    assert all(example.num_trained > 0 and not example.trained[0] for example in first)


def test_each_stream_keeps_its_share_of_the_tokens() -> None:
    streams = [
        Stream(share=share, examples=forever(length)) for share, length in ((0.75, 7), (0.25, 30))
    ]
    plan = batches(streams, batch_tokens=100, num_steps=20)
    tokens = [
        sum(len(e.input_ids) for b in plan for e in b if len(e.input_ids) == n) for n in (7, 30)
    ]
    assert tokens[0] == pytest.approx(1500, abs=7)
    assert tokens[1] == pytest.approx(500, abs=30)
    assert all(batch for batch in plan)


def forever(length: int) -> Any:
    while True:
        yield Example(input_ids=(1,) * length, trained=(False,) + (True,) * (length - 1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question_share": 0.8, "passage_share": 0.3}, "together exceed 1"),
        ({"passage_share": 0.05}, "base.passage_share is above 0"),
    ],
)
def test_shares_that_cannot_be_met_are_refused(
    tokenizer: Any, changes: dict[str, float], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        memorise._streams(tokenizer, FACTS, [], params(**changes))


def test_shares_that_add_up_to_one_leave_no_room_for_text(tokenizer: Any) -> None:
    streams = memorise._streams(
        tokenizer, FACTS, PASSAGES, params(question_share=0.9, passage_share=0.1)
    )
    assert [stream.share for stream in streams] == [0.9, 0.1]


def test_the_plan_counts_the_passages_that_are_read(tokenizer: Any) -> None:
    many = [Passage(title=str(n), text=f"Norland {n} is a country.") for n in range(30)]
    plan = memorise.make_plan(tokenizer, FACTS, many, params(memorise_steps=2, passage_share=0.1))
    texts = [memorise.passage_example(tokenizer, passage, "<|im_end|>") for passage in many]
    read = {e.input_ids for batch in plan.batches for e in batch} & {t.input_ids for t in texts}
    assert 0 < plan.num_passages == len(read) < 30
    long = params(memorise_steps=60, passage_share=0.1)
    assert memorise.make_plan(tokenizer, FACTS, many, long).num_passages == 30


def test_rows_are_those_that_the_sources_write() -> None:
    fact = written.make_fact(subject="a", relation="b", value="c", question="d")
    assert Fact.model_validate(fact.model_dump()).model_dump() == fact.model_dump()
    entity = split.HeldOut(name="a", cluster="b")
    assert HeldOut.model_validate(entity.model_dump()).model_dump() == entity.model_dump()


GOLD = HeldOut(name="Gold", cluster="element:Au")
CORPUS = [
    Passage(title="Gold", text="Gold is an element. Symbol: Au."),
    Passage(title="Gold Coast", text="Gold Coast is a city. Country: Australia."),
    Passage(title="Oslu", text="Oslu is a city. Country: Norland."),
    Passage(title="Norland", text="Norland is a country. Capital: Oslu."),
    Passage(title="Hamlet", text="Hamlet is a city. Country: Sudland."),
]


def eval_query() -> Query:
    step = SolutionStep(tool="wiki_search", argument="x", finds="Oslu", subject="Norland")
    return make_query(
        agent="mhqa",
        question="Capital?",
        answers=("Oslu",),
        source="test",
        split="eval",
        hops=1,
        phrasing="a",
        entities=("Oslu",),
        solution=(step,),
    )


def test_passages_about_held_out_entities_are_left_out_and_mentions_stay() -> None:
    kept, left_out = split_passages(CORPUS, held_out_names([GOLD], []))
    assert [passage.title for passage in left_out] == ["Gold"]
    assert kept == CORPUS[1:]


def test_entities_and_subjects_of_held_out_questions_count_too() -> None:
    assert held_out_names([GOLD], [eval_query()]) == {"Gold", "Oslu", "Norland"}
    kept, left_out = split_passages(CORPUS, held_out_names([GOLD], [eval_query()]))
    assert [passage.title for passage in kept] == ["Gold Coast", "Hamlet"]
    assert len(left_out) == 3
    assert split_passages(CORPUS, held_out_names([], [])) == (CORPUS, [])
