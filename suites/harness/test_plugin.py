"""The plugin from outside: pytest is run on the suites, and what it says, writes and returns is looked at.

Runs are made in this process where they can be (a third of a second), and in one of their own where signals,
workers or another folder are what is tested.
"""

import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from conformance.cli import is_suite
from conformance.deviations import draft, read_deviations
from conformance.options import FILTERS, given, writable
from conformance.records import Record, Status, read_results
from conformance.session import matmul_precision
from conformance.tally import merge

CLONE = Path(__file__).parents[2]
SUITES = CLONE / "suites"
FEW = ("--profile", "quick", "--dtype", "float32")
NORM = (*FEW, "--requirement", "NORM-1")
# Looking for unraisable exceptions takes half of a short run, and would find those of other tests.
QUIETLY = ("-q", "-p", "no:cacheprovider", "-p", "no:unraisableexception")


class Outcome:
    """What one run gave."""

    def __init__(self, code, text, folder):
        self.code, self.text, self.folder = int(code), text, folder

    @property
    def facts(self):
        return read_results(self.folder)[0]

    @property
    def records(self):
        return {record.key: record for record in read_results(self.folder)[1]}

    def of(self, implementation):
        return [r for r in self.records.values() if r.implementation.endswith(implementation)]

    @property
    def page(self):
        return (self.folder / "index.html").read_text(encoding="utf-8")


@pytest.fixture
def run(tmp_path, capfd, monkeypatch):
    """Run pytest on the suites in this process, with these arguments."""
    monkeypatch.chdir(CLONE)

    def go(*arguments, suites=(str(SUITES),)):
        folder = tmp_path / f"report{len(list(tmp_path.glob('report*')))}"
        command = [*suites, *map(str, arguments), "--report", str(folder), *QUIETLY]
        capfd.readouterr()
        code = pytest.main(command)
        out, err = capfd.readouterr()
        return Outcome(code, out + err, folder)

    return go


class Started:
    """A run in a process of its own."""

    def __init__(self, arguments, report, cwd):
        self.report = report
        command = [*map(str, arguments), "--report", str(report), *QUIETLY]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *command],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(CLONE), "HF_HUB_OFFLINE": "1"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def finish(self, seconds=60):
        out, _ = self.process.communicate(timeout=seconds)
        return Outcome(self.process.returncode, out, self.report)


@pytest.fixture
def start(tmp_path):
    """Begin a run in a process of its own; none is left behind."""
    begun = []

    def go(*arguments, cwd=CLONE):
        begun.append(Started(arguments, tmp_path / f"started{len(begun)}", cwd))
        return begun[-1]

    yield go
    for one in begun:
        with one.process as process:
            process.kill()


