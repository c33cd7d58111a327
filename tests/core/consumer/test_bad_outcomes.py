"""What a handler returns or raises concerns its own message, and no other of the batch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from airflow_provider_pgqueue.core import (
    Consumer,
    Failed,
    InvalidArgument,
    InvalidOutcome,
    Lease,
    LeaseLost,
    Message,
    Rejected,
    Retry,
    Success,
    Worker,
    run,
    verbs,
)

Connection = psycopg.Connection[Any]
Queue = Callable[..., str]


class Mute(Exception):
    """An exception that cannot say its text."""

    def __str__(self) -> str:
        raise ValueError("no text")


class NoText:
    def __repr__(self) -> str:
        raise LookupError("no text")


class Lazy(dict[str, Any]):
    """A row whose columns are read when somebody asks for them."""

    def items(self) -> Any:
        raise LookupError("the session of the row is closed")


class Odd(str):
    def replace(self, *_: Any) -> str:
        raise RuntimeError("secret")


def nested() -> list[Any]:
    found: list[Any] = []
    for _ in range(50_000):
        found = [found]
    return found


UNKEEPABLE: dict[str, tuple[Any, str]] = {
    "a large output": (Success(output="y" * 70_000), "Success cannot be kept: an output or failure has"),
    "no number": (Success(output=float("nan")), "Success cannot be kept: the value is not JSON"),
    "no JSON": (Success(output=object()), "Success cannot be kept: the value is not JSON"),
    "NUL in the output": (Success(output="a\0b"), "Success cannot be kept: "),
    "a delay of years": (Retry(delay=timedelta(days=4000)), "Retry cannot be kept: delay is"),
    "a delay into the past": (Retry(delay=timedelta(seconds=-1)), "Retry cannot be kept: delay is"),
    "a failure without end": (Failed("no", failure={"message": "y" * 70_000}), "Failed cannot be kept: "),
    "an output that raises": (Success(output=Lazy(a=1)), "Success cannot be kept: the value is not JSON: to convert"),
    "a failure that raises": (Failed("no", failure=Lazy(a=1)), "Failed cannot be kept: the value is not JSON"),
    "a failure of objects": (Failed("no", failure={"error": Mute(), "message": NoText()}), "Failed cannot be kept: "),
    "a deep failure": (Failed("no", failure={"error": "E", "message": nested()}), "Failed cannot be kept: "),
    "a deep failure to retry": (Retry(failure={"error": "E", "message": nested()}), "Retry cannot be kept: "),
    "a long number to retry": (Retry(failure={"error": "E", "message": 10**5000}), "Retry cannot be kept: "),
    "a failure to retry that raises": (Retry(failure=Lazy(error="E")), "Retry cannot be kept: "),
    "a text that raises": (Rejected(Odd("x")), "Rejected cannot be kept: RuntimeError"),
}


def failed(conn: Connection) -> dict[str, str]:
    """Return the bodies of the messages that failed, and why they did."""
    rows = conn.execute("SELECT message, details FROM messages.message_archive WHERE result = 'failed'").fetchall()
    return dict(rows)


def reasons(names: Collection[str]) -> dict[str, str]:
    return {name: f"its {UNKEEPABLE[name][1]}" for name in names}


def cut_to(found: dict[str, str], expected: dict[str, str]) -> dict[str, str]:
    """Return as much of each text as is expected of it."""
    return {name: text[: len(expected.get(name, text))] for name, text in found.items()}


@pytest.mark.parametrize("at_once", [False, True])
def test_an_outcome_that_cannot_be_kept_fails_its_own_message_alone(
    conn: Connection, queue: Queue, at_once: bool
) -> None:
    bodies = [body for name in UNKEEPABLE for body in (name, f"next to {name}")]
    run(conn, verbs.publish_batch(queue("orders"), [*bodies, "again"]))
    handled: list[str] = []

    def handle(message: Message) -> Any:
        handled.append(message.body)
        bad, _ = UNKEEPABLE.get(message.body, (None, ""))
        return Retry(delay=timedelta(hours=1)) if message.body == "again" else bad

    consumer = (
        Consumer(queue_name="orders", handle_batch=lambda messages: [handle(message) for message in messages])
        if at_once
        else Consumer(queue_name="orders", handle=handle)
    )
    assert consumer.drain(conn) == {"success": len(UNKEEPABLE), "failed": len(UNKEEPABLE), "retried": 1}
    assert handled == [*bodies, "again"]
    assert cut_to(failed(conn), reasons(UNKEEPABLE)) == reasons(UNKEEPABLE)


@pytest.mark.parametrize("autocommit", [False, True])
def test_in_the_transaction_of_the_caller_too_it_fails_its_own_message_alone(
    conn: Connection, connect: Callable[..., Connection], queue: Queue, autocommit: bool
) -> None:
    names = ["a large output", "NUL in the output", "a delay of years", "a failure without end"]
    bodies = [body for name in names for body in (name, f"next to {name}")]
    run(conn, verbs.publish_batch(queue("orders"), bodies))
    own = connect(autocommit=autocommit)
    consumer = Consumer(queue_name="orders", handle=lambda message: UNKEEPABLE.get(message.body, (None,))[0])
    with own.transaction():
        assert consumer.drain(own) == {"success": 4, "failed": 4}
        assert conn.execute("SELECT count(*) FROM messages.message_archive").fetchone() == (0,)
    assert cut_to(failed(conn), reasons(names)) == reasons(names)


def test_in_the_transaction_of_the_caller_a_lost_message_undoes_nothing(
    conn: Connection, connect: Callable[..., Connection], queue: Queue
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [0, 1]))
    messages = run(conn, verbs.lease("orders", max_messages=2))
    run(conn, verbs.archive(messages[0].lock_token, [messages[0].id]))
    own = connect()
    with own.transaction(), pytest.raises(LeaseLost):
        Lease(own, messages).settle(dict.fromkeys(messages, Success(output=1)))
    rows = conn.execute("SELECT message, output FROM messages.message_archive ORDER BY 1").fetchall()
    assert rows == [(0, None), (1, 1)]


def fails(conn: Connection) -> None:
    with suppress(psycopg.errors.DivisionByZero):
        conn.execute("SELECT 1 / 0")


@pytest.mark.parametrize(
    ("given", "gets"),
    [
        ({"handle": lambda: None}, "a message"),
        ({"handle_batch": lambda messages, shop: None}, "a list of messages"),
    ],
)
def test_a_function_with_other_parameters_is_refused_before_anything_is_leased(given: Any, gets: str) -> None:
    with pytest.raises(
        InvalidArgument, match=f"<lambda> cannot be called with {gets}: .* Let its first parameter take"
    ):
        Worker(conninfo="", consumer=Consumer(queue_name="orders", **given))


LEFT_OPEN: dict[str, Callable[[Connection], object]] = {
    "begun": lambda conn: conn.execute("BEGIN"),
    "aborted": lambda conn: (conn.execute("BEGIN"), fails(conn)),
    "no autocommit": lambda conn: (conn.set_autocommit(False), conn.execute("SELECT 1")),
    "raised": lambda conn: (conn.execute("BEGIN"), conn.execute("SELECT 1 / 0")),
}


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_transaction_that_a_handler_leaves_open_is_rolled_back_and_fails_its_message_alone(
    conn: Connection, connect: Callable[..., Connection], queue: Queue, batch_size: int
) -> None:
    own = connect()
    bodies = [body for left in LEFT_OPEN for body in (left, f"after {left}")]
    run(conn, verbs.publish_batch(queue("orders", max_attempts=1), bodies))
    conn.execute("CREATE TABLE effect (body text)")

    def handle(message: Message) -> None:
        if leave_open := LEFT_OPEN.get(message.body):
            leave_open(own)
            own.execute("INSERT INTO effect VALUES ('left open')")
        with own.transaction():
            own.execute("INSERT INTO effect VALUES (%s)", [message.body])

    assert Consumer(queue_name="orders", handle=handle, batch_size=batch_size).drain(own) == {"success": 4, "failed": 4}
    assert own.autocommit
    own.close()
    said = dict.fromkeys(
        LEFT_OPEN, "TransactionLeftOpen: the handler left a transaction open on the connection of the consumer"
    )
    said |= {"raised": "DivisionByZero: ", "aborted": "InFailedSqlTransaction: "}
    assert cut_to(failed(conn), said) == said
    done = conn.execute("SELECT message FROM messages.message_archive WHERE result = 'success'").fetchall()
    assert {body for (body,) in done} == {f"after {left}" for left in LEFT_OPEN}
    assert set(done) == set(conn.execute("SELECT body FROM effect").fetchall())


def test_a_batch_handler_that_returns_in_a_transaction_loses_nothing_that_was_said_to_be_done(
    conn: Connection, connect: Callable[..., Connection], queue: Queue
) -> None:
    own = connect()
    run(conn, verbs.publish_batch(queue("orders"), list(range(4))))

    def handle(messages: list[Message]) -> Any:
        if messages[0].body == 2:
            own.execute("BEGIN")
        return iter([None] * len(messages))

    assert Consumer(queue_name="orders", handle_batch=handle, batch_size=2).drain(own) == {"success": 3, "retried": 1}
    own.close()
    assert conn.execute("SELECT message FROM messages.message_archive ORDER BY id").fetchall() == [(0,), (1,), (3,)]
    ((error,),) = conn.execute("SELECT DISTINCT last_error FROM messages.message").fetchall()
    assert "left a transaction open on the connection of the consumer, which was rolled back. Commit it" in error


def test_settling_with_what_is_no_outcome_settles_nothing(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [0, 1]))
    first, second = messages = run(conn, verbs.lease("orders", max_messages=2))
    lease = Lease(conn, messages)
    for wrong in (5, 0, True, "done"):
        with pytest.raises(InvalidOutcome, match=f"returned {type(wrong).__name__} for message"):
            lease.settle({first: None, second: wrong})  # type: ignore[dict-item]
        assert lease.held == [first, second]
    assert conn.execute("SELECT count(*) FROM messages.message_archive").fetchone() == (0,)


def test_extending_a_lease_to_no_time_is_refused(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish(queue("orders"), 1))
    messages = run(conn, verbs.lease("orders"))
    with pytest.raises(InvalidArgument):
        Lease(conn, messages).extend(timedelta(0))


def test_texts_that_postgresql_cannot_store_lose_only_those_characters(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=1), list(range(4))))
    said = [Rejected("a\0b"), Failed("a\ud800b"), Success("a\0b"), Retry(details="a\ud800b")]
    Consumer(queue_name="orders", handle=lambda message: said[message.body]).drain(conn)
    kept = conn.execute("SELECT details, result FROM messages.message_archive ORDER BY message").fetchall()
    assert kept == [("a\ufffdb", "rejected"), ("a?b", "failed"), ("a\ufffdb", "success"), ("a?b", "failed")]


def test_an_exception_without_a_text_is_a_failed_attempt_of_its_message(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=1), [1, 2]))

    def handle(message: Message) -> None:
        if message.body == 1:
            raise Mute

    assert Consumer(queue_name="orders", handle=handle).drain(conn) == {"failed": 1, "success": 1}


@pytest.mark.parametrize(
    ("wrong", "at_once"),
    [(False, False), ({"result": "success"}, False), ("done", True)],
)
def test_what_is_no_outcome_ends_the_consumer_and_costs_no_attempt(
    conn: Connection, queue: Queue, wrong: Any, at_once: bool
) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=1), list(range(5))))
    handled: list[int] = []

    def handle(message: Message) -> Any:
        handled.append(message.body)
        return wrong if message.body == 2 else None

    consumer = (
        Consumer(queue_name="orders", handle_batch=lambda messages: [handle(message) for message in messages])
        if at_once
        else Consumer(queue_name="orders", handle=handle)
    )
    kind = type(wrong).__name__
    with pytest.raises(InvalidOutcome, match=rf"queue 'orders' returned {kind} for message \d+\. Return None"):
        consumer.drain(conn)
    assert handled == ([0, 1, 2, 3, 4] if at_once else [0, 1, 2])
    assert conn.execute("SELECT message, result FROM messages.message_archive ORDER BY 1").fetchall() == [
        (0, "success"),
        (1, "success"),
    ]
    # Later than the others, or it would be the first of its queue forever, and all that come after it would wait.
    query = "SELECT message, attempts, lock_token, visible_at > clock_timestamp() FROM messages.message ORDER BY 1"
    left = conn.execute(query).fetchall()
    assert left == [(2, 0, None, True), (3, 0, None, False), (4, 0, None, False)]


@pytest.mark.parametrize("wrong", [True, "four", ["one", "short"], {999: None}])
def test_a_batch_handler_that_returns_no_outcomes_at_all_costs_no_attempt(
    conn: Connection, queue: Queue, wrong: Any
) -> None:
    run(conn, verbs.publish_batch(queue("orders", max_attempts=1), list(range(4))))
    with pytest.raises(InvalidOutcome):
        Consumer(queue_name="orders", handle_batch=lambda messages: wrong).drain(conn)
    later = "SELECT count(*), sum(attempts), bool_and(visible_at > clock_timestamp()) FROM messages.message"
    assert conn.execute(later).fetchone() == (4, 0, True)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["SECRET1", "SECRET2"], "2 outcomes under keys of type str, which are no ids"),
        ([NoText()], "1 outcome under keys of type NoText, which are no ids"),
        ([10**5000, "SECRET"], "2 outcomes under keys of type str, which are no ids"),
        ([10**5000], "1 outcome under keys of type int, which are no ids"),
        (
            range(10**6, 10**6 + 7),
            "7 outcomes for messages that it did not get: 1000000, 1000001, 1000002, 1000003, 1000004, …",
        ),
    ],
)
def test_keys_that_are_no_ids_are_not_quoted(conn: Connection, queue: Queue, keys: Any, said: str) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [0, 1]))
    with pytest.raises(InvalidOutcome, match=said) as raised:
        Consumer(queue_name="orders", handle_batch=lambda messages: dict.fromkeys(keys)).drain(conn)
    assert "SECRET" not in str(raised.value)
    errors = conn.execute("SELECT DISTINCT last_error LIKE '%SECRET%', attempts FROM messages.message").fetchall()
    assert errors == [(False, 0)]


class Closed(dict[Any, Any]):
    """Outcomes that cannot be read any more."""

    def __iter__(self) -> Any:
        raise LookupError("closed")


def generated(messages: list[Message]) -> Any:
    yield None
    raise LookupError("closed")


@pytest.mark.parametrize("handle", [generated, lambda messages: Closed()])
def test_an_error_in_reading_what_a_batch_handler_returned_is_one_of_the_handler(
    conn: Connection, queue: Queue, handle: Any
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [0, 1]))
    assert Consumer(queue_name="orders", handle_batch=handle).drain(conn) == {"retried": 2}
    left = conn.execute("SELECT attempts, last_error FROM messages.message").fetchall()
    assert left == [(1, "LookupError: closed")] * 2


@pytest.mark.parametrize("wrong", ["no", None, 2, [], NoText()])
def test_a_retry_that_counts_perhaps_is_refused_where_it_is_written(wrong: Any) -> None:
    with pytest.raises(TypeError, match=rf"count_attempt is of type {type(wrong).__name__}\. Give True or False"):
        Retry(count_attempt=wrong)


def test_a_delay_of_another_type_is_refused_where_it_is_written() -> None:
    with pytest.raises(TypeError, match=r"delay is of type str\. Give a timedelta"):
        Retry(delay="5")  # type: ignore[arg-type]
    assert Retry(delay=5).delay == 5


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Success(details=1), "details is of type int"),  # type: ignore[arg-type]
        (lambda: Rejected(ValueError("x")), "reason is of type ValueError"),  # type: ignore[arg-type]
        (lambda: Rejected(None), "reason is None"),  # type: ignore[arg-type]
        (lambda: Failed("f", 5), "failure is of type int"),  # type: ignore[arg-type]
        (lambda: Failed(5), "details is of type int"),  # type: ignore[arg-type]
        (lambda: Retry(failure="x"), "failure is of type str"),  # type: ignore[arg-type]
    ],
)
def test_an_outcome_that_cannot_be_kept_is_an_error_of_its_own_message(
    conn: Connection, queue: Queue, make: Callable[[], Any], said: str
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [0, 1]))
    counts = Consumer(queue_name="orders", handle=lambda message: None if message.body else make()).drain(conn)
    assert counts == {"retried": 1, "success": 1}
    left = conn.execute("SELECT message, attempts, last_error FROM messages.message").fetchall()
    assert [(body, attempts) for body, attempts, _ in left] == [(0, 1)]
    assert said in left[0][2]


def test_an_output_is_that_of_the_time_at_which_the_handler_returned(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 10, 100]))
    totals, failure = {"packed": 0}, {"message": ""}

    def handle(message: Message) -> Success | Failed:
        totals["packed"] += message.body
        failure["message"] = str(message.body)
        return Success(output=totals) if message.body < 100 else Failed("full", failure, output=totals)

    Consumer(queue_name="orders", handle=handle).drain(conn)
    failure["message"] = totals["packed"] = "later"
    kept = conn.execute("SELECT output, failure FROM messages.message_archive ORDER BY id").fetchall()
    assert kept == [({"packed": 1}, None), ({"packed": 11}, None), ({"packed": 111}, {"message": "100"})]


class Priced(Success):
    """An outcome of the application, which is made in another way."""

    def __init__(self, price: int) -> None:
        super().__init__(output={"price": price})


def test_an_outcome_may_be_of_a_class_of_the_application(conn: Connection, queue: Queue) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [1, 2]))
    handle = lambda message: Priced(message.body)  # noqa: E731
    assert Consumer(queue_name="orders", handle=handle).drain(conn) == {"success": 2}
    kept = conn.execute("SELECT output FROM messages.message_archive ORDER BY id").fetchall()
    assert kept == [({"price": 1},), ({"price": 2},)]


def groups_in_each_other() -> BaseException:
    error: Exception = ValueError("bad")
    for _ in range(2000):
        error = ExceptionGroup("more", [error])
    return error


class Leaves(Exception):
    """An exception whose text ends the process."""

    def __str__(self) -> str:
        raise SystemExit(3)


class Nameless(type):
    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise LookupError


class Unnamed(Exception, metaclass=Nameless):
    pass


INDESCRIBABLE: list[BaseException] = [
    groups_in_each_other(),
    SyntaxError("bad", ("f", 1, "1", "text")),  # type: ignore[arg-type]
    Leaves(),
    Unnamed(),
    type("L" * 100_000, (Exception,), {})(),
]


@pytest.mark.parametrize("error", INDESCRIBABLE, ids=range(len(INDESCRIBABLE)))
@pytest.mark.parametrize("at_once", [False, True])
def test_an_exception_that_cannot_be_described_costs_its_own_message_an_attempt(
    conn: Connection, queue: Queue, error: BaseException, at_once: bool
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), [0, 1, 2]))

    def handle(message: Message) -> None:
        if message.body == 1:
            raise error

    def handle_batch(messages: list[Message]) -> None:
        for message in messages:
            handle(message)

    consumer = Consumer(queue_name="orders", **{"handle_batch": handle_batch} if at_once else {"handle": handle})  # type: ignore[arg-type]
    assert consumer.drain(conn) == {"success": 2, "retried": 1}
    assert conn.execute("SELECT message, attempts FROM messages.message").fetchall() == [(1, 1)]


def test_no_name_that_a_body_may_give_reaches_the_log(
    conn: Connection, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    run(conn, verbs.publish_batch(queue("orders"), ["{secret: 1}\nFORGED secret"] * 4))

    def raises(message: Message, place: int) -> None:
        match place:
            case 0:
                exec(compile("1 / 0", message.body, "exec"))
            case 1:
                raise type(message.body, (Exception,), {})
            case 2:
                raise type("secret" * 100, (Exception,), {})

    def handle_batch(messages: list[Message]) -> Any:
        if len(messages) > 1:
            raises(messages[0], 1)
        if (place := messages[0].id - first) < 3:
            raises(messages[0], place)
        return [Failed("no", {"error": messages[0].body})]

    ((first,),) = conn.execute("SELECT min(id) FROM messages.message").fetchall()
    caplog.set_level("INFO")
    Consumer(queue_name="orders", handle_batch=handle_batch).drain(conn)
    assert len(caplog.messages) == 5
    assert [text for text in caplog.messages if "secret" in text or "\n" in text] == []


def test_what_cannot_be_a_consumer_is_refused_before_it_leases() -> None:
    for name in ("handle", "handle_batch"):
        with pytest.raises(InvalidArgument, match=rf"^{name} is of type int\. Give a function"):
            Consumer(queue_name="orders", **{name: 5})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="poll_interval is -1"):
        Worker(conninfo="", consumer=Consumer(queue_name="orders", handle=print), poll_interval=-1)
