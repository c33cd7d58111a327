"""What a message may carry: JSON, as PostgreSQL can store it."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_pgqueue.core.errors import InvalidMessage

_JSON_LITERALS = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def to_json(body: Any) -> str:
    """Return a body as JSON text; raise InvalidMessage with the reason, without the body, if it is none."""
    try:
        text = _JSON_LITERALS.encode(body)
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage("a body has a lone surrogate. Publish text that is valid Unicode.") from error
    except ValueError as error:
        raise InvalidMessage(
            f"a body is not JSON: {_reason(error)}. Replace NaN and Infinity, and break cycles."
        ) from error
    except TypeError as error:
        raise InvalidMessage(
            f"a body is not JSON: {error}. Convert it to str, int, float, bool, None, list or dict."
        ) from error
    except RecursionError as error:
        raise InvalidMessage("a body is nested too deep. Flatten it.") from error
    return text


def _reason(error: ValueError) -> str:
    return str(error).split(":", 1)[0]
