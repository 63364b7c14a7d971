"""The hand-written Llama of docs/examples holds; with a slip in it, the verdict names what it breaks."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import Selection, Subject
from conformance import builtin_variants as _builtin_variants  # noqa: F401 - registers them
from conformance.implementations.user import load
from conformance.records import Status, read_results
from conformance.report.summary import failures
from conformance.spec import requirement
from conformance.variants import variants

ROOT = Path(__file__).parent.parent.parent
PYTEST = ("-m", "pytest", "suites", "-p", "no:cacheprovider")
TUTORIAL = ROOT / "docs/examples/tutorial_llama.py"
# Plain, linear, and llama3 at both factors, the last of them tied.
VARIANTS = ("llama-2-7b", "linear-scaled", "llama-3.1-8b", "llama-3.2-1b")

# slip: (what stands there, what is typed instead, requirements it breaks, requirements it must leave alone)
OPS = {
    "NORM-1",
    "NORM-2",
    "NORM-3",
    "NORM-4",
    "NORM-7",
    "MLP-1",
    "MLP-2",
    "ROPE-2",
    "SCALE-4",
    "ATTN-3",
}
SLIPS = {
    "no causal mask": (
        ".tril(k.shape[2] - tokens)",
        "",
        {"MASK-1", "LOGITS-1", "LOGITS-2"},
        {*OPS, "MLP-*", "NORM-*", "ROPE-3", "ROPE-5", "ROPE-6", "ROPE-7", "WEIGHT-1", "WEIGHT-2", "WEIGHT-4"},
    ),
    "tables not cut to the sequence": (
        "return self.cos[positions], self.sin[positions]",
        "return self.cos, self.sin",
        {"ROPE-8", "LOGITS-1", "LOGITS-2"},
        {*OPS, "ROPE-3", "ROPE-5", "ROPE-7", "WEIGHT-1", "WEIGHT-2", "WEIGHT-5", "WEIGHT-6"},
    ),
    "positions restart with every step": (
        "torch.arange(past, past + tokens.shape[1], device=tokens.device)",
        "torch.arange(tokens.shape[1], device=tokens.device)",
        {"CACHE-1", "CACHE-2", "CACHE-3", "SCALE-9"},
        {*OPS, "NORM-*", "MLP-*", "ROPE-9", "ATTN-*", "MASK-1", "BLOCK-1", "LOGITS-*", "WEIGHT-*", "MEM-1"},
    ),
    "tables unsqueezed twice": (
        "cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)",
        "cos, sin = cos.unsqueeze(1).unsqueeze(1), sin.unsqueeze(1).unsqueeze(1)",
        {"ROPE-3", "ROPE-8", "LOGITS-1", "LOGITS-2"},
        {*OPS, "NORM-*", "MLP-*", "ROPE-7", "WEIGHT-1", "WEIGHT-2", "WEIGHT-5", "WEIGHT-6"},
    ),
    "norm without upcast": (
        "wide = x.float()",
        "wide = x",
        {"NORM-4"},
        {"NORM-2", "NORM-7", "MLP-*", "SCALE-*", "ATTN-*", "MASK-*", "CACHE-*", "LOGITS-1", "WEIGHT-*"},
    ),
}
# What the example leaves out, so that it stays an example.
LEFT_OUT = {"ATTN-7", "MLP-3", "MLP-6", "ROPE-4", "ROPE-13", "SCALE-10", "SCALE-11", "WEIGHT-7"}
LEFT_OUT |= {"CACHE-5", "CACHE-9", "CACHE-10", "MASK-3", "MASK-4", "MASK-5", "MASK-6", "MASK-9", "ROPE-11"}


@pytest.fixture
def slipped(tmp_path):
    """The tutorial with one line changed."""

    def write(slip):
        right, wrong, *_ = SLIPS[slip]
        text = TUTORIAL.read_text(encoding="utf-8")
        assert text.count(right) == 1
        path = tmp_path / "slip.py"
        path.write_text(text.replace(right, wrong), encoding="utf-8")
        return path

    return write


def judged(checks, path):
    subject = Subject(load(str(path)))
    selection = Selection(variants=tuple(variants(VARIANTS)), profile="quick")
    return [record for check in checks for record in check.run(subject, selection)]


def broken(records):
    return {record.requirement for record in records if record.status.is_bad}


def named(records, patterns):
    """The requirements of the records that patterns such as "NORM-*" speak of; each must speak of one."""
    every = {record.requirement for record in records}
    found = {p: {r for r in every if re.fullmatch(p.replace("*", r"\d+"), r)} for p in patterns}
    assert all(found.values())
    return set().union(*found.values())


@pytest.mark.usefixtures("one_thread")
def test_all_that_the_tutorial_offers_holds_and_that_is_nearly_everything(checks):
    records = judged(checks, TUTORIAL)
    assert {record.status for record in records} == {Status.PASS, Status.UNSUPPORTED, Status.SKIPPED}
    assert {r.requirement for r in records if r.status is Status.UNSUPPORTED} <= LEFT_OUT
    assert {r.dtype for r in records if r.status is Status.PASS} == {"float32", "bfloat16", "float16"}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("slip", SLIPS)
def test_the_verdict_names_what_a_slip_breaks_and_leaves_the_rest_alone(slip, slipped, checks):
    _, _, breaks, spares = SLIPS[slip]
    records = judged(checks, slipped(slip))
    assert breaks <= broken(records)
    assert not named(records, spares) & broken(records)


@pytest.mark.usefixtures("one_thread")
def test_without_the_upcast_float32_is_as_right_as_before(slipped, checks):
    records = judged(checks, slipped("norm without upcast"))
    assert {record.dtype for record in records if record.status.is_bad} == {"bfloat16", "float16"}


@pytest.mark.usefixtures("one_thread")
def test_a_failure_shows_the_line_of_the_file_that_raised(slipped, checks):
    path = slipped("tables not cut to the sequence")
    (cause,) = (
        n for n, line in enumerate(path.read_text().splitlines(), 1) if "rotate_half(q) * sin" in line
    )
    (only,) = [check for check in checks if check.requirement == "LOGITS-1"]
    text = failures(judged([only], path))[0]
    assert "must match the size of tensor b (256)" in text  # the table has 256 rows
    assert f"(at slip.py:{cause})" in text


def test_a_run_on_a_slip_exits_1_and_says_which_requirement_fails(slipped, tmp_path):
    impl = f"{slipped('no causal mask')}:build"
    asked = "--requirement MASK-1 --requirement WEIGHT-2 --variant llama-3-8b --dtype float32 --profile quick"
    done = subprocess.run(
        [sys.executable, *PYTEST, *asked.split(), "--impl", impl, "--report", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"MASK-1 · {impl} · llama-3-8b · float32" in done.stdout
    assert requirement("MASK-1").statement in done.stdout
    assert broken(read_results(tmp_path)[1]) == {"MASK-1"}