@pytest.fixture
def mine(tmp_path):
    """Write a user's file."""

    def write(text, name="mine.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write


def test_importing_the_plugin_imports_no_torch():
    code = (
        "import sys, conformance.plugin\n"
        "heavy = {'torch', 'numpy', 'transformers', 'litgpt', 'jinja2', 'hypothesis', 'gguf'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=CLONE,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


# Options.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--impl", "refrence"], ["unknown implementation 'refrence'", "huggingface-eager", "mine.py:build"]),
        (["--impl", "no/such.py"], ["there is no file 'no/such.py'"]),
        (["--impl", "no.such:build"], ["there is no module 'no.such'"]),
        (["--impl", "fault:rope.sideways"], ["unknown fault 'rope.sideways'", "rope.interleaved"]),
        (["--impl", "{mine}:biuld"], ["no 'biuld'", "build"]),
        (["--variant", "llama-4"], ["unknown variant llama-4", "llama-2-7b", "smollm2-135m"]),
        (["--requirement", "NORM-99"], ["unknown requirement 'NORM-99'", "NORM-1", "REAL-1"]),
        (["--requirement", "norm-1"], ["unknown requirement 'norm-1'"]),
        (["--profile", "fast"], ["unknown profile 'fast'", "quick, standard, thorough"]),
        (["--dtype", "float8"], ["unknown dtype 'float8'", "float32, bfloat16, float16"]),
        (["--device", "tpu9"], ["cannot use device 'tpu9'"]),
        (["--seed", "lucky"], ["--seed", "invalid int value: 'lucky'"]),
        (["--case", "NormCase(m=3)"], ["cannot read the case 'NormCase(m=3)'", "NormCase, GateCase"]),
        (["--case", "NormCase(dtype='float8')"], ["dtype is 'float8', there are float32, bfloat16, float16"]),
        (["--case", "ModelCase(variant='llama-4')"], ["unknown variant llama-4", "llama-2-7b"]),
        (["--case", "TableCase(variant='llama-4')"], ["unknown variant llama-4", "llama-2-7b"]),
        (["--case", "ModelCase(shape='wide')"], ["has no shape 'wide', only real, gqa"]),
        (["--case", "ModelCase(variant=3)"], ["variant is 3, a text is needed"]),
        (["--case", "NormCase(eps=-1)"], ["eps is -1, a number above 0 is needed"]),
        (
            ["--case", "HistoryCase(events=(('step', 0),))"],
            ["event 0, ('step', 0): expected (\"step\", cache, n)"],
        ),
        (["--case", "HistoryCase(events=[])"], ["events is [], a tuple is needed"]),
        (["--checkpoint", "smolm2"], ["smolm2", "smollm2"]),
        (["--deviations", "no/such.toml"], ["cannot read the deviations file no/such.toml"]),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("-") else "",
)
def test_a_wrong_option_exits_4_and_says_what_exists(run, mine, arguments, words):
    path = mine("def build(config, weights): ...")
    done = run(*[a.format(mine=path) for a in arguments])
    assert done.code == pytest.ExitCode.USAGE_ERROR == 4
    missing = [word for word in words if word not in done.text]
    assert not missing, done.text
    assert not done.folder.exists()
    assert "Traceback" not in done.text


def test_the_header_echoes_what_was_chosen(run):
    done = run("--impl", "reference", *NORM, "-v")
    assert "conformance: profile quick, --impl=['reference'], --dtype=['float32']" in done.text


def test_options_select_variants_dtypes_and_requirements(run):
    chosen = ("--variant", "llama-2-7b", "--variant", "linear-scaled", "--requirement", "ATTN-2")
    done = run("--impl", "reference", *FEW, *chosen)
    assert set(done.records) == {
        ("ATTN-2", "reference", v, "float32") for v in ("llama-2-7b", "linear-scaled")
    }
    assert done.facts["variants"] == ["llama-2-7b", "linear-scaled"]


def test_a_selection_that_concerns_nothing_is_skipped_aloud(run):
    done = run("--impl", "reference", *FEW, "--requirement", "SCALE-1", "--variant", "llama-2-7b")
    assert done.code == pytest.ExitCode.NO_TESTS_COLLECTED
    assert {r.status for r in done.records.values()} == {Status.SKIPPED}
    assert "none of the selected variants" in done.text


def test_draws_come_again_with_the_seed_and_change_with_it(run):
    norm = ("--dtype", "bfloat16", "--requirement", "NORM-1", "--profile", "standard")
    one, again, other = (run("--impl", "reference", *norm, "--seed", seed) for seed in (3, 3, 4))
    assert one.records == again.records
    assert one.records.keys() == other.records.keys()
    assert all(r.examples > 20 for r in one.records.values())


# What a user's model may do.

BUILDS = """
    import torch
    from reference_impl import Llama

    def raises(config, weights):
        raise RuntimeError("I cannot build this")

    def breaks_off(config, weights):
        def forward(tokens):
            raise KeyError("no such layer")
        return forward

    def wrong_shape(config, weights):
        return lambda tokens: torch.zeros(*tokens.shape, 7)

    def nan(config, weights):
        return lambda tokens: torch.full((*tokens.shape, config.vocab_size), torch.nan)

    def no_tensor(config, weights):
        return lambda tokens: "logits"

    def not_callable(config, weights):
        return 3

    def double(config, weights):
        return lambda tokens: Llama(config, weights)(tokens).double()

    def right(config, weights):
        return Llama(config, weights)
"""
EXPECTED = {
    "raises": (Status.ERROR, "RuntimeError: I cannot build this"),
    "breaks_off": (Status.ERROR, "KeyError: 'no such layer'"),
    "wrong_shape": (Status.FAIL, "shape is [3, 65, 7], expected [3, 65, 131]"),
    "nan": (Status.FAIL, "nan where the oracle has"),
    "no_tensor": (Status.ERROR, "returned str, expected"),
    "not_callable": (Status.ERROR, "returned int, expected a callable"),
    "double": (Status.FAIL, "dtype is torch.float64, expected torch.float32"),
}


def test_whatever_a_build_does_is_on_record_and_the_others_are_still_judged(run, mine):
    path = mine(BUILDS)
    names = [f"--impl={path}:{name}" for name in (*EXPECTED, "right")]
    variants = ("--variant", "llama-2-70b", "--variant", "llama-3.1-8b")
    done = run(*names, "--impl", "reference", *FEW, "--requirement", "LOGITS-1", *variants)
    assert done.code == 1
    for name, (status, words) in EXPECTED.items():
        found = done.of(f":{name}")
        assert [(r.variant, r.status) for r in found] == [(v, status) for v in variants[1::2]], name
        assert all(words in r.reason for r in found), (name, found[0].reason)
        assert all(r.headroom is None and r.case and r.repro for r in found)
        assert words in done.text
    for judged in (done.of(":right"), done.of("reference")):
        assert [r.status for r in judged] == [Status.PASS] * 2
    assert "Traceback" not in done.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def build(config, weights:\n    pass\n", "SyntaxError"),
        ("import no_such_library\n", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise SystemError('not today')\n", "not today"),
    ],
    ids=["SyntaxError", "ImportError", "raises"],
)
def test_a_file_that_cannot_be_imported_is_an_error_of_each_check_and_no_crash(run, mine, text, words):
    path = mine(text)
    done = run(
        "--impl", path, "--impl", "reference", *FEW, "--requirement", "NORM-1", "--requirement", "NORM-2"
    )
    assert done.code == 1
    broken = done.of("mine.py")
    assert {r.requirement for r in broken} == {"NORM-1", "NORM-2"}
    assert {r.status for r in broken} == {Status.ERROR}
    assert all(words in r.reason for r in broken), broken[0].reason
    assert {r.status for r in done.of("reference")} == {Status.PASS}


def test_ops_alone_are_judged_and_the_rest_is_unsupported(run, mine):
    path = mine("from reference_impl.norm import rms_norm")
    done = run(
        "--impl", path, *FEW, "--requirement", "NORM-1", "--requirement", "MLP-1", "--requirement", "LOGITS-1"
    )
    assert done.code == 0
    found = {r.requirement: r.status for r in done.records.values()}
    assert found == {
        "NORM-1": Status.PASS,
        "MLP-1": Status.UNSUPPORTED,
        "LOGITS-1": Status.UNSUPPORTED,
    }


# Records.


def test_a_failure_names_requirement_measured_allowed_and_place(run):
    done = run("--impl", "fault:norm.1-percent", *NORM)
    (record,) = done.of("1-percent")
    assert (record.requirement, record.status, record.measure) == ("NORM-1", Status.FAIL, "worst element")
    assert 0.01 < record.error < 0.1  # 1% of an element that is a few times its row's RMS
    assert record.headroom == pytest.approx(record.error / record.budget)
    assert len(record.coordinate) == 2
    assert record.examples > 10
    assert record.case.startswith("NormCase(dtype='float32'")
    for shown in ("NORM-1", "fault:norm.1-percent", "worst element", record.repro):
        assert shown in done.text
    assert "NORM-1" in done.page
    assert "1 of 1 requirement does not hold for fault:norm.1-percent (NORM-1)" in done.text


@pytest.mark.parametrize(
    ("fault", "requirement"),
    [
        ("norm.1-percent", "NORM-1"),
        ("rope.table-2048", "ROPE-2"),
        ("cache.restarted", "CACHE-3"),
        ("weights.lenient", "WEIGHT-2"),
    ],
)
def test_the_command_of_a_failure_fails_again_on_its_case_alone(run, fault, requirement):
    few = ("--variant", "llama-3.1-8b", "--requirement", requirement)
    first = run("--impl", f"fault:{fault}", *FEW, *few)
    for record in first.records.values():
        assert record.status is Status.FAIL
        program, *module, suite = shlex.split(record.repro)[:4]
        assert (CLONE / program).samefile(sys.executable)
        assert module == ["-m", "pytest"]
        arguments = shlex.split(record.repro)[3:]
        assert suite.startswith("suites/test_")
        again = run(*arguments, suites=())
        assert again.code == 1
        (found,) = again.records.values()
        assert found.key == record.key
        assert (found.case, found.examples) == (record.case, 1)
        assert (found.measure, found.error) == (record.measure, record.error)


def strictly(text):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_results_are_strict_json_and_come_back_as_they_were(run):
    done = run("--impl", "fault:norm.nan", "--impl", "reference", *FEW, "--requirement", "NORM-1")
    content = strictly((done.folder / "results.json").read_text(encoding="utf-8"))
    assert content["schema"] == 1
    assert {
        "versions",
        "device",
        "threads",
        "profile",
        "seed",
        "git",
        "command",
        "seconds",
        "interrupted",
    } <= set(content["run"])
    assert content["run"]["threads"] == 1
    assert [Record.from_json(c).to_json() for c in content["checks"]] == content["checks"]
    assert [c["status"] for c in content["checks"]] == ["fail", "pass"]
    assert not list(done.folder.glob(".*"))


def test_numbers_that_are_not_finite_become_null():
    record = Record(
        requirement="NORM-1",
        implementation="mine",
        variant="ops",
        dtype="float32",
        status=Status.FAIL,
        error=float("nan"),
        headroom=float("inf"),
    )
    assert (record.to_json()["error"], record.to_json()["headroom"]) == (None, None)
    assert Record.from_json(record.to_json()).status is Status.FAIL


def test_of_two_outcomes_the_worse_one_is_kept_with_the_examples_of_both():
    def outcome(status, headroom=None, error=None):
        fields = {"requirement": "NORM-1", "implementation": "mine", "variant": "ops", "dtype": "float32"}
        return Record(**fields, status=status, headroom=headroom, error=error, examples=2)

    # Best first; a failure that cannot be measured is worse than any that can.
    ranked = [
        outcome(Status.UNSUPPORTED),
        outcome(Status.PASS, 0.1),
        outcome(Status.PASS, 0.9),
        outcome(Status.DEVIATION, 0.5),
        outcome(Status.FAIL, 3.0),
        outcome(Status.FAIL),
        outcome(Status.ERROR),
    ]
    for better, worse in itertools.combinations(ranked, 2):
        for kept in (merge(better, worse), merge(worse, better)):
            assert (kept.status, kept.headroom, kept.examples) == (worse.status, worse.headroom, 4)


# Deviations.

ENTRY = """
    [[deviation]]
    requirement = "{requirement}"
    implementation = "{implementation}"
    variant = "*"
    dtype = "{dtype}"
    versions = {{ torch = "{torch}" }}
    reason = "seeded on purpose"
"""


def entry(requirement, implementation, dtype="*", torch=">=2"):
    return ENTRY.format(requirement=requirement, implementation=implementation, dtype=dtype, torch=torch)


def test_a_listed_disagreement_exits_0_and_is_recorded_as_a_deviation(run, mine):
    listed = mine(entry("NORM-1", "fault:norm.1-percent"), "known.toml")
    done = run("--impl", "fault:norm.1-percent", *NORM, "--deviations", listed)
    assert done.code == 0
    (record,) = done.records.values()
    assert record.status is Status.DEVIATION
    assert record.reason.startswith("seeded on purpose")
    assert record.headroom > 2
    assert "deviat" in done.text


@pytest.mark.parametrize(
    "other",
    [{"torch": "<2"}, {"dtype": "float16"}, {"requirement": "NORM-2"}, {"implementation": "reference"}],
    ids=str,
)
def test_an_entry_about_something_else_excuses_nothing(run, mine, other):
    fields = {"requirement": "NORM-1", "implementation": "fault:norm.1-percent", **other}
    done = run("--impl", "fault:norm.1-percent", *NORM, "--deviations", mine(entry(**fields), "known.toml"))
    assert done.code == 1
    assert [r.status for r in done.records.values()] == [Status.FAIL]


# A whole file of suites: with options that leave something out nothing can be called outdated.
MLP = {"suites": (str(SUITES / "test_mlp.py"),)}


def test_a_listed_disagreement_that_no_longer_shows_is_red(run, mine):
    listed = mine(entry("MLP-1", "reference"), "known.toml")
    done = run("--impl", "reference", "--profile", "quick", "--deviations", listed, **MLP)
    assert done.code == 1
    found = [r for r in done.records.values() if r.requirement == "MLP-1"]
    assert {r.status for r in found} == {Status.UNEXPECTED_PASS}
    assert all("it holds; remove the entry" in r.reason for r in found)
    assert all(r.status is Status.PASS for r in done.records.values() if r.requirement != "MLP-1")


def test_a_run_of_a_part_calls_nothing_outdated(run, mine):
    listed = mine(entry("MLP-1", "reference") + entry("MLP-1", "reference", "float8"), "known.toml")
    one = f"{SUITES / 'test_mlp.py'}::test_silu_is_z_times_sigmoid_from_end_to_end"
    for part in (["--requirement", "MLP-1"], ["-k", "silu_is"], ["--variant", "llama-2-7b"]):
        assert (
            run("--impl", "reference", "--profile", "quick", "--deviations", listed, *part, **MLP).code == 0
        )
    done = run("--impl", "reference", "--profile", "quick", "--deviations", listed, suites=(one,))
    assert done.code == 0
    assert {r.status for r in done.records.values()} == {Status.PASS}


def test_an_entry_that_fits_nothing_is_red(run, mine):
    listed = mine(entry("MLP-1", "reference", dtype="float8"), "known.toml")
    done = run("--impl", "reference", "--profile", "quick", "--deviations", listed, **MLP)
    assert done.code == 1
    (stale,) = [r for r in done.records.values() if r.status is not Status.PASS]
    assert (stale.requirement, stale.dtype, stale.status) == ("MLP-1", "float8", Status.ERROR)
    assert f"stale deviation in {listed}" in stale.reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[deviation", "is no TOML"),
        ('[[deviation]]\nrequirement = "NORM-1"\n', "deviation 1: fields ['requirement'], expected exactly"),
        (entry("NORM-1", "reference") + 'who = "me"\n', "expected exactly"),
        (entry("NORM-1", "reference", torch="two"), "two"),
        (entry("NORM-99", "reference"), "unknown requirement 'NORM-99'; there are NORM-1"),
        (entry("NORM-1", "refrence"), "deviation 1: unknown implementation 'refrence'; there are reference"),
        (entry("NORM-1", "fault:norm.sideways"), "unknown fault 'norm.sideways'"),
        (entry("NORM-1", "huggingface"), "'huggingface' is several; an entry each for huggingface-eager"),
        (
            entry("NORM-1", "reference").replace("[[deviation]]", "[[deviations]]"),
            "holds 'deviations', expected",
        ),
        (
            entry("NORM-1", "reference").replace("[[deviation]]", "[deviation]"),
            "expected entries [[deviation]]",
        ),
        ("deviation = [3]", "deviation 1: 3, expected exactly"),
        (entry("NORM-1", "reference").replace('"*"', "3"), "it.variant is 3, expected a text"),
        (entry("NORM-1", "reference").replace('">=2"', "2"), "it.versions.torch is 2, expected a text"),
        (
            entry("NORM-1", "reference").replace('{ torch = ">=2" }', '"2"'),
            "it.versions is '2', expected an object",
        ),
    ],
    ids=lambda value: value.strip()[:24],
)
def test_a_malformed_deviations_file_exits_4_and_is_named(run, mine, text, words):
    listed = mine(text, "known.toml")
    done = run("--impl", "reference", *NORM, "--deviations", listed)
    assert done.code == 4
    assert str(listed) in done.text
    assert words in done.text


