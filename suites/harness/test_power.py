"""The suites notice: every seeded fault falls on its requirement, and reaches nothing it is judged by."""

import re
from pathlib import Path

import pytest
import torch

from conformance import cases
from conformance.case_spec import parse_case
from conformance.checks import Selection
from conformance.faults import catalogue, implementation, named
from conformance.implementations.base import Model
from conformance.implementations.reference import Reference
from conformance.inputs import DTYPES
from conformance.numerics import answers
from conformance.numerics.settings import EXACT_ORACLE, ORACLE, yardsticks
from conformance.power.judge import Fate, checks_of, judged
from conformance.records import Status
from conformance.report.sentences import failures
from conformance.requirements_page import NEEDS_A_CHECKPOINT
from conformance.spec import requirements
from conformance.subject import Subject

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = Selection(profile="quick")
SEPARATES = 2.0  # a fault this close to the line would be luck


def proving(checks, id_):
    found = [c for c in checks if c.requirement == id_]
    assert found, f"{id_} has no check"
    return found


@pytest.mark.parametrize("name", [n for n, fault in catalogue().items() if not fault.equivalent])
def test_every_fault_falls_on_its_requirement(name):
    fault = named(name)
    cell = judged(fault, fault.requirement)
    assert cell.fate is Fate.KILLED, f"{name} survives {fault.requirement}"
    assert (cell.fault, cell.requirement, cell.needs) == (name, fault.requirement, "quick")
    assert cell.headroom is None or cell.headroom >= SEPARATES, (
        f"{name} stands at {cell.headroom:.3g} budgets"
    )
    assert cell.headroom is not None or cell.reason


# The answer of the call before: a case alone is a first call, and that is right.
NEEDS_A_HISTORY = {"norm.stale-buffer"}


@pytest.mark.parametrize(
    "name", [n for n, f in catalogue().items() if not f.equivalent and n not in NEEDS_A_HISTORY]
)
def test_the_text_of_every_failure_stands_alone_and_its_case_fails_again_the_same_way(checks, name):
    """What is printed of a killed fault: all that is needed to look at it, and to see it once more."""
    fault = named(name)
    cell = judged(fault, fault.requirement)
    (check,) = [c for c in proving(checks, fault.requirement) if c.title == cell.check]
    case = parse_case(cell.case)
    alone = Selection(profile="quick", dtypes=(case.dtype,), case=case)
    records = [r for r in check.run(Subject(fault.make()), alone) if r.status is Status.FAIL]
    assert [(r.case, r.measure, r.headroom) for r in records] == [(cell.case, cell.measure, cell.headroom)]
    (record,) = records
    assert record.suspect
    (text,) = failures(records, statements={fault.requirement: requirements()[fault.requirement].statement})
    wanted = [fault.requirement, f"fault:{name}", record.dtype, cell.case, check.title, record.suspect]
    wanted += [requirements()[fault.requirement].statement, f"--impl fault:{name} --case"]
    assert all(part in text for part in wanted)
    assert "measured" in text or "reason" in text


class Heard:
    """An implementation or a model, and every tensor it answers."""

    def __init__(self, one, answers):
        self._one, self._answers = one, answers

    def __getattr__(self, name):
        value = getattr(self._one, name)
        if not callable(value):
            return value

        def ask(*arguments, **named):
            given = value(*arguments, **named)
            if isinstance(given, Model):
                return Heard(given, self._answers)
            assert isinstance(given, torch.Tensor), f"{name} answers no tensor: nothing would be compared"
            self._answers.append(given.clone())
            return given

        return ask


def answers_of(made, id_):
    """All that an implementation answers on the whole case set of a requirement's checks."""
    heard = []
    for check in checks_of(id_):
        check.run(Subject(Heard(made, heard)), QUICK)
    return heard


def same_to_the_bit(name):
    fault = named(name)
    right, wrong = (answers_of(made, fault.requirement) for made in (Reference(), fault.make()))
    assert len(right) == len(wrong) > 10
    return all(torch.equal(a, b) for a, b in zip(right, wrong, strict=True))


EQUIVALENT = [name for name, fault in catalogue().items() if fault.equivalent]


@pytest.mark.parametrize("name", EQUIVALENT)
def test_an_equivalent_fault_answers_as_the_reference_does_to_the_bit(name):
    assert same_to_the_bit(name)


@pytest.mark.parametrize("name", ["norm.1-percent", "mask.one-short", "attention.core-scale"])
def test_a_fault_that_shows_answers_otherwise(name):
    assert not same_to_the_bit(name)


def test_few_faults_are_equivalent():
    assert 0 < len(EQUIVALENT) <= 0.1 * len(catalogue())


# What only another dtype can show: two kinds of GELU are 5e-4 apart, and a rule for widths has no dtype.
IN_FLOAT32 = {"mlp.erf-for-tanh", "mlp.width-not-rounded-up"}
# float16 through float16 is float16.
THROUGH_FLOAT16 = {"formats.through-float16", "formats.export-through-float16", "mlp.cast-to-float16"}
# The same function but for angles that float32 rounds otherwise, by less than 16-bit rounds anything.
IN_FLOAT32 |= {"padding.slot-positions", "packing.running-on"}
# Four thousand tokens are asked for in float32 alone; what 16-bit left behind shows in nothing but float32.
IN_FLOAT32 |= {"attention.far-keys-lost", "attention.narrowest-buffer", "mlp.narrowest-buffer"}
OTHER_DTYPE = {
    "bfloat16": IN_FLOAT32 | {"norm.statistic-under-autocast", "logits.wrong-in-fp16"},
    # -1e5 is no number of float16, and its lowest one is beaten by no score that it can hold.
    "float16": IN_FLOAT32 | THROUGH_FLOAT16 | {"mask.constant"},
}


