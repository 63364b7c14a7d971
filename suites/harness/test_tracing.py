"""Tracing: the first step that is wrong is named, nobody else is, and no more than a few layers are kept."""

import json
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conformance import ModelCase, NormCase, Subject, Unsupported, checkpoint_trace
from conformance import builtin_variants as _builtin_variants  # noqa: F401 - registers them
from conformance.checkpoints import Checkpoint
from conformance.cli import main
from conformance.faults import implementation
from conformance.implementations import registry
from conformance.implementations.reference import Reference
from conformance.implementations.user import User, load
from conformance.inputs import DTYPES
from conformance.numerics.taps import Follower, oracle_taps, ways
from conformance.records import Record, Status
from conformance.suspects import blamed, sentence
from conformance.tracing import Trace, shortened, trace

pytestmark = pytest.mark.usefixtures("one_thread")

CASE = ModelCase(tokens=17, batch=2)
TUTORIAL = Path(__file__).parents[2] / "docs/examples/tutorial_llama.py"
# fault: (first step that is wrong, its part)
FIRST = {
    "rope.interleaved": ("layers.0.q_rot", "rope"),
    "rope.k-unrotated": ("layers.0.k_rot", "rope"),
    "norm.n-minus-1": ("layers.0.attn_norm", "norm"),
    "attention.tiled": ("layers.0.attention", "attention"),
    "mask.none": ("layers.0.attention", "attention"),
    "weights.gate-up-exchanged": ("layers.0.gate", "mlp"),
    "mlp.gelu": ("layers.0.gated", "mlp"),
    "block.v-1-percent": ("layers.0.v", "attention"),
    "logits.2-percent": ("logits", "logits"),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["reference", "huggingface-eager", "huggingface-sdpa", "litgpt"])
def test_of_a_right_implementation_every_step_is_within_its_budget(name, dtype):
    found = trace(Subject(registry.get(name)), replace(CASE, dtype=dtype))
    assert found.first is None
    assert (found.suspect, found.component) == ("", "")
    assert [row.tap for row in found.rows] == list(oracle_taps(CASE))


@pytest.mark.parametrize("fault", FIRST)
def test_the_first_step_that_is_wrong_is_named_with_its_part(fault):
    found = trace(Subject(implementation(fault)), CASE)
    assert (found.suspect, found.component) == FIRST[fault]


def test_what_comes_after_a_wrong_step_inherits_and_adds_nothing():
    found = trace(Subject(implementation("mlp.gelu")), CASE)
    rows = {row.tap: row for row in found.rows}
    gated, out = rows["layers.0.gated"], rows["layers.0.mlp_out"]
    assert gated.added > 1e-2
    assert gated.inherited < 1e-4
    assert out.inherited > 1e-2
    assert out.headroom < 1
    assert [r.tap for r in found.rows if r.over] == ["layers.0.gated", "layers.1.gated"]


def test_positions_and_chunks_of_a_case_do_not_matter_to_its_plain_pass():
    asked = replace(CASE, chunks=(7, 10), places="gaps")
    assert trace(Subject(Reference()), asked) == trace(Subject(Reference()), CASE)


def test_who_shows_no_taps_is_unsupported():
    with pytest.raises(Unsupported, match="does not offer taps"):
        trace(Subject(User("mine", lambda *_: lambda tokens: tokens)), CASE)


def test_no_more_than_the_taps_of_a_layer_are_kept():
    case = replace(CASE, but=(("num_hidden_layers", 6),))
    follower = Follower(
        case.config, case.token_ids(), case.torch_dtype, oracle_taps(case).__getitem__, *ways(case)
    )
    kept = []

    def show(name, value):
        follower.see(name, value)
        kept.append(len(follower._own))

    with torch.no_grad():
        Subject(Reference()).model(case).watch(case.token_ids(), show)
    assert len(kept) == 6 * 15 + 3
    assert max(kept) <= 16 + 1


def test_the_rows_shown_are_those_around_the_first_that_is_wrong():
    found = trace(Subject(implementation("mlp.gelu")), CASE)
    taps = [row.tap.rpartition(".")[2] for row in shortened(found.rows)]
    assert taps == ["mlp_norm", "gate", "up", "gated", "mlp_out", "mlp_residual"]


# A user's module, by a table of taps.


