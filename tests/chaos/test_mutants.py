"""The tests notice mistakes in the SQL: `make mutants` tries them all, this a handful."""

from __future__ import annotations

import psycopg
import pytest

from tools import SetupError
from tools.mutants import HANDFUL, MUTANTS, Mutant, mutant, noticed_by


def test_every_mutant_is_a_change_of_what_is_installed(conn: psycopg.Connection[tuple[object, ...]]) -> None:
    wrong = []
    for each in MUTANTS:
        try:
            with conn.transaction(force_rollback=True):
                each.apply(conn)
        except (SetupError, psycopg.Error) as error:
            wrong.append(str(error))
    assert wrong == []
    assert len({each.name for each in MUTANTS}) == len(MUTANTS) >= 40


def test_a_mutant_whose_text_is_gone_says_so(conn: psycopg.Connection[tuple[object, ...]]) -> None:
    with pytest.raises(SetupError, match=r"messages.extend has no 'never' any more"):
        Mutant("wrong", "extend", (("never", ""),), ()).apply(conn)


@pytest.mark.parametrize("name", HANDFUL)
def test_a_mistake_is_noticed(name: str) -> None:
    assert noticed_by(mutant(name))
