"""Fingerprints of plans: what Catalyst counts on does not count."""

from __future__ import annotations

from sqlext.spark.physical_plan import fingerprint

TEXT = "count(if (NOT _common_expr_3#12L) null else v#7) [id=#44], plan_id=9"


def test_numbers_of_another_query_make_no_difference() -> None:
    assert fingerprint(TEXT) == fingerprint("count(if (NOT _common_expr_4#31L) null else v#80) [id=#1], plan_id=120")


def test_all_else_does() -> None:
    others = [TEXT.replace("v#7", "w#7"), TEXT.replace("count", "sum"), TEXT.replace("null", "1")]
    assert len({fingerprint(text) for text in (TEXT, *others)}) == 4
