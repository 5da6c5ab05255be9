"""A whole comparison on a real, tiny model: what the folder holds, and what must be so whatever was measured."""

import json
import math
import re
from fractions import Fraction

import pytest

from inflight.compare.measure import output_sha256
from inflight.compare.simulated import outcomes_of_log
from inflight.compare.table import NOT_RUN
from inflight.explain.log import open_log
from inflight.metrics.ledger import COMPUTED

from .conftest import Compared, compare

VARIANTS = [
    "static",
    "static_ragged",
    "dynamic",
    "dynamic_ragged",
    "continuous",
    "continuous_unchunked",
    "continuous_contiguous",
]


def test_the_folder_is_complete(compared: Compared) -> None:
    files = {str(path.relative_to(compared.folder)) for path in compared.folder.rglob("*") if path.is_file()}
    assert files == {
        *("results.json", "index.html", "workload.jsonl", "command.txt", "rerun.sh", "summary.txt"),
        *("latency_cdf.svg", "ledger.svg", "kv_layout_continuous.svg", "kv_layout_continuous_contiguous.svg"),
        *(f"occupancy_{name}.{kind}" for name in VARIANTS for kind in ("svg", "html")),
        *(f"steps/{name}.jsonl" for name in (*VARIANTS, "alone", "capacity")),
    }


def test_every_variant_ran_every_request(compared: Compared) -> None:
    families = compared.results["families"]
    assert list(families) == VARIANTS
    for figures in families.values():
        assert (figures["num_requests"], figures["num_failed"]) == (16, 0)
        assert figures["latency"]["all"]["e2e_s"]["count"] == 16


def test_all_variants_give_the_same_tokens(compared: Compared) -> None:
    assert len({figures["output_sha256"] for figures in compared.results["families"].values()}) == 1
    assert compared.results["same_output"] is True
    assert "the same tokens, bit for bit" in compared.printed


def test_shares_add_up_and_follow_from_the_slots(compared: Compared) -> None:
    for figures in compared.results["families"].values():
        assert set(figures["ledger"]) == set(COMPUTED)
        assert math.isclose(sum(figures["ledger"].values()), 1, abs_tol=1e-12)
        assert math.isclose(sum(figures["seat_ledger"].values()), 1, abs_tol=1e-12)
        slots = figures["slots"]
        computed = sum(slots[name] for name in COMPUTED)
        assert {name: float(Fraction(slots[name], computed)) for name in COMPUTED} == figures["ledger"]
        assert 0 <= figures["empty_while_waiting_share"] <= figures["seat_ledger"]["empty"]


def test_useful_work_is_the_same_and_waste_is_where_it_belongs(compared: Compared) -> None:
    families = compared.results["families"]
    useful = {(figures["slots"]["prefill"], figures["slots"]["decode"]) for figures in families.values()}
    workload = compared.results["workload"]
    num_decodes = workload["num_output_tokens"] - workload["num_requests"]  # the first token comes of the prompt
    assert useful == {(workload["num_prompt_tokens"], num_decodes)}
    for name, figures in families.items():
        padded = name in ("static", "dynamic")
        assert (figures["slots"]["padding"] > 0) == padded
        assert (figures["slots"]["straggler"] > 0) == padded
    assert families["static"]["engine"]["mean_batch_size"] == 4.0  # 16 requests, batches of 4


def test_the_ledger_is_what_the_runner_fed_to_its_products(compared: Compared) -> None:
    for figures in compared.results["families"].values():
        steps = open_log(compared.folder / figures["step_log"]).steps()
        counted = [step.update.result.num_computed_tokens for step in steps if step.update.result is not None]
        assert sum(count or 0 for count in counted) == sum(figures["slots"][name] for name in COMPUTED)


