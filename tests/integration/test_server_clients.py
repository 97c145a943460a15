"""All statements, by each kind of client of one server: PyHive, beeline, a Connect client and dbt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.serving.clients import DEADLINE, Serving, by_beeline, by_connect, by_pyhive, serving_ldap_users
from tests.serving.dbt_client import by_dbt
from tests.serving.script import cases, settled

pytestmark = pytest.mark.timeout(3 * DEADLINE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving_ldap_users(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.mark.parametrize("client", [by_pyhive, by_beeline, by_connect, by_dbt])
def test_each_kind_of_client_gets_the_same_answers(
    server: Serving, client: Callable[[Serving, str, Sequence[str]], list[str]]
) -> None:
    database = client.__name__
    server.run(f"CREATE DATABASE {database}")
    script = cases()
    answers = [settled(each, database) for each in client(server, database, [case.sql for case in script])]
    wrong = [f"{case.sql}\n{answer}" for case, answer in zip(script, answers, strict=True) if not case.fits(answer)]
    assert wrong == []
    server.run(f"DROP DATABASE {database} CASCADE")
