"""The tests notice mistakes in SQL and Python: `make mutants` tries them all, this one of each."""

from __future__ import annotations

import psycopg
import pytest

from tools import ROOT, SetupError
from tools.mutants import MUTANTS, PYTHON_MUTANTS, Mutant, PythonMutant, mutant, noticed_by


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


def test_every_mutant_of_python_is_a_change_of_the_package() -> None:
    wrong = []
    for each in PYTHON_MUTANTS:
        try:
            each.text()
        except (SetupError, OSError, SyntaxError) as error:
            wrong.append(f"{each.name}: {error}")
    assert wrong == []
    assert len({each.name for each in (*MUTANTS, *PYTHON_MUTANTS)}) == len(MUTANTS) + len(PYTHON_MUTANTS)
    assert len(PYTHON_MUTANTS) >= 60


def test_the_tests_that_mutants_name_exist() -> None:
    gone = []
    for each in (*MUTANTS, *PYTHON_MUTANTS):
        for named in each.tests:
            path, _, function = named.partition("::")
            if function and f"def {function.partition('[')[0]}(" not in (ROOT / path).read_text():
                gone.append((each.name, named))
    assert gone == []


def test_a_mutant_whose_text_is_gone_says_so(conn: psycopg.Connection[tuple[object, ...]]) -> None:
    with pytest.raises(SetupError, match=r"messages.extend has no 'never' any more"):
        Mutant(name="wrong", function="extend", changes=(("never", ""),), tests=()).apply(conn)


def test_a_text_is_found_however_its_lines_are_broken_but_not_inside_of_a_word(
    conn: psycopg.Connection[tuple[object, ...]],
) -> None:
    change = (
        "check_duration( 'lease_for',extend.lease_for,\n    '1 millisecond'",
        "check_duration('mutated', NULL, '0'",
    )
    with conn.transaction(force_rollback=True):
        Mutant(name="broken", function="extend", changes=(change,), tests=()).apply(conn)
        found = conn.execute("SELECT prosrc FROM pg_proc WHERE proname = 'extend'").fetchone()
    assert found is not None
    assert "PERFORM messages.check_duration('mutated', NULL, '0', '12 hours')" in str(found[0])
    for cut in ("PERFORMmessages.check_duration", " heck_duration"):
        with pytest.raises(SetupError, match="any more"):
            Mutant(name="cut", function="extend", changes=((cut, ""),), tests=()).apply(conn)


def test_a_mutant_of_python_whose_text_is_gone_says_so() -> None:
    with pytest.raises(SetupError, match=r"worker.py has 'never, ever' 0 times, not once"):
        PythonMutant(
            name="wrong", file="airflow_provider_pgqueue/core/worker.py", changes=(("never, ever", ""),), tests=()
        ).text()


def test_a_mistake_is_noticed() -> None:
    assert noticed_by(mutant("archive: no token"))


def test_a_mistake_in_python_is_noticed() -> None:
    assert noticed_by(next(each for each in PYTHON_MUTANTS if each.name == "export: a secret of the target is shown"))


def test_a_mistake_in_python_is_in_a_copy_that_goes() -> None:
    one = PYTHON_MUTANTS[0]
    with one.place() as (copy, _):
        assert (copy / one.file).read_text() == one.text() != (ROOT / one.file).read_text()
    assert not copy.exists()
