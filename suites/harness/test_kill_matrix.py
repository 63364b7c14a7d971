"""The command power: what it finds, what it makes of it, and what it leaves alone."""

import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from test_report import Page
from test_report import _hostile as hostile

from conformance import tracing
from conformance.checks import Selection
from conformance.cli import main
from conformance.faults import catalogue, named
from conformance.faults.catalogue import ops_fault
from conformance.implementations.base import Unsupported
from conformance.power import workers
from conformance.power.command import told
from conformance.power.judge import Cell, Fate, checks_of, judged
from conformance.power.matrix import Matrix
from conformance.power.places import SITS_IN, Place, component_of, place_of
from conformance.power.workers import Chunk, deal, in_this_process, spread
from conformance.records import read_results, write_results
from conformance.report import sample
from conformance.report.page import PAGE_BYTES, render
from conformance.report.power import read_power
from conformance.requirements_page import NEEDS_A_CHECKPOINT
from conformance.spec import requirements
from reference_impl.norm import rms_norm

pytestmark = pytest.mark.usefixtures("one_thread")

HARMLESS = ops_fault("norm.harmless", "NORM-2", rms_norm=rms_norm)
FEW = ["norm.zeros", "norm.centred", "mlp.relu"]
ASKED = ["NORM-1", "NORM-2", "MLP-1"]


@pytest.fixture
def seeded(monkeypatch):
    """Add faults to the catalogue."""

    def add(*faults):
        for fault in faults:
            monkeypatch.setitem(catalogue(), fault.name, fault)

    return add


@pytest.fixture
def power(monkeypatch, tmp_path, capsys):
    """Run the command in this process on some faults: (exit status, what it printed, key "power")."""
    monkeypatch.setattr(workers, "spread", lambda chunks, _jobs: in_this_process(chunks))

    def go(*names, folder=tmp_path, options=()):
        chosen = [word for name in names for word in ("--fault", name)]
        status = main(["power", *chosen, *options, "--report", str(folder)])
        return status, capsys.readouterr().out, read_power(folder)

    return go


def cell(fault, fate, requirement="", **fields):
    return Cell(fault=fault.name, requirement=requirement or fault.requirement, fate=fate, **fields)


def matrix_of(fates, **fields):
    """A matrix of the declared cells alone."""
    made = Matrix(faults=list(fates), requirements=list(requirements()), **fields)
    for fault, fate in fates.items():
        made.take(cell(fault, fate, needs="quick" if fate is Fate.KILLED else "", case="NormCase()"))
    return made


def all_killed(but=""):
    """The fates of a catalogue as it should be, without the faults of a requirement."""
    shown = [f for f in catalogue().values() if not f.equivalent and f.requirement != but]
    return dict.fromkeys(shown, Fate.KILLED)


# Exit status and sentence.


def test_faults_that_fall_are_counted_in_one_sentence(power):
    status, out, _ = power("norm.zeros", "norm.narrow-sum")
    assert status == 0
    assert out.splitlines()[-1] == (
        "2 faults: 2 killed on their declared requirement, 0 equivalent; "
        "a plain float32 comparison of logits sees 1 of 2"
    )


def test_a_fault_that_survives_is_reported(power, seeded):
    seeded(HARMLESS)
    status, out, found = power("norm.harmless", "norm.zeros")
    assert status == 1
    assert "norm.harmless survives NORM-2: a hole in its checks, or equivalent" in out
    assert "2 faults: 1 killed on their declared requirement, 1 survives" in out
    assert [f["fate"] for f in found["faults"]] == ["survived", "killed"]


def test_a_fault_that_is_named_is_told_with_its_distance_and_its_case(power):
    _, out, _ = power("norm.narrow-sum")
    pattern = r"norm\.narrow-sum: killed on NORM-4, headroom [\d.e]+, NormCase\(.*\), survived on LOGITS-1\n"
    assert re.match(pattern, out)


def test_an_equivalent_fault_may_survive(power, seeded):
    seeded(replace(HARMLESS, equivalent="it is right"))
    status, out, found = power("norm.harmless")
    assert status == 0
    assert "1 fault: 0 killed on their declared requirement, 1 equivalent" in out
    assert found["faults"][0]["equivalent"] == "it is right"


