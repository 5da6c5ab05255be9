"""The alert rules as operators load them, and what their expressions say about two scrapes of a server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from prometheus_client.parser import text_string_to_metric_families

RULES = Path(__file__).parents[2] / "docs" / "alerts" / "inflight.rules.yml"
_SUM = re.compile(r"sum without \([a-z, ]*\) ")
_SELECTOR = re.compile(
    r"(?P<increase>increase\()?(?P<name>inflight_[a-z0-9_]+)(?:\{(?P<labels>[^}]*)\})?(?(increase)\[\d+m\]\))"
)

Scrape = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Selector(NamedTuple):
    """What of the metrics an expression looks at."""

    name: str
    labels: frozenset[tuple[str, str]]
    is_increase: bool


def rules() -> dict[str, dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def scrape(text: str) -> Scrape:
    families = text_string_to_metric_families(text)
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def selectors(expr: str) -> list[Selector]:
    return [_selector(found) for found in _SELECTOR.finditer(expr)]


def is_true(expr: str, before: Scrape, after: Scrape) -> bool:
    """What Prometheus would say of a server whose counters rose from ``before`` to ``after``.

    It knows no more of PromQL than the rules use: comparisons of sums, of gauges and of increases.
    """

    def value(found: re.Match[str]) -> str:
        wanted = _selector(found)
        matching = [key for key in after if key[0] == wanted.name and key[1] >= wanted.labels]
        # A series that was not there before has not increased: that is how Prometheus sees it.
        return repr(sum(after[key] - before.get(key, after[key]) * wanted.is_increase for key in matching))

    numbers = _SELECTOR.sub(value, _SUM.sub("", expr))
    assert re.fullmatch(r"[0-9.e()*>\s-]+", numbers), numbers
    return bool(eval(numbers))


def _selector(found: re.Match[str]) -> Selector:
    labels = frozenset(re.findall(r'([a-z_]+)="([^"]*)"', found["labels"] or ""))
    return Selector(found["name"], labels, found["increase"] is not None)
