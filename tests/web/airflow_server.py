"""The API server of Airflow with four users, as it is deployed: every route behind its own login."""

from __future__ import annotations

import warnings
from typing import Any

ROLES = ("viewer", "user", "op", "admin")


def make_server() -> Any:
    """Return the application that `airflow api-server` serves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Airflow's own, of what it imports
        from airflow import settings
        from airflow.api_fastapi.app import create_app, purge_cached_app
        from airflow.models.revoked_token import RevokedToken

        purge_cached_app()
        # Each login is looked for among those that were logged out: all that the page needs of Airflow's own database.
        RevokedToken.metadata.create_all(settings.engine, tables=[RevokedToken.__table__])
        return create_app()


def token_of(role: str) -> str:
    """Return what the cookie of a user holds who has logged in."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    token: str = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=f"{role}-ann", role=role.upper()))
    return token
