"""Sizes of data sets as the Hugging Face Hub names them in cards."""

_SIZES = {
    1_000: "n<1K",
    10_000: "1K<n<10K",
    100_000: "10K<n<100K",
    1_000_000: "100K<n<1M",
    10_000_000: "1M<n<10M",
    100_000_000: "10M<n<100M",
    1_000_000_000: "100M<n<1B",
}


def size_category(rows: int) -> str:
    """Return the Hub's name for a number of rows."""
    return next((name for bound, name in _SIZES.items() if rows < bound), "n>1B")
