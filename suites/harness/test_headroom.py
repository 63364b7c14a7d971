"""python -m conformance headroom --from: what a run's results.json says about the budget that is used."""

import pytest

from conformance.cli import main
from conformance.headroom import closest, spread, used
from conformance.records import Record, Status, write_results
from conformance.report import sample


def record(headroom, requirement="NORM-1", *, status=Status.PASS, implementation="reference", **fields):
    defaults = {"variant": "ops", "dtype": "float32", "measure": "rms", "case": f"case of {headroom}"}
    return Record(
        requirement=requirement,
        implementation=implementation,
        status=status,
        headroom=headroom,
        **{**defaults, **fields},
    )


def test_only_what_a_right_implementation_passed_and_measured_counts():
    right = record(0.5)
    others = [
        record(3.0, status=Status.FAIL),
        record(2.0, status=Status.DEVIATION),
        record(0.9, implementation="fault:norm.centred"),
        record(None),
    ]
    assert used([*others, right]) == [right]


def test_a_run_without_such_records_is_refused():
    with pytest.raises(ValueError, match="no record of the run passes with a measured headroom"):
        used([record(3.0, status=Status.FAIL)])


def test_rows_stand_in_the_order_of_the_spec_by_dtype():
    records = [
        record(0.1, "ROPE-10"),
        record(0.1, "ROPE-2"),
        record(0.1),
        record(0.1, dtype="bfloat16"),
    ]
    rows = [tuple(row[:2]) for row in spread(used(records))]
    assert rows == [
        ("NORM-1", "bfloat16"),
        ("NORM-1", "float32"),
        ("ROPE-2", "float32"),
        ("ROPE-10", "float32"),
    ]


def test_a_row_has_the_number_of_records_the_median_the_99th_percentile_and_the_worst():
    records = [record(n / 200) for n in range(101)]
    assert list(spread(records)) == [["NORM-1", "float32", "101", "0.25", "0.49", "0.50"]]


def test_a_headroom_just_below_the_line_is_not_rounded_on_to_it():
    ((*_, worst),) = spread([record(0.9996)])
    assert worst == "0.9996"


def test_the_closest_one_is_named_with_its_case():
    worst = record(
        0.75, "MLP-2", implementation="litgpt", variant="llama-3-8b", dtype="float16", measure="row gain"
    )
    assert closest([record(0.5), worst, record(0.1)]) == (
        "closest to the line: 0.75 (row gain), MLP-2 on litgpt, llama-3-8b, float16: case of 0.75"
    )


def test_the_command_prints_a_table_and_the_closest_case_of_the_implementations_asked_for(tmp_path, capsys):
    records = [record(0.25), record(0.5, implementation="litgpt"), record(0.75, implementation="user")]
    write_results(tmp_path, sample.results()[0], records, [])
    assert main(["headroom", "--from", str(tmp_path), "--impl", "reference", "--impl", "litgpt"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| requirement | dtype | records | p50 | p99 | max |",
        "|---|---|---|---|---|---|",
        "| NORM-1 | float32 | 2 | 0.38 | 0.50 | 0.50 |",
        "",
        "closest to the line: 0.50 (rms), NORM-1 on litgpt, ops, float32: case of 0.5",
    ]


def test_a_folder_without_results_is_refused_with_what_to_do(tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(["headroom", "--from", str(tmp_path)])
    assert left.value.code == 2
    assert "run the suites first" in capsys.readouterr().err