def test_an_equivalent_fault_that_is_killed_is_reported(power, seeded):
    seeded(replace(named("norm.zeros"), equivalent="nobody will notice"))
    status, out, _ = power("norm.zeros")
    assert status == 1
    assert re.search(r"norm\.zeros is called equivalent, but NORM-1 kills it on NormCase\(", out)


def test_an_error_is_no_kill(power, seeded):
    seeded(ops_fault("norm.raises", "NORM-1", rms_norm=lambda _x, _w, _eps: 1 / 0))
    status, out, found = power("norm.raises")
    assert status == 1
    assert "norm.raises ends in an error on NORM-1, which is no kill: ZeroDivisionError" in out
    assert found["faults"][0]["cells"] == {"NORM-1": "error", "LOGITS-1": "error"}


def test_a_fault_that_cannot_be_made_is_an_error_too():
    broken = replace(HARMLESS, make=lambda: 1 / 0)
    assert judged(broken, "NORM-1").reason.startswith("ZeroDivisionError")


def test_an_unknown_fault_lists_those_that_exist(power, capsys):
    with pytest.raises(SystemExit) as left:
        power("norm.sideways")
    assert left.value.code == 2
    assert "unknown fault 'norm.sideways'; there are norm.eps-outside, " in capsys.readouterr().err


def test_a_number_of_processes_below_one_is_refused(power, capsys):
    with pytest.raises(SystemExit):
        power("norm.zeros", options=("--jobs", "0"))
    assert "expected the number of processes, at least 1" in capsys.readouterr().err


def test_a_requirement_without_a_fault_is_reported():
    whole = matrix_of(all_killed(but="NORM-5"))
    assert "NORM-5 has no fault: seed one that it notices" in whole.problems()
    assert not [p for p in whole.problems() if p.startswith(tuple(NEEDS_A_CHECKPOINT))]
    assert not replace(whole, whole=False).problems()


def test_the_quick_profile_must_kill_most():
    made = matrix_of(all_killed())
    assert made.problems() == []
    for fault in made.faults[::10]:
        made.take(replace(made.declared(fault), needs="standard"))
    assert [p for p in made.problems() if p.startswith("the quick profile kills ")]


def test_few_may_be_equivalent():
    fates = all_killed()
    some = {replace(f, equivalent="so it is"): Fate.SURVIVED for f in list(fates)[::8]}
    kept = {f: fate for f, fate in fates.items() if f.name not in {g.name for g in some}}
    assert [p for p in matrix_of({**kept, **some}).problems() if "are called equivalent" in p]


def test_the_sentence_of_the_whole_catalogue_counts_living_requirements():
    text = matrix_of(all_killed()).sentence()
    live = len(requirements()) - len(NEEDS_A_CHECKPOINT)
    assert f"{live} of {live} requirements alive (REAL-1 needs a checkpoint)" in text


# Profiles.


def test_what_only_draws_show_needs_a_larger_profile():
    quick = Selection(profile="quick")
    covered = {case.n for check in checks_of("NORM-1") for case in check.cases(quick)}

    def wrong(x, weight, eps):
        return rms_norm(x, weight, eps) * (1 if x.shape[-1] in covered else 2)

    hidden = ops_fault("norm.hidden", "NORM-1", rms_norm=wrong)
    assert judged(hidden, "NORM-1").fate is Fate.SURVIVED
    assert judged(hidden, "NORM-1", "thorough").needs == "standard"


def test_a_fault_that_draws_gives_the_same_cell_again():
    fault = named("attention.dropout")
    assert judged(fault, "ATTN-11") == judged(fault, "ATTN-11")


# Processes.


def test_one_process_and_two_find_the_same():
    chunks = [*deal([named(n) for n in FEW], ASKED, "quick", full=True)]
    one, two, here = list(spread(chunks, 1)), list(spread(chunks, 2)), list(in_this_process(chunks))
    assert {cell.fate for cell in here} == {Fate.KILLED, Fate.SURVIVED}
    assert sorted(map(repr, one)) == sorted(map(repr, two)) == sorted(map(repr, here))


def test_a_process_that_dies_costs_one_cell(capfd):
    chunk = Chunk(requirement="NORM-1", faults=("norm.zeros", "no.such-fault", "norm.nan"))
    fates = {cell.fault: (cell.fate, cell.reason) for cell in spread([chunk], 1)}
    assert fates["norm.zeros"][0] is fates["norm.nan"][0] is Fate.KILLED
    assert fates["no.such-fault"] == (Fate.ERROR, "the process that judged it ended with exit code 1")
    assert "unknown fault 'no.such-fault'" in capfd.readouterr().err


