"""Each action of the page: asked once, done once, in short transactions, and recorded with a name."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx
import pytest

from airflow_provider_pgqueue.core import run, verbs
from airflow_provider_pgqueue.core.tuning import TUNING
from tests.conftest import Connection
from tests.dead_messages import died_at
from tests.web.conftest import Browse, hidden

HERE = {"Sec-Fetch-Site": "same-origin"}
QUEUE_ACTIONS = ("pause", "resume", "purge", "publish", "policy", "requeue", "dismiss")
FILLED = {"reason": "a test", "body": "{}", "max_attempts": "7"}


def form_of(client: httpx.Client, path: str, **written: str) -> dict[str, str]:
    """Return what a browser sends: the hidden fields of the form that changes something, and what was written."""
    page = client.get(path)
    assert page.status_code == 200, page.text
    return hidden(page.text.partition('<form method="post"')[2]) | FILLED | written


def all_fields(page: httpx.Response) -> dict[str, str]:
    """Return what a browser sends if nothing is written into the form that changes something."""
    form = page.text.partition('<form method="post"')[2]
    fields = re.findall(r'name="(\w+)"[^>]* value="([^"]*)"', form)
    fields += re.findall(r'<select id="\w+" name="(\w+)">.*?<option selected>(\w+)</option>', form)
    return {name: html.unescape(value) for name, value in fields}


def send(client: httpx.Client, path: str, form: dict[str, str]) -> httpx.Response:
    return client.post(path, data=form, headers=HERE, follow_redirects=True)


@pytest.fixture
def dead(conn: Connection, queue: Callable[..., str]) -> list[int]:
    """Five dead messages of the queue `orders` with the references a to e, one that waits and one that is leased."""
    queue("orders", max_attempts=1)
    for reference in "abcde":
        run(conn, verbs.publish("orders", {}, reference=reference))
    held = run(conn, verbs.lease("orders", max_messages=5))
    run(conn, verbs.archive(held[0].lock_token, [one.id for one in held], result="failed", details="no stock"))
    run(conn, verbs.publish_batch("orders", [1, 2]))
    run(conn, verbs.lease("orders"))
    conn.execute("DELETE FROM messages.audit")
    return [one.id for one in held]


def entries(conn: Connection) -> list[tuple[Any, ...]]:
    return conn.execute("SELECT acting_user, action, affected FROM messages.audit ORDER BY audit_id").fetchall()


@pytest.fixture
def paths(conn: Connection, dead: list[int]) -> dict[str, str]:
    """The path of each action."""
    ((leased,),) = conn.execute("SELECT id FROM messages.message WHERE lock_expires_at IS NOT NULL").fetchall()
    of_messages = {"requeue one": "requeue", "dismiss one": "dismiss"}
    return (
        {action: f"/queues/orders/{action}" for action in QUEUE_ACTIONS}
        | {name: f"/messages/{dead[0]}/{action}" for name, action in of_messages.items()}
        | {name: f"/messages/{leased}/{name}" for name in ("release", "cancel")}
    )


ENTRIES = {
    "pause": ("pause_queue", None),
    "resume": ("resume_queue", None),
    "purge": ("purge_queue", 1),
    "publish": ("publish_test", 1),
    "policy": ("alter_queue", None),
    "requeue": ("requeue_dead", 5),
    "dismiss": ("dismiss_dead", 5),
    "requeue one": ("requeue_dead", 1),
    "dismiss one": ("dismiss_dead", 1),
    "release": ("release_messages", 1),
    "cancel": ("cancel", 1),
}


@pytest.mark.parametrize("action", ENTRIES)
def test_each_action_is_one_entry_with_the_name_of_who_asked_and_is_done_once(
    browse: Browse, conn: Connection, paths: dict[str, str], action: str
) -> None:
    client, path = browse(may_act=True), paths[action]
    form = form_of(client, path, max_messages="1000")
    if action == "resume":
        conn.execute("UPDATE messages.queue SET paused = true")
    with ThreadPoolExecutor(2) as twice:
        pages = list(twice.map(lambda _: send(client, path, form), range(2)))
    assert entries(conn) == [("ann", *ENTRIES[action])]
    assert [page.status_code for page in pages] == [200, 200]
    assert sorted("The form was sent twice" in page.text for page in pages) == [False, True]


def told(page: httpx.Response) -> str | None:
    found = re.search(r"data-told><b>(.*?)</b>", page.text)
    return found and found[1]


def test_an_address_that_no_action_led_to_says_nothing(browse: Browse, conn: Connection, dead: list[int]) -> None:
    client, path = browse(may_act=True), "/queues/orders/purge"
    done = send(client, path, form_of(client, path))
    assert told(done) == "Deleted 1 message."
    address, given = "/queues/orders", dict(done.url.params)
    changed: list[tuple[str, dict[str, str]]] = [
        (address, {"done": "purge", "n": "500"}),
        (address, {"done": "again"}),
        (address, {"done": "requeue", "n": "0"}),
        (address, given | {"n": "500"}),
        (address, given | {"done": "dismiss"}),
        (address, given | {"of": "9"}),
        (address, given | {"until": str(int(given["until"]) + 1)}),
        (address, given | {"until": "0"}),
        ("/queues/default", given),
        (f"/messages/{dead[0]}", given),
    ]
    for other, parameters in changed:
        assert told(client.get(other, params=parameters)) is None, parameters
    assert told(browse("bob", may_act=True).get(address, params=given)) is None
    assert told(client.get(address, params=given)) == "Deleted 1 message."


def test_no_action_is_done_without_its_own_token_from_its_own_site(
    browse: Browse, conn: Connection, paths: dict[str, str]
) -> None:
    client, bob = browse(may_act=True), browse("bob", may_act=True)
    for path in paths.values():
        form, others = form_of(client, path), form_of(bob, path)
        until, once, signature = form["token"].split(".")
        for token in ("", "x", others["token"], f"{until}.{once}.{signature[:-1]}", f"{until}.{'0' * 32}.{signature}"):
            assert client.post(path, data=form | {"token": token}, headers=HERE).status_code == 403, path
        assert client.post(path, data=form, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403, path
        form.pop("token")
        assert client.post(path, data=form, headers=HERE).status_code == 403, path
    assert entries(conn) == []


def test_a_queue_that_was_dropped_meanwhile_is_said_to_be_gone(
    browse: Browse, conn: Connection, paths: dict[str, str]
) -> None:
    client = browse(may_act=True)
    forms = {paths[action]: form_of(client, paths[action]) for action in QUEUE_ACTIONS}
    run(conn, verbs.drop_queue("orders", force=True))
    for path, form in forms.items():
        page = send(client, path, form)
        assert page.status_code == 404, path
        assert "queue &#39;orders&#39; does not exist" in page.text, path


@pytest.mark.parametrize("action", ["requeue one", "dismiss one"])
def test_a_message_that_got_a_resolution_meanwhile_gets_no_second_one(
    browse: Browse, conn: Connection, dead: list[int], paths: dict[str, str], action: str
) -> None:
    client = browse(may_act=True)
    form = form_of(client, paths[action])
    run(conn, verbs.requeue_dead(verbs.DeadFilter("orders", ids=[dead[0]]), resolved_by="bob"))
    page = send(client, paths[action], form)
    assert "Nothing was done: it is resolved by now" in page.text
    assert "The form was sent twice, and only the first time counted" in send(client, paths[action], form).text
    assert run(conn, verbs.resolutions([dead[0]])) == {dead[0]: ("requeued", "bob")}


def test_a_lease_that_ended_meanwhile_is_not_ended_again(
    browse: Browse, conn: Connection, paths: dict[str, str]
) -> None:
    client = browse(may_act=True)
    form = form_of(client, paths["release"])
    conn.execute("UPDATE messages.message SET lock_expires_at = NULL, lock_token = NULL WHERE lock_token IS NOT NULL")
    assert "Nothing was done: nobody holds it any more" in send(client, paths["release"], form).text


def test_a_policy_form_that_comes_back_with_an_error_keeps_what_was_written_and_puts_nothing_else_back(
    browse: Browse, conn: Connection, dead: list[int]
) -> None:
    client, path = browse(may_act=True), "/queues/orders/policy"
    written = {"max_attempts": "x", "max_leased": "3", "on_dead_head": "skip"}
    shown = client.get(path)
    assert "max_leased<small>Largest number of messages that are leased at once; empty for any number." in shown.text
    form = all_fields(shown) | written
    run(conn, verbs.alter_queue("orders", retention=timedelta(days=30), notify="gated"))
    page = send(client, path, form)
    assert page.status_code == 400
    form = all_fields(page)
    assert {name: form[name] for name in written} == written
    assert (form["retention"], form["notify"]) == ("30d", "gated")
    assert "The policy is changed" in send(client, path, form | {"max_attempts": "7"}).text
    row = conn.execute(
        "SELECT max_attempts, max_leased, on_dead_head, retention, notify FROM messages.queue"
        " WHERE queue_name = 'orders'"
    ).fetchone()
    assert row == (7, 3, "skip", timedelta(days=30), "gated")


def test_all_that_somebody_else_changed_is_said_before_the_form_that_comes_back_can_overwrite_it(
    browse: Browse, conn: Connection, dead: list[int]
) -> None:
    client, path = browse(may_act=True), "/queues/orders/policy"
    form = all_fields(client.get(path)) | {"max_attempts": "7", "max_leased": "3", "retention": "3d"}
    run(conn, verbs.alter_queue("orders", retention=timedelta(days=30), max_leased=9))
    for attempts in ("x", "7"):
        page = send(client, path, form | {"max_attempts": attempts})
        assert page.status_code == 400
        assert "somebody changed retention to 30d and max_leased to 9 meanwhile" in page.text
    row = conn.execute("SELECT max_attempts, max_leased FROM messages.queue WHERE queue_name = 'orders'").fetchone()
    assert row == (1, 9)


@pytest.mark.parametrize(
    ("action", "query", "places"),
    [
        ("requeue", "reference=b", [1]),
        ("dismiss", "reference=b&result=rejected", []),
        ("requeue", "since=2020-01-02T00:00", [2, 3, 4]),
        ("dismiss", "until=2020-01-02T00:00", [0, 1]),
        ("requeue", "since=2020-01-02T00:00:00&until=2020-01-04T00:00%2B00:00", [2, 3]),
        ("requeue", "since=2020-01-01T23:30-01:00", [2, 3, 4]),
        ("dismiss", "reference=%20a%20", [0]),
        ("dismiss", "", [0, 1, 2, 3, 4]),
    ],
)
def test_what_a_filter_counts_is_what_is_done(
    browse: Browse, conn: Connection, dead: list[int], action: str, query: str, places: list[int]
) -> None:
    for id_, moment in zip(dead, ("01 00:00", "01 12:00", "02 00:30", "03 00:30", "04 00:30"), strict=True):
        died_at(conn, id_, f"2020-01-{moment} UTC")
    client, path = browse(may_act=True), f"/queues/orders/{action}"
    page = client.get(f"{path}?{query}").text
    said = f"{len(places)} dead message{'' if len(places) == 1 else 's'}"
    assert f"<b>{said}</b>" in page
    assert entries(conn) == []
    send(client, path, form_of(client, f"{path}?{query}", max_messages="1000"))
    left = {id_ for (id_,) in conn.execute("SELECT id FROM messages.dead_message")}
    assert left == {id_ for place, id_ in enumerate(dead) if place not in places}


def test_an_address_writes_nothing_into_a_form(browse: Browse, paths: dict[str, str]) -> None:
    """Whoever follows a link of somebody else, and trusts a page that looks as always, changes what they meant."""
    client = browse(may_act=True)
    for action in ("pause", "publish", "policy", "requeue", "dismiss", "requeue one", "dismiss one"):
        path = paths[action]
        filled = dict.fromkeys(("body", "reason", "id", "max_attempts", "lease_for", "max_body_bytes"), "strange")
        filled |= {"max_messages": "3", "notify": "off", "was_notify": "gated", "done": "part"}
        if action not in ("requeue", "dismiss"):
            filled["reference"] = "strange"  # a filter, whose dead messages the page counts
        page = client.get(path, params=filled)
        assert page.status_code == 200
        assert "strange" not in page.text, action
        of_now = {"token": "", "until": ""}
        assert all_fields(page) | of_now == all_fields(client.get(path)) | of_now, action


def test_a_filter_that_cannot_be_read_is_refused_and_does_nothing(
    browse: Browse, conn: Connection, dead: list[int]
) -> None:
    client = browse(may_act=True)
    for query in ("since=soon", "until=2020-13-01", "result=success", "reference=%00", "result=%3Cb%3E"):
        assert client.get(f"/queues/orders/requeue?{query}").status_code == 400, query
        name = query.partition("=")[0]
        form = form_of(client, "/queues/orders/requeue") | {name: httpx.QueryParams(query)[name]}
        assert send(client, "/queues/orders/requeue", form).status_code == 400, query
        assert entries(conn) == []


def test_many_messages_are_taken_in_short_transactions_and_none_that_dies_meanwhile(
    browse: Browse, conn: Connection, dead: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TUNING, "resolutions_at_once", 2)
    client, path = browse(may_act=True), "/queues/orders/requeue"
    form = form_of(client, path, max_messages="5")
    page = send(client, path, form)
    assert "<b>Requeued 2 messages.</b> 5 are to be done" in page.text
    # What is requeued dies again, and stays dead.
    held = run(conn, verbs.lease("orders", max_messages=2))
    run(conn, verbs.archive(held[0].lock_token, [one.id for one in held], result="failed"))
    for said in ("<b>Requeued 4 messages.</b>", "<b>Requeued 5 messages.</b>"):
        part = page.text.partition('<form method="post"')[2]
        page = send(client, path, dict(re.findall(r'name="(\w+)" value="([^"]*)"', html.unescape(part))))
        assert said in page.text
    assert page.url.path == "/queues/orders"
    assert entries(conn) == [("ann", "requeue_dead", 2), ("ann", "requeue_dead", 2), ("ann", "requeue_dead", 1)]
    assert {id_ for (id_,) in conn.execute("SELECT id FROM messages.dead_message")} == {one.id for one in held}


@pytest.mark.parametrize("action", ["requeue", "dismiss"])
def test_a_part_that_is_sent_twice_ends_the_action_and_leads_to_what_is_left_of_it(
    browse: Browse, conn: Connection, dead: list[int], monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr(TUNING, "resolutions_at_once", 2)
    client, path = browse(may_act=True), f"/queues/orders/{action}"
    form = form_of(client, f"{path}?result=failed", max_messages="4")
    send(client, path, form)
    page = send(client, path, form)
    assert page.url.path == path
    assert "<b>a part was sent twice; it was done once, and the action stopped here.</b>" in page.text
    assert "<b>3 dead messages</b> that ended as failed" in page.text
    left = all_fields(page)
    assert (left["max_messages"], left["result"], left["until"]) == ("2", "failed", form["until"])
    assert len(entries(conn)) == 1
    send(client, path, left | FILLED)
    # After the last part nothing is left to do.
    assert "only the first time counted" in send(client, path, left | FILLED).text
    assert [id_ for (id_,) in conn.execute("SELECT id FROM messages.dead_message")] == dead[4:]


def test_fewer_messages_than_asked_for_are_not_said_to_are_resolved_that_they_have_not(
    browse: Browse, conn: Connection, dead: list[int]
) -> None:
    client, path = browse(may_act=True), "/queues/orders/requeue"
    page = send(client, path, form_of(client, path, max_messages="1000"))
    assert "Requeued 5 messages. That is fewer than the 1,000 asked for; count again to see what is left." in page.text


def test_a_number_that_is_none_is_refused(browse: Browse, conn: Connection, dead: list[int]) -> None:
    client = browse(may_act=True)
    for number in ("0", "-1", "1000001", "x", "\N{SUPERSCRIPT TWO}", "9" * 5000, "0000010000999"):
        form = form_of(client, "/queues/orders/requeue", max_messages=number)
        assert send(client, "/queues/orders/requeue", form).status_code == 400, number
        assert entries(conn) == []


def test_keys_take_turns_as_the_form_says(browse: Browse, conn: Connection, dead: list[int]) -> None:
    client, path = browse(may_act=True), "/queues/orders/policy"
    send(client, path, form_of(client, path, fair_by="topic"))
    policy = "SELECT fair_by FROM messages.queue WHERE queue_name = 'orders'"
    assert conn.execute(policy).fetchone() == ("topic",)
    send(client, path, form_of(client, path, fair_by=""))
    assert conn.execute(policy).fetchone() == (None,)


def test_a_number_that_no_policy_has_is_refused_in_the_words_of_the_page(
    browse: Browse, conn: Connection, dead: list[int]
) -> None:
    client, path = browse(may_act=True), "/queues/orders/policy"
    for field in ("max_attempts", "max_leased", "max_body_bytes"):
        for number in ("99999999999999999999", "-1", "\N{SUPERSCRIPT TWO}", "1e3", "9999999999"):
            page = send(client, path, form_of(client, path, max_attempts="1") | {field: number})
            assert page.status_code == 400, (field, number)
            assert f"{field} is " in page.text
            assert "It takes queue_name" not in page.text


def test_a_body_is_published_and_shown_with_every_digit(browse: Browse, conn: Connection, dead: list[int]) -> None:
    client, path = browse(may_act=True), "/queues/orders/publish"
    for body in ('{"a":12345678901234567890.123456789}', "1E-400", "1e400", '"\\u00e9"', "[0.10]"):
        send(client, path, form_of(client, path, body=body))
        row = conn.execute(
            "SELECT id, message = %s::jsonb, message::text FROM messages.message ORDER BY id DESC LIMIT 1", [body]
        ).fetchone()
        assert row is not None
        assert row[1], body
        page = html.unescape(client.get(f"/messages/{row[0]}?body=1").text).partition('<pre id="body"')[2]
        assert re.sub(r"\s", "", row[2]) in re.sub(r"\s", "", page.partition("</pre>")[0])


def test_what_is_no_json_is_not_published(browse: Browse, conn: Connection, dead: list[int]) -> None:
    client = browse(may_act=True)
    for body in ("NaN", "{", "", '{"a": Infinity}', "[1,]"):
        page = send(client, "/queues/orders/publish", form_of(client, "/queues/orders/publish", body=body))
        assert page.status_code == 400, body
        assert "The body is not JSON" in page.text


@pytest.mark.parametrize("action", ["requeue", "dismiss", "release"])
def test_what_there_is_nothing_to_do_about_is_not_asked(
    browse: Browse, conn: Connection, dead: list[int], action: str
) -> None:
    run(conn, verbs.requeue_dead(verbs.DeadFilter("orders", ids=[dead[0]])))
    waits = conn.execute("SELECT min(id) FROM messages.message WHERE lock_expires_at IS NULL").fetchone() or ()
    for id_ in (dead[0], *waits):
        page = browse(may_act=True).get(f"/messages/{id_}/{action}")
        assert page.status_code == 409
        assert "there is nothing to do" in page.text


def test_a_message_is_requeued_with_another_body_which_the_audit_counts_and_does_not_show(
    browse: Browse, conn: Connection, dead: list[int]
) -> None:
    client = browse(may_act=True)
    shown = client.get(f"/messages/{dead[0]}").text
    assert ("Requeue or change …" in shown, ">Details</h2>" in shown) == (True, True)
    precise = '{"price": 12345678901234567890.10}'
    for id_, body, wanted in ((dead[0], precise, precise), (dead[1], "{ \r\n}", "{}"), (dead[2], "", "{}")):
        path = f"/messages/{id_}/requeue"
        assert '<textarea id="body" name="body"' in client.get(path).text
        done = send(client, path, form_of(client, path, body=body))
        assert told(done) == "Requeued 1 message."
        row = conn.execute("SELECT message::text FROM messages.message ORDER BY id DESC LIMIT 1").fetchone()
        assert row == (wanted,)
    kept = conn.execute("SELECT message::text FROM messages.message_archive WHERE id = %s", [dead[0]]).fetchone()
    assert kept == ("{}",)
    arguments = [row[0] for row in conn.execute("SELECT arguments FROM messages.audit ORDER BY audit_id").fetchall()]
    assert [(one["ids"], one.get("new_bodies")) for one in arguments] == [
        ([dead[0]], 1),
        ([dead[1]], None),
        ([dead[2]], None),
    ]
    assert "price" not in str(arguments)


def test_another_body_that_is_no_json_requeues_nothing_and_comes_back_as_it_was_written(
    browse: Browse, conn: Connection, dead: list[int]
) -> None:
    client, path = browse(may_act=True), f"/messages/{dead[0]}/requeue"
    page = send(client, path, form_of(client, path, body='{"price": 1'))
    assert page.status_code == 400
    assert "The body is not JSON (line 1, column 12)." in page.text
    assert "{&#34;price&#34;: 1</textarea>" in page.text
    assert dead[0] in run(conn, verbs.dead_ids("orders"))


def test_a_body_that_is_deep_is_published(browse: Browse, conn: Connection, dead: list[int]) -> None:
    client = browse(may_act=True)
    deep = "[" * 1500 + "]" * 1500
    assert (
        send(client, "/queues/orders/publish", form_of(client, "/queues/orders/publish", body=deep)).status_code == 200
    )
    row = conn.execute("SELECT id FROM messages.message WHERE message = %s::jsonb", [deep]).fetchone()
    assert row is not None
    assert client.get(f"/messages/{row[0]}?body=1").status_code == 200