def test_a_deviations_file_that_is_no_text_exits_4_and_is_named(run, tmp_path):
    (tmp_path / "known.toml").write_bytes(b"\xff\xfe[[deviation]]")
    done = run("--impl", "reference", *NORM, "--deviations", tmp_path / "known.toml")
    assert done.code == 4
    assert f"{tmp_path / 'known.toml'} is no TOML, which is UTF-8" in done.text


def test_names_with_quotes_and_backslashes_are_drafted_so_that_they_are_read_back(tmp_path):
    name = 'C:\\mine "1"\x7f.py'
    bad = Record(requirement="NORM-1", implementation=name, variant="*", dtype="*", status=Status.FAIL)
    path = tmp_path / "draft.toml"
    path.write_text(draft([bad], {"torch": "2.13.0"}), encoding="utf-8")
    assert read_deviations(path)[-1].implementation == name


def test_a_drafted_deviations_file_is_read_back_and_explains_the_run(run, tmp_path):
    draft = tmp_path / "draft.toml"
    few = ("--impl", "fault:norm.1-percent", "--impl", "reference", *NORM)
    first = run(*few, "--write-deviations", draft)
    assert first.code == 1
    assert draft.read_text(encoding="utf-8").count("[[deviation]]") == 1
    assert run(*few, "--deviations", draft).code == 0


