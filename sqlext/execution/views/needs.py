"""How soon each table of the graph is needed: the target lags of those above it, which it must be as fresh for."""

from __future__ import annotations

from collections.abc import Mapping

from sqlext.execution.views.registry import ViewRecord, created
from sqlext.plan.lineage import Lineage

_NEVER = float("inf")


def needs_of(lineage: Lineage, lags: Mapping[str, float], paced: frozenset[str]) -> dict[str, float]:
    """Return the lag within which each table must be brought up to date, in seconds, by key.

    Args:
        lineage: the graph.
        lags: the target lags that were given, by key.
        paced: the keys of what has an interval of its own, which holds: nobody below it is needed sooner because of it.
    """
    found: dict[str, float] = {}
    for key in reversed([*lineage.nodes]):
        if key in paced:
            continue
        asked = [found[reader] for reader in lineage.readers(key) if reader in found]
        asked += [lags[key]] if key in lags else []
        if asked:
            found[key] = min(asked)
    return found


def needs_of_views(
    lineage: Lineage, records: Mapping[str, ViewRecord], more: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return how soon each view is needed by a target lag, its own or one above it, in seconds, by the view's id.

    Args:
        lineage: the graph.
        records: the views, by id.
        more: the target lags of what has no record yet, by key.
    """
    nodes = {node.id: key for key, node in lineage.nodes.items()}
    specs = {nodes[key]: record.spec for key, record in created(records).items() if key in nodes}
    lags = {key: lag for key, spec in specs.items() if (lag := spec.schedule.target_lag) is not None} | {**(more or {})}
    paced = frozenset(key for key, spec in specs.items() if spec.schedule.has_pace or spec.schedule.is_stopped)
    needs = needs_of(lineage, lags, paced)
    return {spec.id: needs[key] for key, spec in specs.items() if key in needs}


def asked_elsewhere(
    lineage: Lineage, records: Mapping[str, ViewRecord], needs: Mapping[str, float], host: str
) -> dict[str, float]:
    """Return how soon views of one process are needed by those of others, where nothing of its own asks for them as soon.

    Args:
        lineage: the graph.
        records: the views, by id.
        needs: see `needs_of_views`.
        host: the process.

    Returns:
        The seconds, by the view's id.
    """
    here: dict[str, float] = {}  # by key: how soon something of the process takes it along
    found: dict[str, float] = {}
    for key in reversed([*lineage.nodes]):
        record = records.get(lineage.nodes[key].id)
        asked = min((here[reader] for reader in lineage.readers(key)), default=_NEVER)
        if record is not None and record.host == host:
            own = needs.get(record.spec.id, _NEVER)
            if own < min(asked, record.spec.schedule.target_lag or _NEVER):
                found[record.spec.id] = own
            asked = own
        here[key] = asked
    return found
