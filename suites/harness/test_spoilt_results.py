"""A results.json that is cut off, edited or of another program: what reads it says so in words."""

import json

import pytest

from conformance import cli
from conformance.records import Record, Status, read_results, write_results
from conformance.report import sample
from conformance.report.page import render, write_page
from conformance.report.power import read_power
from conformance.schema import CHECK, CHECKPOINT, POWER, RUN

COMMANDS = (["verdict"], ["page"], ["headroom", "--from"], ["power", "--report"])


@pytest.fixture
def folder(tmp_path):
    """A folder with a whole results.json."""
    write_results(tmp_path, *sample.results())
    content = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    (tmp_path / "results.json").write_text(json.dumps({**content, "power": sample.power()}), encoding="utf-8")
    return tmp_path


def refusal(folder, capsys, command):
    """What a command says on a folder that it cannot read."""
    with pytest.raises(SystemExit) as left:
        cli.main([*command, str(folder)])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


def rewrite(folder, change):
    """Change what a results.json holds."""
    path = folder / "results.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "it is no JSON"),
        (b'{"schema": 1, "run": {"started": "2026', "was it cut off?"),
        (b"\xff\xfe\x00", "it is no JSON"),
        (b"[" * 100_000, "it is no JSON"),
        (b'{"schema": 1, "run": NaN}', "NaN is no JSON"),
        (b"[1, 2]", "it is [1, 2], expected an object"),
        (b"{}", "it has no 'schema'"),
        (b'{"schema": 7}', "schema 7, expected 1"),
        (b'{"schema": 1}', "it has no 'run'"),
    ],
    ids=lambda value: str(value[:12]),
)
def test_a_file_that_is_no_results_is_told_by_every_command(folder, capsys, command, text, words):
    (folder / "results.json").write_bytes(text)
    said = " ".join(refusal(folder, capsys, command).split())
    for part in (f"{folder}/results.json", words, "run the suites again"):
        assert part in said
    assert (folder / "results.json").read_bytes() == text


def test_a_file_cut_off_anywhere_is_told(folder):
    whole = (folder / "results.json").read_bytes()
    for at in range(0, len(whole), len(whole) // 40):
        (folder / "results.json").write_bytes(whole[:at])
        with pytest.raises(ValueError, match="cut off"):
            read_results(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["run"].pop("requirements"), "it.run has no 'requirements'"),
        (lambda c: c["run"].update(implementations="reference"), "it.run.implementations is 'reference'"),
        (lambda c: c.update(checks={}), "it.checks is {}, expected a list"),
        (lambda c: c["checks"].append(None), "is None, expected an object"),
        (lambda c: c["checks"][3].pop("status"), "check 3 has no 'status'"),
        (lambda c: c["checks"][3].update(status="fine"), "check 3.status is 'fine', expected one of pass"),
        (lambda c: c["checks"][3].update(headroom="high"), "headroom is 'high', expected a number or null"),
        (lambda c: c["checks"][3].update(coordinate=[1, "x"]), "check 3.coordinate[1] is 'x', expected"),
        (lambda c: c["checks"][3].update(facts={"a": 1}), "check 3.facts.a is 1, expected a text"),
        (lambda c: c["checks"][3].update(trace=[{}]), "check 3.trace[0] has no 'tap'"),
        (lambda c: c["checks"][3].update(colour="red"), "check 3 has 'colour', expected requirement,"),
        (lambda c: c["checkpoints"][0].pop("layers"), "it.checkpoints[0] has no 'layers'"),
        (lambda c: c.update(power=[]), "power is [], expected an object"),
        (lambda c: c["power"]["faults"][0].pop("cells"), "power.faults[0] has no 'cells'"),
        (lambda c: c["power"]["faults"][0].update(located={}), "located of norm.halved has no 'tap'"),
    ],
)  # fmt: skip
def test_what_is_not_as_the_schema_has_it_is_told_with_its_place(folder, capsys, change, words):
    rewrite(folder, change)
    assert words in " ".join(refusal(folder, capsys, ["page"]).split())


def test_a_record_without_the_fields_that_have_a_default_is_read(folder):
    before = read_results(folder)
    rewrite(folder, lambda c: [check.pop("script") for check in c["checks"]])
    assert read_results(folder) == before


def pruned(value, shape):
    """The value without what the shape does not ask for."""
    if isinstance(shape, list):
        return [pruned(item, shape[0]) for item in value]
    if isinstance(shape, dict) and ... not in shape:
        return {name: pruned(value[name], inner) for name, inner in shape.items()}
    return value


def test_the_page_needs_nothing_that_the_schema_does_not_ask_for():
    run, records, checkpoints = sample.results()
    checks = [Record.from_json(pruned(r.to_json(), CHECK)) for r in records]
    less = pruned(run, RUN), checks, pruned(checkpoints, [CHECKPOINT])
    assert less[0] != run
    assert "</html>" in render(*less, power=pruned(sample.power(), POWER))


LONE = "caf\udce9 \ud800"


def test_lone_surrogates_are_written_out_in_records_file_and_page(tmp_path):
    record = Record(
        requirement="NORM-1", implementation=LONE, variant="ops", dtype="float32", status=Status.ERROR,
        reason=f"ValueError: {LONE}", facts={LONE: LONE}, script=LONE,
    )  # fmt: skip
    run = {**sample.results()[0], "implementations": [LONE], "command": f"pytest --impl {LONE}"}
    write_results(tmp_path, run, [record], [])
    raw = (tmp_path / "results.json").read_text(encoding="utf-8")
    assert "\\udce9" not in raw.replace("\\\\udce9", "")
    (back,) = read_results(tmp_path)[1]
    assert back == record
    assert back.reason == "ValueError: caf\\udce9 \\ud800"
    page = write_page(tmp_path, run, [record], []).read_text(encoding="utf-8")
    assert "caf\\udce9 \\ud800" in page


def test_a_pair_of_surrogates_that_is_a_letter_and_all_other_letters_stay_as_they_are():
    record = Record(
        requirement="NORM-1", implementation="λ 漢 😀", variant="ops", dtype="float32", status=Status.PASS
    )
    assert record.implementation == "λ 漢 😀"


def test_power_that_was_not_measured_is_none(folder):
    rewrite(folder, lambda c: c.pop("power"))
    assert read_power(folder) is None
