"""The tests notice mistakes in the SQL: `make mutants` tries them all, this one."""

from __future__ import annotations

import psycopg
import pytest

from tools import ROOT, SetupError
from tools.mutants import MUTANTS, Mutant, mutant, noticed_by


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
        for named in each.tests:
            path, _, function = named.partition("::")
            if function and f"def {function.partition('[')[0]}(" not in (ROOT / path).read_text():
                gone.append((each.name, named))
    assert gone == []


def test_a_mutant_whose_text_is_gone_says_so(conn: psycopg.Connection[tuple[object, ...]]) -> None:
    with pytest.raises(SetupError, match=r"messages.extend has no 'never' any more"):
        Mutant("wrong", "extend", (("never", ""),), ()).apply(conn)


def test_a_text_is_found_however_its_lines_are_broken_but_not_inside_of_a_word(
    conn: psycopg.Connection[tuple[object, ...]],
) -> None:
    change = (
        "check_duration( 'lease_for',extend.lease_for,\n    '1 millisecond'",
        "check_duration('mutated', NULL, '0'",
    )
    with conn.transaction(force_rollback=True):
        Mutant("broken", "extend", (change,), ()).apply(conn)
        found = conn.execute("SELECT prosrc FROM pg_proc WHERE proname = 'extend'").fetchone()
    assert found is not None
    assert "PERFORM messages.check_duration('mutated', NULL, '0', '12 hours')" in str(found[0])
    for cut in ("PERFORMmessages.check_duration", " heck_duration"):
        with pytest.raises(SetupError, match="any more"):
            Mutant("cut", "extend", ((cut, ""),), ()).apply(conn)


def test_a_mistake_is_noticed() -> None:
    assert noticed_by(mutant("archive: no token"))