# Names and messages that are no Unicode.

LONE = """
    def build(config, weights):
        raise ValueError("caf\\udce9 \\ud800")
"""


@pytest.mark.parametrize("workers", [[], ["-n", "1", "--dist", "loadgroup"]], ids=["alone", "worker"])
def test_lone_surrogates_in_a_message_spoil_neither_results_nor_page(run, mine, workers):
    done = run("--impl", mine(LONE), *FEW, "--requirement", "LOGITS-1", "--variant", "llama-2-7b", *workers)
    assert done.code == 1
    (record,) = done.records.values()
    assert record.reason.startswith("ValueError: caf\\udce9 \\ud800 (at mine.py:3)")
    assert record.reason in done.text
    assert "ValueError: caf\\udce9 \\ud800" in done.page
    assert "INTERNALERROR" not in done.text


def test_a_file_whose_name_is_no_unicode_is_judged(run, mine):
    path = mine("from reference_impl.norm import rms_norm\n", name="caf\udce9.py")
    done = run("--impl", path, "--impl", "reference", *NORM)
    assert done.code == 0, done.text
    assert [r.status for r in done.of("caf\\udce9.py")] == [Status.PASS]
    assert done.facts["implementations"][0].endswith("caf\\udce9.py")
    assert "caf\\udce9.py" in done.page


