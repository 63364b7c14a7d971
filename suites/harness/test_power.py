"""The suites notice: every seeded fault falls on its requirement, and reaches nothing it is judged by."""

import re
from pathlib import Path

import pytest
import torch

from conformance import cases
from conformance.checks import Selection
from conformance.faults import catalogue, implementation
from conformance.inputs import DTYPES
from conformance.numerics import answers
from conformance.numerics.settings import EXACT_ORACLE, ORACLE, yardsticks
from conformance.records import Status
from conformance.spec import requirements
from conformance.subject import Subject

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = Selection(profile="quick")
SEPARATES = 2.0  # a fault this close to the line would be luck
# Trained weights are not always at hand, so no fault may need them.
NEEDS_A_CHECKPOINT = {"REAL-1"}


def proving(checks, id_):
    found = [c for c in checks if c.requirement == id_]
    assert found, f"{id_} has no check"
    return found


def killing(checks, fault):
    """The records on which a fault falls: the first failing case of each check of its requirement."""
    subject = Subject(fault.make())
    records = [
        record
        for check in proving(checks, fault.requirement)
        for record in check.run(subject, QUICK, until_failure=True)
    ]
    return [r for r in records if r.status is Status.FAIL]


@pytest.mark.parametrize("name", catalogue())
def test_every_fault_falls_on_its_requirement(checks, name):
    fault = catalogue()[name]
    fell = killing(checks, fault)
    assert fell, f"{name} survives {fault.requirement}"
    assert {(r.requirement, r.implementation) for r in fell} == {(fault.requirement, f"fault:{name}")}
    measured = [r.headroom for r in fell if r.headroom is not None]
    assert not measured or max(measured) >= SEPARATES, f"{name} stands at {max(measured):.3g} budgets"
    assert measured or all(r.reason for r in fell)


# What only another dtype can show: two kinds of GELU are 5e-4 apart, and a rule for widths has no dtype.
IN_FLOAT32 = {"mlp.erf-for-tanh", "mlp.width-not-rounded-up"}
# float16 through float16 is float16.
THROUGH_FLOAT16 = {"formats.through-float16", "formats.export-through-float16"}
OTHER_DTYPE = {
    "bfloat16": IN_FLOAT32 | {"logits.wrong-in-fp16"},
    "float16": IN_FLOAT32 | THROUGH_FLOAT16,
}


@pytest.mark.parametrize("dtype", OTHER_DTYPE)
def test_faults_of_requirements_on_16_bit_fall_in_each_16_bit_dtype_alone(checks, dtype):
    selection = Selection(profile="quick", dtypes=(dtype,))
    survived = set()
    for name, fault in catalogue().items():
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
        assert {(r.variant, r.dtype) for r in records} == {
            (v.name, dtype) for v in QUICK.variants for dtype in QUICK.dtypes
        }
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
    for check in proving(checks, "ATTN-1"):
        records = check.run(Subject(implementation("attention.tiled")), QUICK)
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


def test_a_fault_leaves_the_weights_of_a_case_as_they_are(checks):
    case = cases.ModelCase()
    before = {name: value.clone() for name, value in case.weights().items()}
    for fault in catalogue().values():
        if fault.component in {"weights", "block", "cache"}:
            killing(checks, fault)
    assert all(torch.equal(before[name], value) for name, value in case.weights().items())