@pytest.fixture
def tutorial(tmp_path):
    """The hand-written Llama with a slip and a table of taps."""

    def write(table, right="", wrong=""):
        text = TUTORIAL.read_text(encoding="utf-8")
        assert not right or text.count(right) == 1
        path = tmp_path / "mine.py"
        text = text.replace(right, wrong) if right else text
        path.write_text(f"{text}\n\nTAPS = {table!r}\n", "utf-8")
        return load(str(path))

    return write


TABLE = {
    "embedding": "model.embed_tokens",
    "layers.{i}.attn_norm": "model.layers.{i}.input_layernorm",
    "layers.{i}.q": "model.layers.{i}.self_attn.q_proj",
    "layers.{i}.k": "model.layers.{i}.self_attn.k_proj",
    "layers.{i}.v": "model.layers.{i}.self_attn.v_proj",
    "layers.{i}.attention": "model.layers.{i}.self_attn.o_proj:input",
    "layers.{i}.attn_out": "model.layers.{i}.self_attn.o_proj",
    "layers.{i}.mlp_residual": "model.layers.{i}",
    "final_norm": "model.norm",
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_table_of_taps_shows_what_the_modules_do(tutorial, dtype):
    case = replace(CASE, dtype=dtype)
    found = trace(Subject(tutorial(TABLE)), case)
    assert found.first is None
    assert len(found.rows) == 2 + 2 * 7
    (attention,) = [row for row in found.rows if row.tap == "layers.1.attention"]
    assert attention.through == ("layers.1.q_rot", "layers.1.k_rot")
    assert attention.component == "rope or attention"


@pytest.mark.parametrize(
    ("right", "wrong", "suspect", "component"),
    [
        (".tril(k.shape[2] - tokens)", "", "layers.0.attention", "rope or attention"),
        ("self.head_dim**-0.5", "self.head_dim**-1.0", "layers.0.attention", "rope or attention"),
        ("x = x + self.self_attn(", "x = self.self_attn(", "layers.0.mlp_residual", "block or norm or mlp"),
        (
            "self.weight, self.eps = nn.Parameter(torch.ones(size)), eps",
            "self.weight, self.eps = nn.Parameter(torch.ones(size)), 0.1",
            "layers.0.attn_norm",
            "norm",
        ),
    ],
)
def test_with_a_table_a_slip_is_placed_between_two_taps(tutorial, right, wrong, suspect, component):
    found = trace(Subject(tutorial(TABLE, right, wrong)), CASE)
    assert (found.suspect, found.component) == (suspect, component)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"layers.{i}.norm": "model.norm"},
            r"TAPS has layers\.\{i\}\.norm; taps are embedding, layers\.\{i\}\.attn_norm",
        ),
        (
            {"final_norm": "model.last"},
            r"TAPS says final_norm is at 'model.last', and 'model.last' is no module",
        ),
        ({"layers.{i}.q": "model.layers.{i}.q"}, r"and 'model.layers.0.q' is no module"),
    ],
)
def test_a_table_that_leads_nowhere_is_an_error_that_names_the_entry(tutorial, table, message):
    with pytest.raises(ValueError, match=message):
        trace(Subject(tutorial(table)), CASE)


def test_what_a_file_sets_for_the_process_does_not_reach_the_judgement(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        textwrap.dedent(f"""
            import sys, torch
            sys.path.insert(0, {str(TUTORIAL.parent)!r})
            from tutorial_llama import build
            torch.set_float32_matmul_precision("medium")
            TAPS = {TABLE!r}
        """),
        "utf-8",
    )
    seen = []
    model = load(str(path)).build(CASE.config, CASE.weights())
    model.watch(CASE.token_ids(), lambda *_: seen.append(torch.get_float32_matmul_precision()))
    assert set(seen) == {"highest"}


# The suspect of a record.


def failed(requirement, case):
    return Record(
        requirement=requirement,
        implementation="x",
        variant="v",
        dtype="float32",
        status=Status.FAIL,
        case=case.spec,
    )


def test_an_op_asked_alone_is_itself_to_blame():
    record = blamed(failed("NORM-1", NormCase()), Subject(implementation("norm.zeros")))
    assert record.suspect == "norm: the op itself, asked alone"


def test_a_failing_model_has_its_first_wrong_step_as_suspect_and_the_steps_around_it():
    record = blamed(failed("LOGITS-1", CASE), Subject(implementation("rope.interleaved")))
    assert re.match(
        r"rope: layers\.0\.q_rot is the first step that is wrong; adds .*, allowed .*, inherited ",
        record.suspect,
    )
    assert [row["tap"] for row in record.trace if row["over"]] == ["layers.0.q_rot", "layers.0.k_rot"]
    json.dumps(record.to_json(), allow_nan=False)
    assert Record.from_json(record.to_json()) == record


