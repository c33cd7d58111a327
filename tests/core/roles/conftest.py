"""Logins of their own for the tests of who may do what."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.core.roles.test_roles import Login, logins


@pytest.fixture
def login(dsn: str) -> Iterator[Login]:
    """Open sessions of roles that are made for the test: `login("bob", "messages_consumer")`."""
    with logins(dsn) as login:
        yield login
