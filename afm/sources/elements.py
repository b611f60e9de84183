"""Chemical elements from `periodictable`."""

from afm.sources.attribution import Attribution
from afm.sources.graph import Clause, Entity

ATTRIBUTIONS = (
    Attribution(
        package="periodictable",
        code_license="public domain (single files BSD-3-Clause)",
        data_license="public domain; atomic masses as published by IUPAC CIAAW",
        data_origin="IUPAC Commission on Isotopic Abundances and Atomic Weights, AME 2020",
        url="https://pypi.org/project/periodictable/",
    ),
)


def load_elements(_cities_per_country: int) -> tuple[Entity, ...]:
    """Return the 118 elements, each a cluster of its own."""
    import periodictable

    return tuple(
        Entity(
            name=element.name.capitalize(),
            kind="element",
            source="elements",
            cluster=f"element:{element.symbol}",
            clauses=(
                Clause(label="symbol", value=element.symbol, is_named=True),
                Clause(label="atomic number", value=str(element.number)),
                Clause(label="mass", value=f"{element.mass:.1f}"),
            ),
        )
        for element in periodictable.elements
        if element.number >= 1
    )