def test_a_file_that_cannot_be_imported_with_a_message_that_is_no_unicode_is_an_error_on_record(run, mine):
    done = run("--impl", mine("raise SystemError('caf\\udce9')\n"), *NORM)
    (record,) = done.records.values()
    assert record.status is Status.ERROR
    assert record.reason.endswith("when it was imported: caf\\udce9 (at mine.py:1)")
    assert done.code == 1


# Histories of caches.

CACHE = (*FEW, "--variant", "llama-2-7b", "--requirement", "CACHE-10", "-k", "rolled_back")


def test_a_history_that_fails_is_a_file_that_shows_the_failure(run, tmp_path):
    done = run("--impl", "fault:cache.crop-one-kept", *CACHE)
    (record,) = done.records.values()
    assert record.status is Status.FAIL
    assert record.script in done.text
    (tmp_path / "history.py").write_text(record.script, encoding="utf-8")
    shown = subprocess.run(
        [sys.executable, tmp_path / "history.py"], cwd=CLONE, env={**os.environ, "PYTHONPATH": str(CLONE)},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    off = [float(line.split(" off by ")[1].split()[0]) for line in shown.splitlines()]
    assert max(off) > 0.01
    assert min(off) < 1e-5
    assert '<pre class="script" tabindex="0">&#34;&#34;&#34;HistoryCase' in done.page


def test_a_history_of_a_twin_names_its_own_variant_in_its_file(run):
    ahead = ("--variant", "llama-2-70b", *CACHE[:2], *CACHE[-4:])
    done = run("--impl", "fault:cache.crop-one-kept", "--dtype", "float32", *ahead)
    assert {r.variant for r in done.records.values()} == {"llama-2-70b"}
    assert all(r.script.startswith(f'"""{r.case} on fault:cache') for r in done.records.values())


@pytest.mark.parametrize(
    "arguments", [("--impl", "reference", *CACHE), ("--impl", "fault:norm.1-percent", *NORM)]
)
def test_what_holds_and_what_is_no_history_has_no_file(run, arguments):
    done = run(*arguments)
    assert done.records
    assert all(r.script == "" for r in done.records.values())


# Processes.


def comparable(outcome):
    """What must not depend on how a run was carried out."""
    return {
        key: (r.status, r.measure, r.error, r.budget, r.coordinate, r.case, r.examples, r.reason)
        for key, r in outcome.records.items()
    }


SEVERAL = (
    "suites",
    "--impl=reference",
    "--impl=fault:norm.1-percent",
    "--requirement=NORM-1",
    "--requirement=ATTN-2",
    "--variant=llama-2-70b",
    "--dtype=float32",
    "--dtype=bfloat16",
    "--profile=standard",
)


def test_two_runs_at_once_do_not_disturb_each_other_and_workers_change_no_record(run, start):
    alone = run(*SEVERAL, suites=())
    together = [start(*SEVERAL), start(*SEVERAL, "-n", "2", "--dist", "loadgroup")]
    for outcome in [started.finish() for started in together]:
        assert outcome.code == 1, outcome.text
        assert comparable(outcome) == comparable(alone)
        assert "index.html" in outcome.text
        assert len(outcome.page) > 10_000
    assert {r.status for r in alone.records.values()} == {Status.PASS, Status.FAIL}


def test_a_worker_that_dies_is_an_error_on_record(mine, start):
    path = mine("import os\ndef build(config, weights):\n    os._exit(3)\n")
    one = ("suites", *FEW, "--requirement", "NORM-2", "-n", "1", "--max-worker-restart", "0")
    done = start(*one, "--impl=reference", f"--impl={path}").finish()
    assert done.code == 1, done.text
    (dead,) = done.of("mine.py")
    assert (dead.requirement, dead.status) == ("NORM-2", Status.ERROR)
    assert dead.reason.startswith("no verdict: worker 'gw0' crashed")
    assert [r.status for r in done.of("reference")] == [Status.PASS]
    assert "does not hold" in done.text


def test_an_interrupted_run_leaves_records_and_page_of_what_was_done(mine, start, tmp_path):
    marker = tmp_path / "asleep"
    path = mine(f"""
        import pathlib, time
        def build(config, weights):
            pathlib.Path({str(marker)!r}).touch()
            time.sleep(60)
    """)
    started = start("suites", "--impl=reference", f"--impl={path}", *NORM)
    deadline = time.monotonic() + 60
    while not marker.exists():
        assert started.process.poll() is None, started.finish().text
        assert time.monotonic() < deadline
        time.sleep(0.05)
    started.process.send_signal(signal.SIGINT)
    done = started.finish(seconds=30)
    assert done.code == pytest.ExitCode.INTERRUPTED == 2
    strictly((done.folder / "results.json").read_text(encoding="utf-8"))
    assert done.facts["interrupted"] is True
    assert [(r.implementation, r.status) for r in done.records.values()] == [("reference", Status.PASS)]
    assert "nterrupted after" in done.text
    assert "nterrupted after" in done.page


def test_a_run_that_stops_at_the_first_failure_says_that_it_is_not_whole(run, mine):
    listed = mine(entry("MLP-2", "fault:mlp.sigmoid"), "known.toml")
    done = run("--impl", "fault:mlp.sigmoid", "--profile", "quick", "-x", "--deviations", listed, **MLP)
    assert done.code == 1
    assert done.facts["interrupted"] is True
    assert {r.requirement for r in done.records.values()} == {"MLP-1"}


# From another folder.

VARIANT = """
    import conformance
    from reference_impl import LlamaConfig, Rope

    @conformance.variant(source="written for this test")
    def my_llama():
        return LlamaConfig(
            vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
            num_attention_heads=8, num_key_value_heads=1, rope=Rope(rope_theta=2e5),
        )
"""
OUTSIDE = ("--impl=reference", "--requirement=LOGITS-1", "--variant=my-llama", *FEW)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("conftest.py", [".", str(SUITES)]), ("my_variants.py", ["-p", "my_variants", str(SUITES)])],
    ids=["conftest", "-p"],
)
def test_a_variant_of_a_folder_outside_the_clone_is_judged_and_shown(mine, start, tmp_path, name, arguments):
    mine(VARIANT, name)
    # The folder's own settings are in charge, and the tests of this project are still left out.
    mine("[pytest]\naddopts = --strict-config\n", "pytest.ini")
    done = start(*arguments, *OUTSIDE, cwd=tmp_path).finish()
    assert done.code == 0, done.text
    assert re.search(r"\b1 passed, \d+ deselected", done.text)
    assert set(done.records) == {("LOGITS-1", "reference", "my-llama", "float32")}
    (record,) = done.records.values()
    assert record.examples == 6  # three regimes of two shapes: 6 heads on 2, and its own one kv head
    assert "my-llama" in done.page