@pytest.mark.parametrize("dtype", OTHER_DTYPE)
def test_faults_of_requirements_on_16_bit_fall_in_each_16_bit_dtype_alone(checks, dtype):
    selection = Selection(profile="quick", dtypes=(dtype,))
    survived = set()
    for name, fault in catalogue().items():
        if fault.equivalent:
            continue
        subject = Subject(fault.make())
        statuses = {
            record.status
            for check in proving(checks, fault.requirement)
            for record in check.run(subject, selection, until_failure=True)
        }
        if statuses - {Status.SKIPPED} and Status.FAIL not in statuses:
            survived.add(name)
    assert survived == OTHER_DTYPE[dtype]


@pytest.mark.parametrize("id_", [i for i in requirements() if i not in NEEDS_A_CHECKPOINT])
def test_every_requirement_has_a_fault(id_):
    assert any(fault.requirement == id_ for fault in catalogue().values())


def test_every_fault_has_a_component_a_live_requirement_and_a_source():
    for name, fault in catalogue().items():
        assert re.fullmatch(r"[a-z]+\.[a-z0-9-]+", name)
        assert fault.component == name.split(".")[0]
        assert fault.requirement in requirements()
        assert re.fullmatch(r"classical|[\w.-]+/[\w.-]+#\d+", fault.source)
        assert fault.make().name == f"fault:{name}"


def test_an_unknown_fault_lists_those_that_exist():
    with pytest.raises(ValueError, match=r"unknown fault 'rope\.sideways'; there are norm\.eps-outside, "):
        implementation("rope.sideways")


def test_every_requirement_has_a_check_and_every_check_a_requirement(proofs):
    assert {proof.requirement for proof in proofs} == set(requirements())


def test_every_test_of_the_suites_proves_a_requirement(proofs):
    suites = Path(__file__).parent.parent.glob("test_*.py")
    defined = [re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE) for path in suites]
    assert sorted(proof.__name__ for proof in proofs) == sorted(name for names in defined for name in names)


# Counter-proofs of the laws that a symmetric mistake would pass.


@pytest.mark.parametrize("name", ["cache.restarted", "cache.off-by-one"])
def test_a_wrong_offset_falls_on_every_variant_and_dtype(checks, name):
    for check in proving(checks, "CACHE-3"):
        records = check.run(Subject(implementation(name)), QUICK)
        assert {(r.variant, r.dtype) for r in records} == {(v, dtype) for dtype, v, _ in QUICK.models()}
        assert {r.status for r in records} == {Status.FAIL}
        assert min(r.headroom for r in records) >= SEPARATES


@pytest.mark.parametrize("name", ["rope.k-restarted", "rope.k-off-by-one"])
def test_a_shift_between_q_and_k_falls_on_every_variant_and_dtype(checks, name):
    for check in proving(checks, "ROPE-6"):
        records = check.run(Subject(implementation(name)), QUICK)
        assert {r.dtype for r in records} == set(QUICK.dtypes)
        assert {r.status for r in records} == {Status.FAIL}
        assert min(r.headroom for r in records) >= SEPARATES


def test_a_tiled_kv_head_stands_far_from_the_line_in_every_dtype(checks):
    """Where ops are asked alone, with three groups too: two tiled groups change places as right ones do."""
    subject = Subject(implementation("attention.tiled"))
    alone = [c for c in proving(checks, "ATTN-1") if isinstance(c.covering(QUICK)[0], cases.AttentionCase)]
    assert len(alone) == 2
    for check in alone:
        records = check.run(subject, QUICK)
        assert {r.status for r in records} == {Status.FAIL}
        assert min(r.headroom for r in records) > 20


# What a fault is judged by stays as it is.


def everything(dtype):
    """Every answer of the oracle and of every yardstick, computed anew."""
    answers._model.cache_clear()
    cases.model._weights.cache_clear()
    asked = {
        answers.rms_norm: cases.NormCase(dtype=dtype),
        answers.silu_mul: cases.GateCase(dtype=dtype),
        answers.apply_rope: cases.RotateCase(dtype=dtype),
        answers.rope_tables: cases.TableCase(dtype=dtype),
        answers.attention_core: cases.AttentionCase(dtype=dtype),
        answers.logits: cases.ModelCase(dtype=dtype, tokens=17),
        answers.block: cases.ModelCase(dtype=dtype, tokens=17),
    }
    settings = [ORACLE, EXACT_ORACLE, *yardsticks(DTYPES[dtype])]
    return {(answer.__name__, s): answer(case, s) for answer, case in asked.items() for s in settings}


@pytest.mark.parametrize("dtype", DTYPES)
def test_oracle_and_yardsticks_are_the_same_to_the_bit_with_and_without_every_fault(checks, dtype):
    before = everything(dtype)
    selection = Selection(profile="quick", dtypes=(dtype,))
    for fault in catalogue().values():
        for check in proving(checks, fault.requirement):
            check.run(Subject(fault.make()), selection, until_failure=True)
    after = everything(dtype)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_fault_leaves_the_weights_of_a_case_as_they_are():
    case = cases.ModelCase()
    before = {name: value.clone() for name, value in case.weights().items()}
    for fault in catalogue().values():
        if fault.component in {"weights", "block", "cache"}:
            judged(fault, fault.requirement)
    assert all(torch.equal(before[name], value) for name, value in case.weights().items())