def test_request_level_answers_come_at_once(compared: Compared) -> None:
    for name in VARIANTS[:4]:
        latency = compared.results["families"][name]["latency"]["all"]
        assert latency["ttft_s"] == latency["e2e_s"]
        assert latency["tpot_s"]["p99"] == 0.0
        assert latency["computed_tpot_s"]["p50"] > 0
        assert latency["computed_ttft_s"]["p50"] < latency["ttft_s"]["p50"]


def test_what_callers_saw_is_what_the_log_says(compared: Compared) -> None:
    for figures in compared.results["families"].values():
        outcomes = outcomes_of_log(compared.folder / figures["step_log"])
        assert output_sha256(outcomes) == figures["output_sha256"]
        latency = figures["latency"]["all"]
        assert 0 <= latency["queue_s"]["mean"] < latency["computed_ttft_s"]["mean"] <= latency["ttft_s"]["mean"]
        assert latency["ttft_s"]["mean"] >= sum(outcome.ttft_s or 0.0 for outcome in outcomes) / len(outcomes)


def test_contiguous_memory_is_reserved_and_not_written(compared: Compared) -> None:
    paged, piece = (compared.results["families"][name]["kv"] for name in ("continuous", "continuous_contiguous"))
    assert piece["allocator"] == "contiguous"
    assert piece["reserved_unused_share"] > 0.3  # of 256 tokens for each row
    assert paged["reserved_unused_share"] < 0.2  # of whole blocks of 16


def test_the_table_is_complete(compared: Compared) -> None:
    table = compared.results["table"]
    assert table["columns"] == ["static", "dynamic", "continuous"]
    for row in table["rows"]:
        assert list(row["cells"]) == table["columns"]
        for cell in row["cells"].values():
            assert cell
            assert cell != NOT_RUN
            assert not re.search(r"(?<!\d)–", cell), "a figure is missing"
        if row["measured"]:
            assert list(row["values"]) == table["columns"]
    assert {row["row"] for row in table["rows"] if not row["measured"]} >= {
        *("scheduling unit", "when the batch is formed", "join or leave mid-batch", "typical use", "typical systems")
    }


def test_the_load_is_stated_relative_to_the_capacity(compared: Compared) -> None:
    offered = compared.results["offered"]
    assert offered["capacity_requests_per_s"] > 0
    assert math.isclose(offered["load"], offered["rate_requests_per_s"] / offered["capacity_requests_per_s"])
    assert f"{offered['load']:.1%}".replace("%", " %") in "\n".join(compared.results["notes"])


def test_step_logs_name_the_settings(compared: Compared) -> None:
    for name, figures in compared.results["families"].items():
        started = open_log(compared.folder / figures["step_log"]).started
        assert started.scheduler == figures["family"]
        assert started.config.get("padding", False) == (name in ("static", "dynamic"))
        assert started.config["max_model_len"] == 256


def test_it_runs_again_from_its_folder(compared: Compared, tmp_path_factory: pytest.TempPathFactory) -> None:
    script = (compared.folder / "rerun.sh").read_text()
    command = re.search(r"exec inflight compare (.*) --out", script)
    assert command is not None
    flags = command[1].replace("$here", str(compared.folder)).replace('"', "").split()
    again = compare(tmp_path_factory.mktemp("again") / "out", [*flags, "--families", "dynamic"])
    assert (
        again.results["families"]["dynamic"]["output_sha256"]
        == (compared.results["families"]["dynamic"]["output_sha256"])
    )
    lines = [json.loads(line) for line in (again.folder / "workload.jsonl").read_text().splitlines()]
    assert lines == [json.loads(line) for line in (compared.folder / "workload.jsonl").read_text().splitlines()]
    assert again.results["table"]["rows"][3]["cells"]["static"] == NOT_RUN


def test_progress_and_results_are_apart(compared: Compared) -> None:
    assert "continuous, whole prompts: 16 requests in" in compared.said
    assert "index.html" in compared.said
    assert compared.printed.strip() == (compared.folder / "summary.txt").read_text().strip()
