"""How a streaming query of a flow runs, as the flow decides it by its options (`buffering.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from sqlext.execution.state.row_checks import FlowChecks
from sqlext.plan.job_graph import HybridSource
from sqlext.spark.storage import HadoopPath


@dataclass(frozen=True)
class IntakeSettings:
    """How a streaming query of a flow runs.

    Attributes:
        flow: the flow's name.
        name: of the query, for Spark's UI and logs.
        hybrid: the hybrid source that it reads, if it does.
        home: where checkpoint and buffer lie.
        epoch: of the driver.
        max_entries: how many groups memory may buffer; None: the buffer is durable; infinite: memory holds one micro-batch, which
            is in the table before Spark commits it.
        takes_all: whether a micro-batch takes all there is, whatever limits the sources have.
        is_own: whether the flow has made its target.
        staged_in: of a query that appends rows, the location of its table.
        checks: of its rows, if it appends them and there are constraints.
        flushes_empty: whether micro-batches without rows are flushed too: their commits tell how far the sources were read.
        flushes_first: whether its first micro-batch is flushed even without rows: an aggregate without GROUP BY has a row over
            none, and so may a query above.
        grows: whether it gets the columns that files have later.
    """

    flow: str
    name: str
    hybrid: HybridSource | None
    home: HadoopPath
    epoch: int
    max_entries: float | None
    takes_all: bool
    is_own: bool
    staged_in: str | None = None
    checks: FlowChecks | None = None
    flushes_empty: bool = False
    flushes_first: bool = False
    grows: bool = False