# What would be found out too late, after the work is done.


def test_a_report_folder_that_cannot_be_made_is_a_usage_error_before_anything_runs(tmp_path):
    occupied = tmp_path / "occupied"
    occupied.write_text("a file", encoding="utf-8")
    with pytest.raises(ValueError, match=r"--report .*occupied.* cannot be made: .*; name a folder"):
        writable(occupied)


def test_a_draft_into_a_folder_that_does_not_exist_is_a_usage_error(run, tmp_path):
    outcome = run(*NORM, "--impl", "reference", "--write-deviations", tmp_path / "absent" / "d.toml")
    assert outcome.code == pytest.ExitCode.USAGE_ERROR
    assert "its folder does not exist" in outcome.text


def test_a_refusal_to_name_the_matmul_precision_costs_no_results(monkeypatch):
    import torch

    def refuse():
        raise RuntimeError("mixed settings. Use one of them")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    assert matmul_precision() == "unknown (mixed settings)"


def test_a_folder_or_a_file_among_the_options_is_no_suite(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("", "utf-8")
    assert not any(is_suite(str(place)) for place in (tmp_path, mine, CLONE / "reports", "no/such/place"))
    assert all(
        is_suite(str(place)) for place in (SUITES, SUITES / "test_norm.py", f"{SUITES}/test_norm.py::test_x")
    )


@pytest.mark.parametrize("some", ["--lf", "--sw", "-k"])
def test_a_run_of_a_part_calls_no_deviation_stale(some):
    options = {"--lf": False, "--sw": False, "-k": "", **dict.fromkeys(FILTERS[:4]), some: True}

    def option(name):
        if name not in options:
            raise ValueError(name)
        return options[name]

    assert any(given(option, name) for name in FILTERS)
    assert not given(option, "--deselect")
