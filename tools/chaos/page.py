"""The table of a run, and its page with plots."""

from __future__ import annotations

import base64
import html
import io
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools.chaos.account import Account


def lines(account: Account) -> list[str]:
    """Return the table of a run."""
    text = [f"{number:>9,}  {name}" for name, number in account.figures.items()]
    text += ["", *(f"{len(keys):>9,}  {kind} (should be 0)" for kind, keys in account.wrong.items())]
    text += ["", "archived by:", *(f"{number:>9,}  {who}" for who, number in account.consumers.most_common())]
    text += ["", "faults:", *(f"{number:>9,}  {what}" for what, number in account.faults.most_common())]
    text += [
        "",
        "errors that the load met:",
        *(f"{number:>9,}  {what}" for what, number in account.errors.most_common(25)),
    ]
    for kind, keys in account.wrong.items():
        text += [f"{kind}: {', '.join(keys[:20])}"] if keys else []
    return text


def write(file: Path, account: Account, entries: Iterable[dict[str, Any]], *, title: str) -> None:
    """Write the page: the table, and what was published and handled in each second with the faults."""
    parts = [
        f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title>",
        f"<h1>{html.escape(title)}</h1>",
    ]
    parts.append(f'<img alt="Messages per second, and the faults" src="data:image/png;base64,{_plot(entries)}">')
    parts.append(f"<pre>{html.escape(chr(10).join(lines(account)))}</pre>")
    parts.append("<table><tr><th>queue<th>result<th>messages")
    parts += [
        f"<tr><td>{queue}<td>{result}<td>{number:,}" for (queue, result), number in sorted(account.results.items())
    ]
    parts.append("</table>")
    file.write_text("\n".join(parts))


def _plot(entries: Iterable[dict[str, Any]]) -> str:
    from matplotlib.figure import Figure

    told = sorted(entries, key=lambda entry: float(entry["at"]))
    began = told[0]["at"] if told else 0.0
    figure = Figure(figsize=(12, 8), layout="constrained")
    rates, marks = figure.subplots(2, 1, sharex=True)
    for kind, label in (
        ("ok", "published"),
        ("deliver", "delivered, as recorded by consumers"),
        ("finish", "archived, as recorded"),
    ):
        seconds = Counter[int]()
        for entry in told:
            if entry["kind"] == kind:
                seconds[int(entry["at"] - began)] += len(entry["keys"])
        spread = range(int(told[-1]["at"] - began) + 1)
        rates.plot(spread, [seconds[second] for second in spread], label=label, linewidth=1)
    rates.set_ylabel("messages per second")
    rates.legend()
    faults = [entry for entry in told if entry["kind"] == "fault"]
    marks.scatter([fault["at"] - began for fault in faults], [fault["what"] for fault in faults], s=10)
    marks.set_xlabel("seconds")
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=100)
    return base64.b64encode(image.getvalue()).decode()
