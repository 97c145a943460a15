"""The manager of the flows of a process, as far as it needs no Spark."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sqlext.errors import NotFoundError
from sqlext.execution.flows.manager import FlowManager
from sqlext.execution.flows.registry import EventKind, FlowEvent, FlowRegistry
from sqlext.testing import HandClock
from tests.unit.memory_folder import MemoryFolder
from tests.unit.test_spec_registry import SPEC


class Lease:
    """The sign of life of a process."""

    host_id = "this one"

    def beat(self) -> None:
        """Do nothing."""


def test_a_start_of_a_flow_that_another_process_has_just_dropped_says_so() -> None:
    home: Any = MemoryFolder()
    flows, elsewhere = FlowManager(cast(Any, None), home, cast(Any, Lease()), HandClock(), cast(Any, None)), FlowRegistry(home)
    elsewhere.append(FlowEvent(SPEC.id, EventKind.RESERVED, spec=SPEC.to_json()))
    assert SPEC.id in flows.records()
    elsewhere.append(FlowEvent(SPEC.id, EventKind.DROPPED))
    with pytest.raises(NotFoundError, match=r"There is no flow `views` any more: it was dropped meanwhile\. SHOW FLOWS"):
        flows.run(SPEC, cast(Any, None), cast(Any, None))
