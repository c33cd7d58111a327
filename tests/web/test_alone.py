"""The page without Airflow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from airflow_provider_pgqueue.core.connection import connect as connect_to
from airflow_provider_pgqueue.web.alone import make_alone
from tools import ROOT
from tools.screenshots.served import served


@pytest.fixture
def address(dsn: str) -> Iterator[str]:
    with served(make_alone(lambda: connect_to(dsn), "the-token", may_act=True)) as address:
        yield address


def test_who_has_the_address_sees_the_page_and_nobody_else_does(address: str) -> None:
    with httpx.Client(base_url=address, trust_env=False, follow_redirects=True) as client:
        assert client.get("/").status_code == 401
        wrong = client.get("/enter/wrong")
        assert wrong.status_code == 401
        assert "<h1>Log in first</h1>" in wrong.text
        assert "Open the address that pgqueue web printed" in wrong.text
        assert "Content-Security-Policy" in wrong.headers
        assert client.get("/enter/the-token").status_code == 200
        assert client.get("/queues/default").status_code == 200


def test_a_page_that_gave_this_machine_a_name_of_its_own_gets_nothing(address: str) -> None:
    with httpx.Client(base_url=address, trust_env=False) as client:
        client.get("/enter/the-token")
        elsewhere = {"Host": "elsewhere.example"}
        assert client.get("/", headers=elsewhere).status_code == 403
        assert client.get("/enter/the-token", headers=elsewhere).status_code == 403


def test_the_command_prints_an_address_that_works(dsn: str) -> None:
    command = [sys.executable, "-m", "airflow_provider_pgqueue.cli", "web", "--read-only", "--json"]
    environment = os.environ | {"PGQUEUE_DSN": dsn}
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            with httpx.Client(trust_env=False, follow_redirects=True, timeout=60) as client:
                page = client.get(told["address"])
                assert page.status_code == 200
                assert client.get(page.url.join("/queues/default/pause")).status_code == 403
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
