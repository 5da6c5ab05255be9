"""The page of a comparison: one HTML file that needs nothing but the pictures beside it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from typing import Any

from inflight.compare.folder import RERUN, RESULTS, STEPS, WORKLOAD
from inflight.compare.numbers import percent
from inflight.compare.text import ROWS

Results = Mapping[str, Any]
MAX_INLINE = 4_000_000  # characters of a picture of the memory; one of more blocks stays beside the page


def page(
    results: Results, charts: Mapping[str, str], occupancy: Mapping[str, str], kv_layouts: Mapping[str, str]
) -> str:
    """The page; the pictures are SVG: ``charts`` by name, the others by variant."""
    families = results["families"]
    sections = [
        _section("What was run", [_list(results["notes"])]),
        _section("The three modes, measured", [_three_modes(results["table"])]),
        _section(
            "Latency, short and long requests apart",
            [_text(results["groups"]["text"]), _figure(charts["latency_cdf"])],
        ),
        _section("Where the work went", [_text(_LEDGER), _figure(charts["ledger"])]),
        _section("Who sat where", [_text(_OCCUPANCY), *_occupancy(families, occupancy)]),
        _section("Memory", _memory(families, kv_layouts)),
        _section("Everything that was measured", [_everything(families)]),
        _section("Run it again", [_again(results)]),
    ]
    template = (files("inflight.compare") / "page.html").read_text(encoding="utf-8")
    return (
        template.replace("{{title}}", html.escape(_title(results)))
        .replace("{{simulated}}", _SIMULATED if results["simulated"] else "")
        .replace("{{headlines}}", _list(results["headlines"]))
        .replace("{{sections}}", "\n".join(sections))
    )


_SIMULATED = '<p class="warning">Simulated: no model was run. The time of each step is predicted.</p>'
_LEDGER = (
    "Left, every token that a step computed; right, every seat of every step. Blue and green are of use. An empty seat "
    "is no loss unless somebody waits for it."
)
_OCCUPANCY = (
    "A row for each seat, over time, each picture on its own scale. Each has a page, to zoom and to ask each cell."
)


def _title(results: Results) -> str:
    machine = results["machine"]
    return f"Batching compared: {results['workload']['num_requests']} requests, {machine['model']}"


def _section(title: str, parts: Iterable[str]) -> str:
    return f"<section><h2>{html.escape(title)}</h2>\n" + "\n".join(parts) + "</section>"


def _text(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def _list(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"


def _figure(svg: str, caption: str = "") -> str:
    return f"<figure>{svg}{caption and f'<figcaption>{caption}</figcaption>'}</figure>"


def _three_modes(table: Mapping[str, Any]) -> str:
    head = "".join(f"<th scope=col>{html.escape(name)}</th>" for name in table["columns"])
    rows = [
        f"<tr{' class=measured' if row['measured'] else ''}><th scope=row>{html.escape(row['row'])}</th>"
        + "".join(f"<td>{html.escape(row['cells'][name])}</td>" for name in table["columns"])
        + "</tr>"
        for row in table["rows"]
    ]
    return _table(f"<tr><th></th>{head}</tr>", rows)


def _everything(families: Mapping[str, Any]) -> str:
    head = "".join(f"<th scope=col class=number>{html.escape(one['title'])}</th>" for one in families.values())
    rows = [
        f"<tr><th scope=row>{html.escape(name)}</th>"
        + "".join(f"<td class=number>{html.escape(cell(figures))}</td>" for figures in families.values())
        + "</tr>"
        for name, cell in ROWS
    ]
    note = _text("A ? marks a percentile beyond which fewer than 100 samples lie.")
    return _table(f"<tr><th></th>{head}</tr>", rows) + note


def _table(head: str, rows: Iterable[str]) -> str:
    return f"<div class=wide><table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table></div>"


def _occupancy(families: Mapping[str, Any], pictures: Mapping[str, str]) -> Iterator[str]:
    for name, svg in pictures.items():
        figures = families[name]
        title = html.escape(figures["title"])
        link = f'<a href="occupancy_{name}.html">zoom in</a>'
        yield f"<h3>{title}</h3>" + _figure(svg, f"{html.escape(figures['queue']['text'])}. {link}")


def _memory(families: Mapping[str, Any], pictures: Mapping[str, str]) -> Iterator[str]:
    yield _list(
        f"{figures['title']}: {percent(figures['kv']['reserved_unused_share'])} of the KV slots that were reserved, "
        f"over all steps, were not written ({figures['kv']['allocator']}); at most {figures['kv']['max_concurrency']} "
        f"rows ran at once; at most {percent(figures['kv']['peak_allocated_share'])} of the memory was allocated"
        for figures in families.values()
    )
    for name, svg in pictures.items():
        file = f"kv_layout_{name}.svg"
        picture = _figure(svg) if len(svg) <= MAX_INLINE else f'<p><a href="{file}">{file}</a>, a large picture</p>'
        yield f"<h3>{html.escape(families[name]['title'])}</h3>{picture}"


def _again(results: Results) -> str:
    told = [f"{name} {value}" for name, value in results["versions"].items()]
    return (
        f"<p>This was run:</p><pre>{html.escape(results['command'])}</pre>"
        f"<p>The same requests, at the same times, from the files beside this page:</p><pre>sh {RERUN} NEW-FOLDER</pre>"
        f"<p>Beside it lie <a href={RESULTS}>{RESULTS}</a> (every figure), "
        f"<a href={WORKLOAD}>{WORKLOAD}</a> (the requests) and <code>{STEPS}/</code> (every decision of every "
        f"scheduler: <code>inflight explain</code> reads them).</p><p>{html.escape(', '.join(told))}</p>"
    )