def test_what_a_plain_pass_cannot_show_is_said_to_lie_beyond_it():
    record = blamed(
        failed("CACHE-1", replace(CASE, chunks=(10, 7))), Subject(implementation("cache.restarted"))
    )
    assert record.suspect == (
        "no step of a plain forward pass adds more than rounding explains: "
        "the cache, or the positions and the mask behind it"
    )


def test_nan_is_named_where_it_first_appears():
    record = blamed(failed("LOGITS-1", CASE), Subject(implementation("norm.nan")))
    assert record.suspect.startswith(
        "norm: layers.0.attn_norm is the first step that is wrong; nan where the oracle"
    )


def test_without_taps_the_suspect_says_how_to_be_told():
    record = blamed(failed("LOGITS-1", CASE), Subject(User("mine", lambda *_: lambda tokens: tokens)))
    assert record.suspect.startswith("not located: does not offer taps")
    assert record.suspect.endswith("a table TAPS would do (docs/your-own.md)")


def test_taps_that_raise_are_noted_and_no_crash():
    class Model:
        def __call__(self, tokens):
            return tokens

        def taps(self, tokens):  # noqa: ARG002
            raise RuntimeError("no taps today")

    record = blamed(failed("LOGITS-1", CASE), Subject(User("mine", lambda *_: Model())))
    assert record.suspect.startswith("not located: looking at the taps raised RuntimeError: no taps today")


def test_no_trace_at_all_has_no_first_step():
    assert sentence(Trace(), "LOGITS").startswith("no step of a plain forward pass")


# The command.


def test_the_command_prints_the_table_and_exits_1_where_a_step_is_wrong(capsys):
    assert main(["trace", "--impl", "fault:mlp.gelu", "--variant", "llama-3-8b", "--tokens", "9"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^✗ +layers\.0\.gated +mlp ", out, re.MULTILINE)
    assert re.search(r"^· +layers\.1\.gated +mlp ", out, re.MULTILINE)
    assert (
        "layers.0.gated (mlp) is the first step that adds more than rounding explains. 1 later steps" in out
    )


def test_the_command_takes_a_case_as_a_failure_prints_it(capsys):
    assert main(["trace", "--impl", "reference", "--case", replace(CASE, dtype="bfloat16").spec]) == 0
    assert "Every one of 33 steps is within its budget" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--impl", "torch"], "torch: does not offer logits; offer model.taps or a table TAPS"),
        (["--impl", "reference", "--variant", "llama-9"], "unknown variant llama-9; there are llama-2-7b"),
        (["--impl", "reference", "--shape", "huge"], "has no shape 'huge'"),
        (["--impl", "reference", "--regime", "shy"], "regime is 'shy', there are loud, quiet, outlier"),
        (["--impl", "reference", "--case", "NormCase()"], "is no case of a model, expected ModelCase"),
        (["--impl", "nobody"], "unknown implementation 'nobody'"),
    ],
)
def test_a_wrong_name_is_a_usage_error_that_says_what_there_is(capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        main(["trace", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("name", "suspect"), [("reference", ""), ("attention.tiled", "layers.0.attention")])
def test_a_checkpoint_is_traced_like_a_small_model(monkeypatch, name, suspect):
    weights = CASE.weights()
    monkeypatch.setattr(
        checkpoint_trace,
        "checkpoint_of",
        lambda _: Checkpoint(name="x", config=CASE.config, weights=weights, tokenizer=None, source=Path("x")),
    )
    who = Reference() if name == "reference" else implementation(name)
    found = checkpoint_trace.trace_checkpoint(Subject(who), "x", "float32", tokens=17)
    assert found.suspect == suspect
    assert len(found.rows) == 33


def test_a_checkpoint_that_fails_has_its_suspect_too(monkeypatch):
    found = Trace(rows=trace(Subject(implementation("mlp.gelu")), CASE).rows)
    monkeypatch.setattr(checkpoint_trace, "trace_checkpoint", lambda *_: found)
    record = failed("REAL-1", CASE)
    explained = checkpoint_trace.explain_checkpoint(record, Subject(Reference()), "x")
    assert explained.suspect.startswith("mlp: layers.0.gated is the first step that is wrong")
    passed = replace(record, status=Status.PASS)
    assert checkpoint_trace.explain_checkpoint(passed, Subject(Reference()), "x") == passed