def test_ctrl_c_keeps_what_is_measured(power, monkeypatch):
    def cut_short(chunks, _jobs):
        yield next(in_this_process(chunks))
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "spread", cut_short)
    status, out, found = power("norm.zeros", "norm.nan")
    assert status == 130
    assert found["interrupted"]
    assert [f["fate"] for f in found["faults"]] == ["killed", "not run"]
    assert "1 not run" in out


def test_progress_is_told_now_and_then(monkeypatch, capsys):
    clock = iter(range(0, 100, 4))
    monkeypatch.setattr("conformance.power.command.time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert list(told(range(6), 6)) == [*range(6)]
    assert capsys.readouterr().out.splitlines() == ["3 of 6 cells, 12 s", "6 of 6 cells, 24 s"]


# The matrix.


def test_a_full_matrix_has_a_fate_in_every_cell():
    made = Matrix(faults=[named(n) for n in FEW], requirements=ASKED)
    for found in in_this_process(deal(made.faults, ASKED, "quick", full=True)):
        made.take(found)
    fates = [[str(made.at(f, r).fate) for r in ASKED] for f in made.faults]
    assert fates == [["killed", "killed", "survived"]] * 2 + [["survived", "survived", "killed"]]


def test_without_full_only_the_declared_requirement_and_the_plain_comparison_are_run(power):
    _, _, found = power("norm.widened")
    assert found["faults"][0]["cells"].keys() == {"NORM-5", "LOGITS-1"}
    assert not found["full"]


def test_full_asks_every_requirement_once():
    dealt = deal([named("norm.zeros")], list(requirements()), "standard", full=True)
    assert [c.requirement for c in dealt][:2] == ["NORM-1", "LOGITS-1"]
    assert sorted(c.requirement for c in dealt) == sorted(set(requirements()) - NEEDS_A_CHECKPOINT)
    assert [c.profile for c in dealt] == ["standard"] + ["quick"] * (len(dealt) - 1)


def test_no_requirement_is_judged_without_a_check():
    assert judged(HARMLESS, "REAL-1").fate is Fate.NOT_RUN


def test_numbers_that_are_not_finite_stay_out_of_strict_json():
    fault = named("norm.nan")
    made = Matrix(faults=[fault], requirements=["NORM-1"])
    made.take(cell(fault, Fate.KILLED, headroom=math.inf))
    assert made.to_json()["faults"][0]["headroom"] is None


# Where the fault is.


def stand_in(monkeypatch, answer):
    def trace(_subject, _case):
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(suspect=answer[0], component=answer[1])

    monkeypatch.setattr(tracing, "trace", trace)


@pytest.mark.parametrize(
    ("answer", "place"),
    [
        (("layers.0.q_rot", "rope"), Place(tap="layers.0.q_rot", component="rope", right=True)),
        (("logits", "logits"), Place(tap="logits", component="logits", right=False)),
        (("", ""), Place(tap="", component="", right=False)),
        (Unsupported("no taps"), None),
    ],
)
def test_a_killing_case_is_traced_to_a_component(monkeypatch, answer, place):
    stand_in(monkeypatch, answer)
    assert place_of(named("rope.interleaved"), "ModelCase(dtype='float32')") == place


def test_a_trace_that_raises_places_the_fault_nowhere_and_the_kill_stands(monkeypatch):
    stand_in(monkeypatch, RuntimeError("lost"))
    found = judged(named("norm.zeros"), "LOGITS-1")
    assert found.fate is Fate.KILLED
    assert found.place.component.startswith("no trace: RuntimeError: lost")
    assert not found.place.right


def test_kills_of_other_requirements_are_not_traced(monkeypatch):
    stand_in(monkeypatch, AssertionError("asked"))
    assert judged(named("norm.zeros"), "NORM-1").place is None


def test_scaling_is_looked_for_in_the_rotation_and_a_mask_in_attention():
    assert component_of(named("scale.dropped")) == "rope"
    assert component_of(named("mask.none")) == "attention"
    assert component_of(named("norm.zeros")) == "norm"


def test_every_fault_that_sits_elsewhere_exists_and_every_component_is_one_of_a_trace():
    assert SITS_IN.keys() <= catalogue().keys()
    assert set(SITS_IN.values()) <= set(tracing.COMPONENTS.values())


def test_faults_are_found_where_they_sit():
    for name in ("norm.zeros", "rope.interleaved", "mask.none", "mlp.gelu", "logits.centred"):
        assert judged(named(name), "LOGITS-1").place.right, name


# results.json and the page.


def test_results_json_keeps_everything_else(power, tmp_path):
    run, records, checkpoints = sample.results()
    write_results(tmp_path, run, records, checkpoints)
    before = json.loads((tmp_path / "results.json").read_text("utf-8"))
    power("norm.zeros")
    after = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert after.pop("power")["faults"][0]["fault"] == "norm.zeros"
    assert after == before
    assert "What does not hold" in (tmp_path / "index.html").read_text("utf-8")


def test_without_a_run_there_are_its_facts_and_no_checks(power, tmp_path):
    power("norm.zeros")
    run, records, checkpoints = read_results(tmp_path)
    assert run["versions"]["torch"]
    assert records == checkpoints == []
    page = (tmp_path / "index.html").read_text("utf-8")
    assert "<h1>1 fault: 1 killed" in page


def test_a_results_json_that_cannot_be_read_is_left_alone(power, tmp_path, capsys):
    (tmp_path / "results.json").write_text("{", encoding="utf-8")
    with pytest.raises(SystemExit):
        power("norm.zeros")
    assert "cannot add to" in capsys.readouterr().err
    assert (tmp_path / "results.json").read_text("utf-8") == "{"


def test_the_page_can_be_written_again(power, tmp_path, capsys):
    power("norm.zeros")
    written = (tmp_path / "index.html").read_text("utf-8")
    (tmp_path / "index.html").unlink()
    assert main(["page", str(tmp_path)]) == 0
    assert (tmp_path / "index.html").read_text("utf-8") == written
    assert capsys.readouterr().out.strip().endswith("index.html")


def section_of(found):
    run, records, checkpoints = sample.results()
    text = render(run, records, checkpoints, power=found)
    return re.search(r'<section id="power">.*?</section>', text, re.DOTALL)[0]


def test_the_page_tells_survivors_equivalents_and_misses():
    words = Page(section_of(sample.power()).replace("<t", " <t")).words
    for part in (
        "5 faults: 3 killed on their declared requirement",
        "mask.bold ends in an error on MASK-1",
        "mask.shy MASK-1 on a CPU no case can show it",
        "rope.narrow ROPE-10 standard",
        "1 of 2 faults that logits or a layer as a whole notice are found in the component they sit in",
        "mask.bold attention norm layers.0.attn_norm",
        "somebody/engine-x#12",
    ):
        assert part in words


def test_fates_differ_in_shape_and_every_picture_says_in_words_what_it_shows():
    text = section_of(sample.power())
    rows = {m[1]: m[0] for m in re.finditer(r"<g><title>([\w.-]+):.*?</g>", text)}
    shapes = {name: set(re.findall(r'<path class="(kill|live|broke)"', row)) for name, row in rows.items()}
    assert shapes["norm.halved"] == {"kill"}
    assert shapes["norm.narrow"] == {"kill", "live"}
    assert shapes["mask.bold"] == {"kill", "broke"}
    assert "norm.narrow: killed on NORM-4; survives 1 other" in text
    assert text.count('role="img"') == len(re.findall(r'<title id="power-\d+">', text)) == 3


def test_the_page_escapes_every_word_of_the_matrix():
    page = Page(text := section_of(hostile(sample.power())))
    assert "script" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert text.count("&lt;script&gt;alert") > 20
    assert "{{ 1 }}" in page.text


FATES = ("killed", "survived", "error")


def test_a_full_matrix_of_300_faults_leaves_the_page_small():
    template = sample.power()["faults"][0]
    faults = [
        {
            **template,
            "fault": f"norm.fault-number-{i}",
            "cells": {
                r: ("killed", "survived", "error")[(i * n) % 7 % 3] for n, r in enumerate(requirements())
            },
        }
        for i in range(300)
    ]
    run, records, checkpoints = sample.results()
    found = {**sample.power(), "requirements": list(requirements()), "faults": faults}
    assert len(render(run, records, checkpoints, power=found).encode()) < PAGE_BYTES
    assert "norm.fault-number-299" in section_of(found)
