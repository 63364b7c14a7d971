"""The renderings of records: the page, the lines of the terminal, GitHub's summary and annotations."""

from __future__ import annotations

import dataclasses
import importlib.resources
import itertools
import math
import random
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from conformance.cases import Case, HistoryCase, ModelCase
from conformance.records import Record, Status, read_results, write_results
from conformance.report import sample
from conformance.report.anchors import anchors
from conformance.report.page import PAGE_BYTES, render, write_page
from conformance.report.standing import WHOLE, Standing, cells, worst_first
from conformance.report.summary import annotations, failures, sentence, step_summary, verdicts
from conformance.report.words import SYMBOLS, number, percent, status_word

TEMPLATES = importlib.resources.files("conformance.report") / "templates"
HOSTILE = "<script>alert('&amp;')</script>\"|`\n{{ 1 }}"
WORDY = ("requirement", "implementation", "variant", "dtype", "measure", "case", "reason", "repro")
VOID = {"meta", "br", "img", "path", "rect", "use", "circle"}
# Their end tags may be left out in HTML.
OPTIONAL = {"td", "th", "tr", "li"}


def record(status=Status.PASS, requirement="NORM-1", implementation="mine", **fields):
    known = {"variant": "ops", "dtype": "float32"}
    if status in (Status.PASS, Status.FAIL, Status.DEVIATION, Status.UNEXPECTED_PASS):
        headroom = 50.0 if status in (Status.FAIL, Status.DEVIATION) else 0.5
        known |= {"measure": "rms", "error": headroom * 1e-6, "budget": 1e-6, "headroom": headroom}
    fields = known | fields
    return Record(requirement=requirement, implementation=implementation, status=status, **fields)


def run_of(records, **fields):
    names = list(dict.fromkeys(r.implementation for r in records))
    statements = {r.requirement: f"what {r.requirement} says" for r in records}
    return {**sample.results()[0], "implementations": names, "requirements": statements, **fields}


def page_of(records, checkpoints=(), **fields):
    return render(run_of(records, **fields), records, list(checkpoints))


def many(requirements, implementations, variants, dtypes=("float32", "bfloat16", "float16"), **fields):
    return [
        record(
            requirement=f"ROPE-{r}", implementation=f"library-{i}", variant=f"llama-{v}", dtype=d, **fields
        )
        for r, i, v, d in itertools.product(
            range(1, requirements + 1), range(implementations), range(variants), dtypes
        )
    ]


