"""All queues: what needs attention first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from airflow_provider_pgqueue.core.message import QueueStatus
from airflow_provider_pgqueue.core.quantity import AtLeast, seen
from airflow_provider_pgqueue.web import numbers
from airflow_provider_pgqueue.web.html import choices, page, whole_number
from airflow_provider_pgqueue.web.request import site_of

router = APIRouter()
_PER_PAGE: Final = 50
_SUMS: Final[tuple[Literal["ready", "leased", "delayed", "dead"], ...]] = ("ready", "leased", "delayed", "dead")
_ORDERS: Final = (
    *(("-attention", "Most pressing first"), ("name", "By name"), ("-depth", "Deepest first")),
    *(("-ready", "Most ready"), ("-leased", "Most leased"), ("-age", "Oldest first"), ("-dead", "Most dead")),
)
_SHOWN: Final = {"sort": numbers.ORDERS, "show": ("all", "attention")}


@router.get("/")
def queues(request: Request) -> Response:
    """All queues: searched, sorted, and by pages."""
    site, given = site_of(request), request.query_params
    found = numbers.overview(site)
    chosen = choices(given, _SHOWN)
    words = given.get("q", "")[:100]
    matching = numbers.matching(found.queues, words)
    pressing = [queue for queue in matching if numbers.needs(queue)]
    listed = numbers.sorted_by(pressing if chosen["show"] == "attention" else matching, chosen["sort"])
    pages = max(1, -(-len(listed) // _PER_PAGE))
    place = min(whole_number(given.get("page", "1")) or 1, pages)
    shown = listed[(place - 1) * _PER_PAGE : place * _PER_PAGE]
    return page(
        request,
        "queues.html",
        overview=found,
        sums={"queues": len(found.queues), **{name: _sum(found.queues, name) for name in _SUMS}},
        more=any(isinstance(queue.seen(name), AtLeast) for queue in found.queues for name in _SUMS),
        attention=sum(bool(numbers.needs(queue)) for queue in found.queues),
        rows=[(queue, numbers.needs(queue)) for queue in shown],
        sparks=numbers.sparks(site, [queue.queue_name for queue in shown]),
        chosen={"q": words, **chosen, "page": place},
        # Also the one that a heading chose.
        orders=(*_ORDERS, *((key, f"By {key.lstrip('-')}") for key in [chosen["sort"]] if key not in dict(_ORDERS))),
        pages=pages,
        listed=len(listed),
    )


def _sum(queues: Sequence[QueueStatus], name: Literal["ready", "leased", "delayed", "dead"]) -> int:
    """Return the sum of what was counted, which people see with a plus where there are more."""
    numbers = [queue.seen(name) for queue in queues]
    counted = sum(number.counted if isinstance(number, AtLeast) else number for number in numbers)
    return seen(sum(numbers), sum(numbers), counted)
