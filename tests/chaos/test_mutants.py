"""The tests notice mistakes in the SQL: `make mutants` tries them all, this a handful."""

from __future__ import annotations

import psycopg
import pytest

from tools import ROOT, SetupError
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
    assert len({each.name for each in MUTANTS}) == len(MUTANTS) >= 100


def test_the_tests_that_mutants_name_exist() -> None:
    gone = []
    for each in MUTANTS:
        for named in (*each.tests, *([each.by] if each.by else ())):
            path, _, function = named.partition("::")
            if function and f"def {function.partition('[')[0]}(" not in (ROOT / path).read_text():
                gone.append((each.name, named))
    assert gone == []


def test_a_mutant_whose_text_is_gone_says_so(conn: psycopg.Connection[tuple[object, ...]]) -> None:
    with pytest.raises(SetupError, match=r"messages.extend has no 'never' any more"):
        Mutant("wrong", "extend", (("never", ""),), ()).apply(conn)


@pytest.mark.parametrize("name", HANDFUL)
def test_a_mistake_is_noticed(name: str) -> None:
    assert noticed_by(mutant(name))
