"""The API server of Airflow with four users, as it is deployed: every route behind its own login."""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any, Final

from tools.screenshots.served import served

ROLES: Final = ("viewer", "user", "op", "admin")
PASSWORD: Final = "a password of the tests"
_SIMPLE: Final = "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"
_FAB: Final = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"


def auth_manager() -> str:
    """Return the class of the auth manager that is tried: FAB's where its provider is installed."""
    with suppress(ModuleNotFoundError):
        if find_spec("airflow.providers.fab.auth_manager"):
            return _FAB
    return _SIMPLE


def environment() -> dict[str, str]:
    """Return the settings with which the server knows a user for each role."""
    return {
        "AIRFLOW__API__SECRET_KEY": "a secret of the tests " * 4,
        "AIRFLOW__API_AUTH__JWT_SECRET": "another secret of the tests, which signs the logins " * 2,
        "AIRFLOW__CORE__AUTH_MANAGER": auth_manager(),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{role}-ann:{role}" for role in ROLES),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
    }


def make_server() -> Any:
    """Return the application that `airflow api-server` serves."""
    with warnings.catch_warnings(), without_garbage_collection():
        warnings.simplefilter("ignore")  # Airflow's own, of what it imports
        from airflow import settings
        from airflow.api_fastapi.app import create_app, purge_cached_app

        purge_cached_app()
        _tables_of_logins(settings.engine)
        app = create_app()
        if auth_manager() == _FAB:
            _users_of_fab()
        return app


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Make what stays, such as an application with all its routes, without looking for garbage in it."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _tables_of_logins(engine: Any) -> None:
    """Make the table of logins that were ended: all that the page needs of Airflow's own database, since 3.2."""
    with suppress(ModuleNotFoundError):
        from airflow.models.revoked_token import RevokedToken

        RevokedToken.metadata.create_all(engine, tables=[RevokedToken.__table__])


def _users_of_fab() -> None:
    """Make a user for each role that FAB itself comes with, and has made with what it may do."""
    manager = _manager()
    with manager.flask_app.app_context():
        security = manager.security_manager
        for role in ROLES:
            if security.find_user(username=f"{role}-ann") is None:
                names = (f"{role}-ann", "Ann", role, f"{role}@example.org")
                assert security.add_user(*names, security.find_role(role.capitalize()), password=PASSWORD)


def token_of(role: str) -> str:
    """Return what the cookie of a user holds who has logged in."""
    manager, name = _manager(), f"{role}-ann"
    if auth_manager() == _FAB:
        with manager.flask_app.app_context():
            user = manager.security_manager.find_user(username=name)
            return str(manager.generate_jwt(user))
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    return str(manager.generate_jwt(SimpleAuthManagerUser(username=name, role=role.upper())))


def _manager() -> Any:
    from airflow.api_fastapi.app import get_auth_manager

    return get_auth_manager()


def main() -> None:
    """Serve it until the end of stdin, and print the address with a cookie of each user; Airflow's own go to stderr."""
    stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with served(make_server()) as address:
        print(json.dumps({"address": address, "tokens": {role: token_of(role) for role in ROLES}}), file=stdout)
        stdout.close()
        sys.stdin.read()


if __name__ == "__main__":
    main()
