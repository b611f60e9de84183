"""The closed-book question: what screening asks, and what the small base model memorises."""

INSTRUCTION = "Answer from memory."
"""No tools are offered: a right answer shows knowledge, not search (paper, section 3.3)."""


def closed_book_message(question: str) -> str:
    """Return the user message that asks for an answer without tools, which is the whole reply."""
    return f"{INSTRUCTION}\n\nQuestion: {question}"
