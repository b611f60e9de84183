"""What the tokenizer is trained on: generated documents and a little generic English."""

from collections.abc import Iterator

from afm.training.pretrain_text.stream import document

ENGLISH = (
    "I need to find two facts, one after the other, and then give the answer.",
    "First I search for the first entity; after that I search again with what I found.",
    "The passage is not about the right entity, so I search again with a different query.",
    "This result does not mention what I want. Let me check it and try another way.",
    "Now I know both values and can compare them: the first is larger than the second.",
    "Let me double check the answer against the passage. It is correct, with a score of 1.",
    "The suggested answer is supported by the observation, so the final answer is ready.",
    "Which of these has more people, which is older, and by how many years do they differ?",
    "How many people live in the city? In which year was it founded? Who wrote the book?",
    "What is the sum of the two numbers? What is the difference between them?",
    "One fact about it is enough. Two facts are needed. Three steps remain before the end.",
    "It says so in the text. There is no result for this search. The page was not found.",
    "The number of the first is greater than that of the second, which means the first one.",
    "The airport serves the city and lies in the country; its code has three letters.",
    "The element has an atomic number, an atomic mass and a symbol.",
    "The country has a capital, a currency, a continent and a population of many million.",
)
"""Sentences in the words of questions and thoughts, so that such words become tokens."""

ENGLISH_PER_DOCUMENT = 3
"""English sentences after each document: enough for their words to become tokens."""


def tokenizer_texts(seed: int, count: int) -> Iterator[str]:
    """``count`` documents of the later mix, with English sentences in between."""
    for number in range(count):
        yield document(f"tokenizer:{seed}:{number}").text
        for place in range(ENGLISH_PER_DOCUMENT):
            yield ENGLISH[(number * ENGLISH_PER_DOCUMENT + place) % len(ENGLISH)]
