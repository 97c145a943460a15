"""Nexmark's events: persons, auctions and bids, as the benchmark's generator makes them, seeded.

Of 50 events, one is a person, three are auctions, 46 are bids, in this order. Three of four auctions belong to the person that is
hot now, half of the bids go to hot auctions and come by hot channels, and three of four are of hot bidders.

Source: Tucker, Tufte, Papadimos, Maier, "NEXMark: A Benchmark for Queries over Data Streams", and the generator of Apache Beam's
and Flink's nexmark, with its default ratios and without its random lengths of strings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

PERSONS, AUCTIONS, BIDS = 1, 3, 46
ROUND = PERSONS + AUCTIONS + BIDS
TABLES = ("person", "auction", "bid")
FIRST = 1000
"""The first id of persons and of auctions."""
EVENTS_A_SECOND = 10_000
BEGIN = np.datetime64("2026-01-01T00:00:00", "us")
ACTIVE_PEOPLE, IN_FLIGHT = 1000, 100
HOT_SELLERS, HOT_AUCTIONS, HOT_BIDDERS, HOT_CHANNELS = 4, 2, 4, 2
"""One in so many is not hot, for auctions' sellers, bids' auctions, bidders and channels."""
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne")
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CATEGORIES = 5

Integers = np.ndarray[tuple[int], np.dtype[np.int64]]
Times = np.ndarray[tuple[int], np.dtype[np.datetime64]]


@dataclass(frozen=True)
class Events:
    """The tables of a range of events."""

    person: pa.Table
    auction: pa.Table
    bid: pa.Table


def events(first: int, last: int, seed: int) -> Events:
    """Return the events with numbers from `first` to before `last`; the same seed and range give the same."""
    random = np.random.default_rng((seed, first))
    numbers = np.arange(first, last, dtype=np.int64)
    place = numbers % ROUND
    of_person, of_auction = place < PERSONS, (place >= PERSONS) & (place < PERSONS + AUCTIONS)
    of_bid = place >= PERSONS + AUCTIONS
    return Events(_persons(numbers[of_person], random), _auctions(numbers[of_auction], random), _bids(numbers[of_bid], random))


def write(folder: Path, count: int, files: int, seed: int) -> None:
    """Write `count` events as Parquet: folders `person`, `auction` and `bid`, with `files` files each."""
    bounds = [count * at // files for at in range(files + 1)]
    for at in range(files):
        found = events(bounds[at], bounds[at + 1], seed)
        for name in TABLES:
            place = folder / name / f"{at:04d}.parquet"
            place.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(getattr(found, name), place, coerce_timestamps="us")


def _persons(numbers: Integers, random: np.random.Generator) -> pa.Table:
    count = len(numbers)
    first, last = _picked(FIRST_NAMES, count, random), _picked(LAST_NAMES, count, random)
    card = random.integers(0, 10**16, count)
    return pa.table(
        {
            "id": FIRST + numbers // ROUND,
            "name": _joined(" ", first, last),
            "emailAddress": _joined("@", first, pc.binary_join_element_wise(last, "com", ".")),
            "creditCard": _texts(card, 16),
            "city": _picked(CITIES, count, random),
            "state": _picked(STATES, count, random),
            "dateTime": _utc(_times(numbers)),
            "extra": _texts(random.integers(0, 10**18, count), 40),
        }
    )


def _auctions(numbers: Integers, random: np.random.Generator) -> pa.Table:
    count, times = len(numbers), _times(numbers)
    person = numbers // ROUND
    hot = person // 100 * 100
    seller = np.where(random.integers(0, HOT_SELLERS, count) > 0, hot, _one_of_newest(person, ACTIVE_PEOPLE, random))
    initial = _prices(count, random)
    return pa.table(
        {
            "id": FIRST + _auction_number(numbers),
            "itemName": _joined(" ", pa.array(["item"] * count), _texts(random.integers(0, 10**6, count), 6)),
            "description": _texts(random.integers(0, 10**18, count), 60),
            "initialBid": initial,
            "reserve": initial + _prices(count, random),
            "dateTime": _utc(times),
            "expires": _utc(times + random.integers(1, 20_000_000, count).astype("timedelta64[us]")),
            "seller": FIRST + seller,
            "category": 10 + random.integers(0, CATEGORIES, count),
            "extra": _texts(random.integers(0, 10**18, count), 40),
        }
    )


def _bids(numbers: Integers, random: np.random.Generator) -> pa.Table:
    count = len(numbers)
    newest = _auction_number(numbers)
    auction = np.where(
        random.integers(0, HOT_AUCTIONS, count) > 0, newest // 100 * 100, _one_of_newest(newest, IN_FLIGHT, random)
    )
    person = numbers // ROUND
    bidder = np.where(
        random.integers(0, HOT_BIDDERS, count) > 0, person // 100 * 100 + 1, _one_of_newest(person, ACTIVE_PEOPLE, random)
    )
    cold = random.integers(0, 10_000, count)
    is_hot = random.integers(0, HOT_CHANNELS, count) > 0
    channel = pc.if_else(is_hot, _picked(CHANNELS, count, random), _joined("-", pa.array(["channel"] * count), _texts(cold, 1)))
    path = _joined("/", *(_texts(random.integers(0, 10**6, count), 5) for _ in range(3)))
    page = _joined("/", pa.array(["https://www.nexmark.com"] * count), path, pa.array(["item.htm?query=1"] * count))
    with_id = _joined("&channel_id=", page, _texts(cold, 1))
    return pa.table(
        {
            "auction": FIRST + auction,
            "bidder": FIRST + bidder,
            "price": _prices(count, random),
            "channel": channel,
            "url": pc.if_else(is_hot, page, with_id),
            "dateTime": _utc(_times(numbers)),
            "extra": _texts(random.integers(0, 10**18, count), 40),
        }
    )


def _auction_number(numbers: Integers) -> Integers:
    """The number of the newest auction at each event, from 0."""
    rounds, place = numbers // ROUND, numbers % ROUND
    found: Integers = np.maximum(rounds * AUCTIONS + np.clip(place - PERSONS, -1, AUCTIONS - 1), 0)
    return found


def _one_of_newest(newest: Integers, count: int, random: np.random.Generator) -> Integers:
    found: Integers = newest - (random.random(len(newest)) * np.minimum(newest + 1, count)).astype(np.int64)
    return found


def _prices(count: int, random: np.random.Generator) -> Integers:
    return np.round(10 ** (random.random(count) * 6) * 100).astype(np.int64)


def _utc(times: Times) -> pa.Array:
    return pa.array(times, pa.timestamp("us", "UTC"))


def _times(numbers: Integers) -> Times:
    return BEGIN + (numbers * (1_000_000 // EVENTS_A_SECOND)).astype("timedelta64[us]")


def _picked(words: Sequence[str], count: int, random: np.random.Generator) -> pa.Array:
    return pa.array(words).take(pa.array(random.integers(0, len(words), count)))


def _texts(numbers: Integers, length: int) -> pa.Array:
    pad: Callable[..., pa.Array] = pc.utf8_lpad
    return pad(pa.array(numbers).cast(pa.string()), width=length, padding="c")


def _joined(separator: str, *parts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*parts, separator)