class Page(HTMLParser):
    """A page taken apart; raises where tags are not nested."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.links, self.text, self.open = [], [], [], "", []
        self.attributes = []
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value for name, value in attrs if name == "href"]
        if tag not in VOID | OPTIONAL:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID | OPTIONAL:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID | OPTIONAL:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    @property
    def words(self):
        return " ".join(self.text.split())


@pytest.mark.parametrize(
    ("statuses", "standing"),
    [
        ("pass fail deviation", Standing.BROKEN),
        ("pass error", Standing.BROKEN),
        ("pass unexpected-pass deviation", Standing.STALE),
        ("pass unsupported skipped", Standing.HOLDS),
        ("pass deviation", Standing.WITH_DEVIATIONS),
        ("deviation unsupported", Standing.DEVIATES),
        ("unsupported skipped", Standing.NOT_JUDGED),
    ],
)
def test_a_requirement_stands_as_its_records_say(statuses, standing):
    records = [record(Status(status), variant=status) for status in statuses.split()]
    (cell,) = cells(records).values()
    assert cell.standing is standing


def test_failures_without_a_number_come_before_any_number():
    bad = [
        record(Status.FAIL, "A-1", headroom=9e9),
        record(Status.FAIL, "A-2", headroom=None, error=None, measure="not finite"),
        record(Status.FAIL, "A-3", headroom=math.inf, error=math.inf),
        record(Status.ERROR, "A-4"),
    ]
    assert [cell.requirement for cell in worst_first(bad, *Status)] == ["A-4", "A-2", "A-3", "A-1"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.3149, "0.31"),
        (0.0031, "0.0031"),
        (2.34e-7, "2.3e-7"),
        (12.44, "12.4"),
        (4074.0, "4074"),
        (41000.0, "4.1e4"),
        (1.0, "1.00"),
        (0.9996, "0.9996"),
        (1.0004, "1.0004"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_numbers_are_short_and_are_never_rounded_on_to_the_line(value, text):
    assert number(value, line=True) == text


def test_an_error_is_rounded_like_any_number_and_a_headroom_never_on_to_the_line():
    assert number(0.9999999999999999) == "1.00"
    assert number(0.9999999999999999, line=True) == "0.9999999999999999"


def test_a_relative_change_carries_its_sign():
    assert [percent(x) for x in (0.00157, -3.1e-7, 0.0, None)] == ["+0.16 %", "−3.1e-5 %", "0 %", ""]


def test_the_sentence_says_that_all_holds():
    records = [record(), record(requirement="NORM-2"), record(Status.DEVIATION, "NORM-2", variant="tiny")]
    assert sentence(records) == "Every requirement judged holds for mine (2 of 2, 1 with deviations)."


def test_the_sentence_names_what_does_not_hold_and_for_whom():
    records = [
        record(Status.FAIL),
        record(requirement="NORM-2"),
        record(implementation="good"),
        record(Status.UNSUPPORTED, implementation="idle"),
        record(Status.UNEXPECTED_PASS, implementation="mended"),
        record(Status.DEVIATION, implementation="odd"),
        record(requirement="NORM-2", implementation="odd"),
    ]
    assert sentence(records) == (
        "1 of 2 requirements does not hold for mine (NORM-1); all hold for good (1 of 1); "
        "all hold but for listed deviations for mended (0 of 1) and odd (1 of 2); "
        "the deviation listed for mended on NORM-1 no longer shows; nothing was judged for idle."
    )


@pytest.mark.parametrize(
    ("records", "text"),
    [([], "no check ran"), ([record(Status.UNSUPPORTED)], "1 check, all unsupported or skipped")],
)
def test_the_sentence_says_when_nothing_was_judged(records, text):
    assert sentence(records).startswith("Nothing was judged")
    assert text in sentence(records)


def test_a_verdict_line_gives_count_worst_place_and_what_was_not_judged():
    records = [
        record(headroom=0.25),
        record(Status.FAIL, "ROPE-3", variant="llama-3-8b", headroom=812.0),
        record(Status.DEVIATION, "ROPE-9", headroom=9e4),
        record(Status.SKIPPED, "REAL-1"),
    ]
    (line,) = verdicts(records)
    assert line == (
        "✗ mine  1 of 3 requirements hold; 1 does not: ROPE-3; start with ROPE-3; "
        "worst headroom 812 (ROPE-3, llama-3-8b, float32); ROPE-9 deviates throughout; 1 not judged"
    )


def test_a_failure_block_stands_alone():
    bad = record(Status.FAIL, coordinate=(0, 3), case="seed=7", reason="eps\noutside", repro="pytest suites/")
    (block,) = failures([bad], statements={"NORM-1": "divides by the root"})
    for part in ("NORM-1", "mine", "ops", "float32", "divides by the root", "rms 5.0e-5, allowed 1.0e-6"):
        assert part in block
    for part in ("headroom 50.0", "[0, 3]", "seed=7", "eps\n            outside", "pytest suites/"):
        assert part in block


def test_failures_beyond_the_limit_are_counted():
    bad = [record(Status.FAIL, f"NORM-{n}") for n in range(1, 8)]
    assert len(failures(bad, 7)) == 7
    assert failures(bad, 5)[-1] == "… and 2 more that do not hold: NORM-6 · mine and NORM-7 · mine"


def test_annotations_are_at_most_ten_and_the_last_counts_the_rest():
    bad = [record(Status.FAIL, f"ROPE-{n}") for n in range(1, 15)]
    assert len(annotations(bad[:10])) == 10
    assert len(annotations(bad)) == 10
    assert "5 more requirements" in annotations(bad)[-1]
    assert annotations([record(), record(Status.DEVIATION)]) == []


def test_annotations_escape_what_would_end_or_split_the_command():
    bad = record(Status.FAIL, implementation="a:b,c%", reason="100%\nlost\r::error::x")
    (line,) = annotations([bad])
    title, message = re.fullmatch(r"::error title=([^:,]*)::(.*)", line).groups()
    assert title == "NORM-1 a%3Ab%2Cc%25 ops float32"
    assert "100%25%0Alost%0D::error::x" in message


def test_the_step_summary_stays_under_200_kb_and_says_what_it_leaves_out():
    bad = many(400, 6, 1, status=Status.FAIL, reason="ü" * 5000)
    text = step_summary(run_of(bad), bad)
    assert len(text.encode()) <= 200_000
    rows = text.count("| ✗ fail |")
    assert 0 < rows < 2400
    assert f"{2400 - rows} of 2400 left out here" in text


def test_the_step_summary_shows_markup_literally():
    bad = [record(Status.FAIL, HOSTILE, HOSTILE, reason=HOSTILE, case=HOSTILE)]
    text = step_summary(run_of(bad), bad)
    assert "<script" not in text
    outside = re.sub(r"<pre>.*?</pre>|</?(details|summary)>", "", text, flags=re.DOTALL)
    assert "alert" in outside
    assert not re.search(r"[<`\[{]", outside)
    assert {line.count("|") for line in outside.splitlines() if line.startswith("| ✗ fail")} == {8}


def test_what_a_person_reads_needs_no_template_engine_and_no_torch():
    code = "import sys, conformance.report.summary, conformance.report.page; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"jinja2", "torch"} & set(loaded)


def test_the_page_is_one_well_formed_offline_file_whose_links_lead_somewhere():
    text = sample.sample()
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert all(link.startswith("#") for link in page.links)
    assert not re.search(r"https?:|//|url\(|@import|<script|<link|<img", text)
    assert "norm-1--mine-py-build" in page.ids


def test_the_page_tells_a_failure_in_full():
    bad = record(
        Status.FAIL, error=0.94, budget=2.3e-5, headroom=40870.0, coordinate=(0, 3, 17), case="seed=7 T=65",
        reason="the table is not cut", repro="pytest suites/ --requirement NORM-1", variant="llama-3.2-1b",
    )  # fmt: skip
    words = Page(page_of([bad])).words
    for part in (
        "What does not hold",
        "✗ fail NORM-1 mine",
        "4.1e4 headroom",
        "what NORM-1 says",
        "0.94 rms",
    ):
        assert part in words
    for part in ("2.3e-5", "[0, 3, 17]", "llama-3.2-1b, float32", "seed=7 T=65", "the table is not cut"):
        assert part in words
    assert "pytest suites/ --requirement NORM-1" in words


def test_failures_come_before_deviations_and_stale_ones_first_among_these():
    records = [
        record(Status.DEVIATION, "A-1", reason="known since 1.2"),
        record(Status.UNEXPECTED_PASS, "A-2", reason="listed for 1.1"),
        record(Status.FAIL, "A-3", headroom=2.0),
        record(Status.FAIL, "A-4", headroom=3.0),
    ]
    text = page_of(records)
    order = [text.index(f'<article class="block {kind}') for kind in ("fail", "unexpected-pass", "deviation")]
    assert order == sorted(order)
    assert text.index("why--a-4--mine") < text.index("why--a-3--mine")
    assert "known since 1.2" in text
    assert "listed for 1.1" in text


@pytest.mark.parametrize("status", Status)
def test_every_cell_of_the_matrix_has_a_symbol_a_word_and_its_headroom(status):
    text = page_of([record(status)])
    cell = re.search(r'<td class="s [\w-]+"><a href="#norm-1--mine">(<span.*?)</a>', text)[1]
    assert Page(cell).words.startswith(f"{SYMBOLS[status]} {status_word(status)}")
    measured = status not in (Status.ERROR, Status.SKIPPED, Status.UNSUPPORTED)
    assert bool(re.search(r"<b>(50\.0|0\.50)</b>", cell)) is measured


def test_a_broken_exact_law_says_so_where_there_is_no_headroom():
    assert "<b>exact</b>" in page_of([record(Status.FAIL, error=None, headroom=None, budget=0.0)])


def test_a_cell_without_a_record_says_that_it_was_not_run():
    assert "not run" in page_of([record(), record(requirement="NORM-2", implementation="other")])


def test_a_requirement_without_a_record_is_named():
    page = page_of([record()], requirements={"NORM-1": "a", "NORM-2": "b"})
    assert "Without a record in this run: NORM-2." in page


def test_sections_without_data_have_no_heading():
    headings = re.findall(r"<h2>(.*?)</h2>", page_of([record()]))
    assert headings == ["Requirements by implementation", "Headroom by dtype", "Every record", "Environment"]
    assert re.findall(r"<h2>(.*?)</h2>", page_of([])) == ["Environment"]


def test_an_interrupted_run_says_so_first():
    page = page_of([record()], interrupted=True, seconds=12.5)
    assert "<h1>Interrupted after 12.5 s and 1 check. Every requirement judged holds" in page
    assert "Interrupted" not in page_of([record()])


def test_the_page_escapes_every_string():
    run, records, checkpoints = sample.results()
    run, checkpoints = _hostile(run), [_hostile(entry) for entry in checkpoints]
    bad = [
        dataclasses.replace(r, status=status, facts={HOSTILE: HOSTILE}, **dict.fromkeys(WORDY, HOSTILE))
        for r, status in zip(records, itertools.cycle(Status), strict=False)
    ]
    text = render(run, bad, checkpoints, HOSTILE)
    page = Page(text)
    assert "script" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert text.count("&lt;script&gt;alert") > 50
    assert "{{ 1 }}" in page.text


def _hostile(value):
    if isinstance(value, dict):
        return {name: _hostile(item) for name, item in value.items()} | {HOSTILE: HOSTILE}
    if isinstance(value, list):
        return [_hostile(item) for item in value]
    return HOSTILE if isinstance(value, str) else value


def test_no_template_switches_escaping_off():
    for template in TEMPLATES.iterdir():
        bare = re.sub(r"{[{%].*?[%}]}", "", template.read_text(encoding="utf-8"))
        assert "='" not in bare  # apostrophes stand unescaped on the page
        assert not re.search(r"\|\s*safe\b|autoescape|Markup", template.read_text(encoding="utf-8"))


def test_the_page_renders_what_is_read_back_whatever_its_order(tmp_path):
    run, records, checkpoints = sample.results()
    write_results(tmp_path, run, records[::-2] + records[-2::-2], checkpoints)
    path = write_page(tmp_path, *read_results(tmp_path))
    assert path == tmp_path / "index.html"
    assert path.read_text(encoding="utf-8") == render(run, records, checkpoints)


def test_numbers_that_are_not_finite_are_shown_as_results_json_keeps_them():
    odd = record(Status.FAIL, error=math.nan, headroom=math.inf, measure="not finite")
    assert page_of([odd]) == page_of([Record.from_json(odd.to_json())])
    assert "<b>not finite</b>" in page_of([odd])


def test_a_page_of_2500_records_lists_each_under_1_mb_and_in_about_a_second():
    records = many(
        60, 6, 7, case="seed=123456 regime=loud batch=3 tokens=65", coordinate=(1, 2, 3), examples=20
    )
    assert len(records) > 2500 * 3
    records = [
        dataclasses.replace(r, error=n * 1e-9, headroom=n * 1e-4) for n, r in enumerate(records[: 60 * 42])
    ]
    run = run_of(records)
    start = time.process_time()
    text = render(run, records, [])
    assert time.process_time() - start < 2
    assert len(text.encode()) < PAGE_BYTES
    rows, others = text.count("<tr><th>llama-"), re.findall(r"Others that pass[^<]*", text)
    assert rows == 4 * 120
    assert rows + sum(other.count("llama-") for other in others) == len(records)
    assert "in less detail" not in text


VARIANTS = [f"llama-{n}" for n in range(15)]


def a_run_of_the_size_of_all(broken):
    """85 requirements on 8 implementations; a third on 15 variants of which ten differ, others on two."""
    draw = random.Random(5)  # noqa: S311 - a picture, not a secret
    records = []
    for r, i in itertools.product(range(1, 86), range(8)):
        place = {"requirement": f"{'ABCDEFGHI'[r // 10]}-{r}", "implementation": f"library-{i}"}
        names = VARIANTS if r % 3 == 0 else VARIANTS[:2]
        wheres = [("float32", n) for n in range(len(names))]
        wheres += [(dtype, n) for dtype in ("bfloat16", "float16") for n in range(2)]
        numbers = {(dtype, n % 10): draw.uniform(0.01, 0.6) for dtype, n in wheres}
        for dtype, n in wheres:
            size = numbers[dtype, n % 10] if r % 4 else 0.0
            fields = {
                "error": size * 2.3e-6,
                "budget": 2.3e-6,
                "headroom": size,
                "coordinate": (n % 10, 17, 40),
            }
            fields |= {"case": f"ModelCase(dtype='{dtype}', variant='{names[n]}', tokens=17)", "examples": 6}
            status = Status.PASS
            if (r + i) % 4 == 0:
                status, fields = Status.UNSUPPORTED, {"reason": f"library-{i} offers no part of {r}"}
            elif (r, i) in broken:
                status, fields["headroom"] = Status.FAIL, 1e4
                fields |= {"reason": "event 3", "repro": "pytest " + "x" * 400, "script": "a = 1\n" * 700}
            records.append(record(status, **place, variant=names[n], dtype=dtype, **fields))
    return records


def power_of_the_size_of_all():
    (kind, *_) = sample.power()["faults"]
    names = [f"{'abcdefghijkl'[n % 12]}.wrong-in-some-way-{n}" for n in range(310)]
    cells = {"A-1": "killed", "B-12": "survived"}
    case = "HistoryCase(dtype='float32', variant='llama-2-7b', events=(('new', 0, 2, 8, 0), ('step', 0, 5)))"
    faults = [{**kind, "fault": name, "component": name[0], "cells": cells, "case": case} for name in names]
    return {
        **sample.power(),
        "faults": faults,
        "requirements": [f"{'ABCDEFGHI'[r // 10]}-{r}" for r in range(1, 86)],
    }


@pytest.mark.parametrize(
    ("broken", "most"), [(set(), 700_000), ({(r, 3) for r in range(40, 48)}, 750_000)], ids=["holds", "fails"]
)
def test_a_run_of_everything_with_its_power_is_told_whole_in_700_kb(broken, most):
    records = a_run_of_the_size_of_all(broken)
    run = run_of(records, variants=VARIANTS)
    page = Page(text := render(run, records, [], power=power_of_the_size_of_all()))
    assert len(records) == 6992
    assert len(text.encode()) < most
    assert "in less detail" not in page.words
    assert "in results.json" not in text.partition("<footer>")[0]
    assert re.search(r'<table class="faults">.*?</table>', text, re.DOTALL)[0].count("<tr><th>") == 310
    assert {
        f"{'ABCDEFGHI'[r // 10].lower()}-{r}--library-{i}" for r in range(1, 86) for i in range(8)
    } <= set(page.ids)


def listed_rows(text):
    """The cells of the rows under "Every record"."""
    section = text.partition('<section id="records">')[2].partition("</section>")[0]
    section = re.sub(r"<thead>.*?</thead>", "", section)
    rows = re.findall(r"<tr><th>(.*?)(?=<tr>|</tbody>)", section, re.DOTALL)
    return [tuple(re.sub(r"<[^>]*>", "", cell).strip() for cell in row.split("<td")) for row in rows]


def of_variants(names, dtypes=("float32",), **fields):
    return [record(variant=v, dtype=d, **fields) for v in names for d in dtypes]


def test_records_alike_but_for_variant_and_dtype_share_a_row_that_names_them_all():
    some = of_variants(["b", "a"], ("float32", "bfloat16")) + of_variants(["c"], headroom=0.25)
    rows = [(row[0], row[1].lstrip(">")) for row in listed_rows(page_of(some))]
    assert rows == [("a, b", "float32 and bfloat16"), ("c", "float32")]


@pytest.mark.parametrize(
    "other", [{"error": 2e-6}, {"budget": 3e-6}, {"coordinate": (1,)}, {"examples": 9}, {"measure": "gain"}]
)
def test_records_that_differ_in_anything_shown_have_a_row_each(other):
    text = page_of(of_variants(["a"]) + of_variants(["b"], **other))
    assert sorted(row[0] for row in listed_rows(text)) == ["a", "b"]


def test_a_row_of_every_variant_but_few_says_so():
    names = [f"v{n}" for n in range(8)]
    text = page_of(of_variants(names[:7]) + of_variants(names[7:], headroom=0.25), variants=names)
    assert [row[0] for row in listed_rows(text)] == ["all but v7", "v7"]
    assert [row[0] for row in listed_rows(page_of(of_variants(names), variants=names))] == ["all 8"]


def test_passes_beyond_the_first_few_are_told_by_their_headroom():
    some = [record(variant=f"v{n}", headroom=0.5 - n / 100, error=n * 1e-9) for n in range(7)]
    some += [record(Status.FAIL, variant="v7", headroom=0.01)]
    text = page_of(some)
    assert [row[0] for row in listed_rows(text)] == ["v7", "v0", "v1", "v2"]
    assert "Others that pass, with their headroom: float32: v3 0.47, v4 0.46, v5 0.45, v6 0.44." in text


def test_implementations_alike_in_every_record_share_their_rows_and_keep_their_addresses():
    text = page_of(
        of_variants(["a"])
        + of_variants(["a"], implementation="b")
        + of_variants(["a"], implementation="c", error=3e-7)
    )
    assert len(listed_rows(text)) == 2
    assert {"norm-1--mine", "norm-1--b", "norm-1--c"} <= set(Page(text).ids)


def test_a_long_reason_is_written_once_and_then_referred_to():
    reason = "it has neither a cache nor a mask, " * 4
    some = [
        record(Status.SKIPPED, requirement, name, reason=reason, variant=name)
        for requirement in ("NORM-1", "NORM-2") for name in ("mine", "yours")
    ]  # fmt: skip
    text = page_of(some)
    assert text.count(reason.strip()) == 1
    assert text.count('<a href="#norm-1--mine">as for NORM-1 · mine</a>') == 3


def test_the_reason_of_a_deviation_is_told_once_with_what_was_seen():
    reason = "the library rounds its table"
    some = [
        record(Status.DEVIATION, variant=v, reason=f"{reason} [seen on {v}]", headroom=h)
        for v, h in (("a", 9.0), ("b", 4.0))
    ]
    text = page_of(some)
    assert text.count(reason) == 1
    assert "seen on a" in text
    assert "seen on b" in text


def test_the_script_of_a_failure_is_shown_behind_a_summary_and_escaped():
    bad = record(Status.FAIL, script="print('<b>')\n", case="HistoryCase()")
    text = page_of([bad, record(Status.FAIL, "NORM-2")])
    assert text.count("The history as a Python file") == 1
    shown = re.search(
        r'<details><summary>[^<]*</summary><pre class="script" tabindex="0">(.*?)</pre>', text, re.DOTALL
    )
    assert shown[1] == "print('&lt;b&gt;')\n"


def test_the_script_of_a_failure_stands_under_it_from_the_margin_on():
    (block,) = failures([record(Status.FAIL, script="import torch\n", case="HistoryCase()")])
    assert block.endswith("the history as a Python file:\n\nimport torch\n")
    assert "script" not in failures([record(Status.FAIL)])[0]


def test_what_asks_a_whole_model_is_no_op_alone():
    known = [kind.__name__ for kind in Case.kinds.values() if issubclass(kind, ModelCase | HistoryCase)]
    assert {*known, "checkpoint"} == set(WHOLE)


def test_a_huge_run_of_failures_still_fits_and_says_what_is_left_out():
    bad = many(100, 8, 4, status=Status.FAIL, reason="ü" * 6000, case="ü" * 6000, repro="ü" * 6000)
    page = Page(text := page_of(bad))
    assert len(text.encode()) < PAGE_BYTES
    told, listed, counted = _counted(text)
    assert told + listed + counted == 800
    assert "in less detail to keep this page under 1 MB" in page.words
    assert "more characters in results.json" in page.words


def _counted(text):
    section = re.search(r'<section id="failures">.*?</section>', text, re.DOTALL)[0]
    rest = re.search(r"(\d+) more are in results.json", section)
    return section.count("<article"), section.count('<tr><th scope="row">'), int(rest[1]) if rest else 0


def test_text_has_a_contrast_of_4_5_on_every_ground_in_both_schemes():
    css = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6})", block))
        for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL)[:2]
    )
    assert light.keys() == dark.keys()
    for scheme in (light, dark):
        for fg, bg in itertools.product(
            *([n for n in scheme if n.startswith(kind)] for kind in ("fg", "bg"))
        ):
            assert _contrast(scheme[fg], scheme[bg]) >= 4.5, (fg, bg)


def _contrast(one, other):
    bright, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def _luminance(colour):
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_every_colour_is_one_of_those_whose_contrast_is_known():
    css = re.sub(r":root \{.*?\}", "", (TEMPLATES / "page.css").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert not re.search(r"#[0-9a-f]{3,8}\b(?![^{]*\{)|rgb|hsl", css)
    grounds = re.findall(r"(?<![\w-])background: ([^;]+);", css)
    texts = re.findall(r"(?<![\w-])color: ([^;]+);", css)
    assert len(grounds) > 5
    assert len(texts) > 20
    assert all(ground.startswith("var(--bg") for ground in grounds)
    assert all(text.startswith("var(--fg") or text == "inherit" for text in texts)


def test_addresses_are_the_same_in_every_run_and_never_alike():
    assert anchors(["NORM-1", "examples/mine.py:build"]) == {
        "NORM-1": "norm-1",
        "examples/mine.py:build": "examples-mine-py-build",
    }
    assert anchors(["a.b", "a-b", "records", "λ"]) == {
        "a.b": "a-b",
        "a-b": "a-b-2",
        "records": "records-2",
        "λ": "unnamed",
    }


def test_layers_over_budget_are_marked_and_the_first_is_named():
    layer = {"tap": "residual", "budget": 1e-3}
    layers = [
        {**layer, "layer": 0, "error": 0.0, "headroom": 0.0},
        {**layer, "layer": 1, "error": 5e-3, "headroom": 5.0},
        {**layer, "layer": 2, "error": None, "headroom": None},
    ]
    entry = {**sample.results()[2][0], "layers": layers}
    text = page_of([record()], [entry])
    assert "First over budget: layer 1, residual: 0.0050, allowed 0.0010" in text
    assert text.count('<g class="mark fail">') == 2
    assert "layer 2, residual: no finite error" in text


def test_the_sample_is_current_and_small():
    path = Path(__file__).parents[2] / sample.SAMPLE
    assert path.read_text(encoding="utf-8") == sample.sample(), (
        f"run: python -m conformance.report.sample {sample.SAMPLE}"
    )
    assert path.stat().st_size < 80_000


def test_the_sample_goes_only_where_there_is_a_folder(tmp_path, capsys):
    assert sample.main([str(tmp_path / "sample.html")]) == 0
    assert sample.main([str(tmp_path / "absent" / "sample.html")]) == 2
    assert "an existing folder" in capsys.readouterr().err


def failing(requirement, suspect="", **fields):
    trace = [{"tap": "t", "over": True}] if "first step" in suspect else []
    case = fields.pop("case", "ModelCase(dtype='float32')")
    return record(Status.FAIL, requirement, case=case, suspect=suspect, trace=trace, **fields)


WRONG = "attention: layers.0.attention is the first step that is wrong; adds 1"


@pytest.mark.parametrize(
    ("records", "start"),
    [
        ([failing("LOGITS-1", WRONG), failing("MASK-1", WRONG)], "attention: layers.0.attention"),
        ([failing("LOGITS-1", WRONG), failing("ROPE-3", case="RotateCase(dtype='float32')")], "ROPE-3"),
        ([failing("LOGITS-1"), failing("ROPE-1"), failing("MASK-1"), failing("ATTN-2")], "MASK-1"),
        ([failing("LOGITS-1"), failing("ROPE-1"), failing("ATTN-2")], "ATTN-2"),
    ],
)
def test_the_verdict_says_where_to_start(records, start):
    (line,) = verdicts(records)
    assert f"; start with {start}; " in line


def test_what_points_at_its_cause_is_told_before_what_fails_with_anything():
    asked = ["LOGITS-1", "SCALE-3", "ATTN-2", "MASK-1"]
    records = [*map(failing, asked), failing("NORM-7", case="NormCase(dtype='float32')")]
    told = [block.split()[2] for block in failures(records)]
    assert told == ["NORM-7", "MASK-1", "ATTN-2", "LOGITS-1", "SCALE-3"]
