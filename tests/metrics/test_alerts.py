"""Each alert fires when it should and not otherwise; what it looks at is what /metrics has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from inflight.metrics.definitions import ALL, Kind
from inflight.metrics.prometheus import PrometheusMetrics
from inflight.metrics.slo import Slo
from metrics.alerts import RULES, is_true, rules, scrape, selectors

PROMTOOL = shutil.which("promtool")
ENDED = 'inflight_requests_total{outcome="stop",reason=""}'
REFUSED = 'inflight_requests_total{outcome="rejected",reason="queue_full"}'
# A value a minute, in promtool's notation: 1+2x3 is 1 3 5 7. The alert fires at the first time and not at the second.
FIRES: dict[str, tuple[dict[str, str], str, str]] = {
    "InflightKVCacheNearlyFull": ({"inflight_kv_cache_usage_ratio": "0.5 0.95x20"}, "7m", "5m"),
    "InflightPreemptsOften": (
        {
            'inflight_preemptions_total{mode="swap"}': "0+1x30",
            'inflight_preemptions_total{mode="recompute"}': "0+1x10 10x20",
            ENDED: "0+3x30",
            REFUSED: "0x30",
        },
        "9m",
        "25m",
    ),
    "InflightHostTierFull": ({"inflight_kv_host_usage_ratio": "1x7 0.9x20"}, "6m", "9m"),
    "InflightQueueFull": ({REFUSED: "0x3 1x20"}, "5m", "15m"),
    "InflightEngineLost": ({"inflight_engine_losses_total": "0x3 1x30"}, "5m", "20m"),
    "InflightMissesObjective": (
        {
            'inflight_slo_requests_total{met="true"}': "0+9x30",
            'inflight_slo_requests_total{met="false"}': "0+1x15 15x15",
        },
        "9m",
        "25m",
    ),
}


def test_every_alert_is_tried() -> None:
    assert rules().keys() == FIRES.keys()
    for rule in rules().values():
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}


@pytest.mark.parametrize("alert", rules())
def test_what_a_rule_looks_at_is_exported_from_the_start(alert: str) -> None:
    exported = scrape(PrometheusMetrics(slo=Slo(ttft_s=1.0)).render().decode())
    kinds = {metric.name: metric.kind for metric in ALL}
    found = selectors(rules()[alert]["expr"])
    assert found
    for one in found:
        assert any(name == one.name and labels >= one.labels for name, labels in exported), one
        assert one.is_increase == (kinds[one.name] is Kind.COUNTER)
    assert not is_true(rules()[alert]["expr"], exported, exported)


def run_promtool(*arguments: str | Path) -> None:
    done = subprocess.run([str(PROMTOOL), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool on the PATH (Debian: apt install prometheus)")
def test_prometheus_takes_the_file_and_fires_each_alert_once(tmp_path: Path) -> None:
    run_promtool("check", "rules", RULES)
    bare = [{key: value for key, value in rule.items() if key != "annotations"} for rule in rules().values()]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "bare", "rules": bare}]}))
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": series, "values": values} for series, values in given.items()],
            "alert_rule_test": [
                {"alertname": alert, "eval_time": fires, "exp_alerts": [{"exp_labels": rules()[alert]["labels"]}]},
                {"alertname": alert, "eval_time": silent, "exp_alerts": []},
            ],
        }
        for alert, (given, fires, silent) in FIRES.items()
    ]
    plan = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(plan))
    run_promtool("test", "rules", tmp_path / "tests.yml")
