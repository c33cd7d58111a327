"""The picture of the layers is that of the code."""

from __future__ import annotations

from tools import ROOT
from tools.layers import PICTURE, layers, picture


def test_the_picture_of_the_layers_is_current() -> None:
    assert PICTURE.read_text() == picture(), "run `make golden`"
    packages = {file.parent.name for file in (ROOT / "airflow_provider_pgqueue").glob("*/__init__.py")}
    assert {name for name in packages if f">{name}</text>" not in picture()} == set()


def test_the_rows_are_the_layers_of_the_contract_from_the_top() -> None:
    contract = {
        "type": "layers",
        "containers": ["airflow_provider_pgqueue"],
        "layers": ["(plugins) | (cli)", "task", "core"],
    }
    inside = {"type": "layers", "layers": ["airflow_provider_pgqueue.spark.source"]}
    assert layers([inside, contract]) == [["plugins", "cli"], ["task"], ["core"]]
