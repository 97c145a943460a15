"""What a table of AUTO CDC must hold, computed from all changes at once, in plain Python and without any of sqlext."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

Value = int | None


@dataclass(frozen=True)
class Change:
    """A change of a row.

    Attributes:
        key: of the row; that of a truncation is of no account.
        at: its sequence.
        op: U, it is there with these values; D, it is gone; T, all rows are.
    """

    key: int
    at: int
    op: str
    a: Value = None
    b: Value = None

    @property
    def order(self) -> tuple[object, ...]:
        """Its place among the changes of its key."""
        return (self.at, self.op == "D", *(_order(each) for each in (self.a, self.b)))


def _order(value: Value) -> tuple[bool, int]:
    """NULL comes before all values."""
    return (value is not None, value or 0)


def newest(changes: Iterable[Change], *, ignores_nulls: bool = False, truncates: bool = False) -> set[tuple[Value, ...]]:
    """The rows (key, a, b) of SCD type 1."""
    changes = list(changes)
    end = max((each.at for each in changes if each.op == "T" and truncates), default=None)
    found = set[tuple[Value, ...]]()
    for key, of_key in _by_key(changes):
        alive = [each for each in _after(of_key, end, key) if each.op == "U"]
        if not alive:
            continue
        if ignores_nulls:
            found.add((key, *(_newest_value(alive, name) for name in ("a", "b"))))
        else:
            last = max(alive, key=lambda each: each.order)
            found.add((key, last.a, last.b))
    return found


def _after(changes: list[Change], end: int | None, _key: int) -> list[Change]:
    """The changes after the last one that ended the row."""
    ends = [each.at for each in changes if each.op == "D"] + ([] if end is None else [end])
    return [each for each in changes if not ends or each.at > max(ends)]


def _newest_value(alive: list[Change], name: str) -> Value:
    values = [(each.at, value) for each in alive if (value := getattr(each, name)) is not None]
    return max(values)[1] if values else None


def history(changes: Iterable[Change], *, ignores_nulls: bool = False, tracks_only_a: bool = False) -> set[tuple[Value, ...]]:
    """The rows (key, a, b, start, end) of SCD type 2."""
    found = set[tuple[Value, ...]]()
    for key, of_key in _by_key(changes):
        found |= {(key, *each) for each in _versions(of_key, ignores_nulls, tracks_only_a)}
    return found


def _versions(changes: list[Change], ignores_nulls: bool, tracks_only_a: bool) -> Iterator[tuple[Value, ...]]:
    open_: tuple[Value, Value, int] | None = None
    for at, together in groupby(sorted(changes, key=lambda each: each.order), key=lambda each: each.at):
        same = list(together)
        if same[-1].op == "D":
            if open_ is not None:
                yield (*open_, at)
            open_ = None
            continue
        a, b = same[-1].a, same[-1].b
        if ignores_nulls:
            a, b = _newest_value(same, "a"), _newest_value(same, "b")
        if ignores_nulls and open_ is not None:
            a, b = (open_[0] if a is None else a), (open_[1] if b is None else b)
        if open_ is None:
            open_ = (a, b, at)
        elif a == open_[0] and (tracks_only_a or b == open_[1]):
            open_ = (a, b, open_[2])
        else:
            yield (*open_, at)
            open_ = (a, b, at)
    if open_ is not None:
        yield (*open_, None)


def _by_key(changes: Iterable[Change]) -> list[tuple[int, list[Change]]]:
    found = defaultdict[int, list[Change]](list)
    for each in changes:
        if each.op != "T":
            found[each.key].append(each)
    return sorted(found.items())
