"""Your own file: what of it is found where, what may come back from it, and that nothing of it leaks."""

import json
import textwrap
import warnings

import pytest
import torch

from conformance import ModelCase, NormCase, Subject
from conformance import builtin_variants as _builtin_variants  # noqa: F401 - registers them
from conformance.implementations.base import Unsupported
from conformance.implementations.user import PROBE_CONFIG, User, load
from conformance.numerics import answers
from conformance.numerics.verdict import budgets_of
from conformance.records import Status
from conformance.tally import Tally
from conformance.weights import make_weights
from reference_impl import Llama

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENS = torch.arange(10).view(2, 5)
X, WEIGHT = torch.ones(3, 8), torch.full((8,), 2.0)
CASE = ModelCase(tokens=5, batch=2)
# A right Llama in a few lines, for files that are about something else.
LLAMA = """
    import torch
    from reference_impl import Llama
    def right(config, weights):
        return Llama(config, weights, dtype=weights["model.norm.weight"].dtype)
"""


@pytest.fixture
def user(tmp_path):
    """The implementation that a file with this text is, under --impl file.py or file.py:name."""

    def write(text, name=""):
        path = tmp_path / "mine.py"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return load(f"{path}:{name}" if name else str(path))

    return write


def built(user, dtype=torch.float32):
    return user.build(PROBE_CONFIG, make_weights(PROBE_CONFIG, 0, "loud", dtype))


def returning(result):
    """An implementation whose models return this, whatever the tokens."""
    return User("mine", lambda *_: lambda _: result)


def outcome(checks, implementation, requirement, case):
    check = next(c for c in checks if c.requirement == requirement)
    return Tally(check, Subject(implementation)).examine(case)


OPS_AND_BUILD = """
    def rms_norm(x, weight, eps):
        return x + 1
    class Model:
        def __call__(self, tokens):
            return tokens
        def rms_norm(self, x, weight, eps):
            return x + 2
        def silu_mul(self, gate, up):
            return gate + 3
    def build(config, weights):
        return Model()
"""


def test_of_a_file_its_own_functions_come_first_then_methods_of_the_model_it_builds(user):
    mine = user(OPS_AND_BUILD)
    assert torch.equal(mine.rms_norm(X, WEIGHT, 1e-5), X + 1)
    assert torch.equal(mine.silu_mul(X, X), X + 3)
    assert mine.capabilities() == ("rms_norm", "silu_mul", "logits")


def test_of_file_and_build_only_the_model_is_looked_at(user):
    mine = user(OPS_AND_BUILD, "build")
    assert torch.equal(mine.rms_norm(X, WEIGHT, 1e-5), X + 2)


def test_a_function_beside_build_is_not_taken_silently_nor_left_out_silently(user):
    mine = user("def rms_norm(x, weight, eps): ...\ndef build(config, weights): return print", "build")
    with pytest.raises(
        Unsupported, match=r"no rms_norm\(x, weight, eps\) in the model.*--impl .*mine.py alone"
    ):
        mine.rms_norm(X, WEIGHT, 1e-5)


def test_an_object_with_ops_needs_no_model(user):
    mine = user(
        """
        class Kernels:
            def rms_norm(self, x, weight, eps): return x + 4
        kernels = Kernels()
        """,
        "kernels",
    )
    assert torch.equal(mine.rms_norm(X, WEIGHT, 1e-5), X + 4)
    assert mine.capabilities() == ("rms_norm",)
    with pytest.raises(Unsupported, match=r"mine.py:kernels has no build\(config, weights\)"):
        built(mine)
    with pytest.raises(Unsupported, match=r"no silu_mul\(gate, up\) in .*mine.py:kernels"):
        mine.silu_mul(X, X)


MODULE = """
    import torch
    class Model(torch.nn.Module):
        def __init__(self, config, weights):
            super().__init__()
            self.rms_norm = torch.nn.RMSNorm(48)
            self.mlp = torch.nn.Linear(8, 8)
            self.register_buffer("table", torch.ones(3))
            self.config = config
        def forward(self, tokens):
            assert not self.training
            return torch.zeros(*tokens.shape, self.config.vocab_size, dtype=self.mlp.weight.dtype)
"""


def test_a_model_class_is_a_build(user):
    assert built(user(MODULE, "Model")).logits(TOKENS).shape == (2, 5, 131)


def test_a_model_class_with_an_op_among_its_methods_is_a_build_too(user):
    text = MODULE + "        def silu_mul(self, gate, up): return gate\n"
    assert torch.equal(user(text, "Model").silu_mul(X, X), X)


def test_a_layer_that_is_called_like_an_op_is_none(user):
    mine = user(MODULE, "Model")
    with pytest.raises(Unsupported, match="rms_norm"):
        mine.rms_norm(X, WEIGHT, 1e-5)
    with pytest.raises(Unsupported, match=r"no mlp\(x_BTD, layer\) in the model"):
        built(mine).mlp(X, 0)


def test_what_is_not_offered_names_the_method_that_would_offer_it():
    model = built(returning(None))
    for ask in (lambda: model.new_cache(1, 9), lambda: model.step(TOKENS, None)):
        with pytest.raises(
            Unsupported, match=r"no (new_cache\(batch, capacity\)|step\(tokens_BT, cache\)) in"
        ):
            ask()


@pytest.mark.parametrize("text", ["def rms_norm(x, weight): ...", "def rms_norm(x, *, weight, eps): ..."])
def test_a_wrong_signature_is_an_error_that_shows_both(user, checks, text):
    record = outcome(checks, user(text), "NORM-1", NormCase())
    assert record.status is Status.ERROR
    assert text[4:-5] in record.reason
    assert "cannot be called as rms_norm(x, weight, eps)" in record.reason


def test_a_build_that_takes_too_little_is_told_so(user):
    with pytest.raises(ValueError, match=r"build\(config\) cannot be called as build\(config, weights\)"):
        built(user("def build(config): ..."))


def test_a_type_error_inside_is_not_mistaken_for_a_wrong_signature(user):
    with pytest.raises(TypeError, match="unsupported operand"):
        user("def rms_norm(x, weight, eps): return None + 1").rms_norm(X, WEIGHT, 1e-5)


def test_an_output_object_with_logits_is_taken_as_logits():
    class Output:
        logits = torch.zeros(2, 5, 131)

    assert built(returning(Output())).logits(TOKENS) is Output.logits


@pytest.mark.parametrize("shape", [(10, 131), (2, 131), (2, 1, 131), (5, 2, 131)])
def test_logits_without_batch_or_tokens_are_an_error_that_shows_both_shapes(checks, shape):
    record = outcome(checks, returning(torch.zeros(shape)), "LOGITS-1", CASE)
    assert record.status is Status.ERROR
    assert f"logits of shape {list(shape)} for tokens [2, 5], expected [2, 5, V]" in record.reason


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (None, "NoneType"),
        ((torch.zeros(2, 5, 131), None), "tuple of Tensor, NoneType"),
        ([1.0], "list of float"),
    ],
)
def test_what_is_no_tensor_is_named(result, shown):
    with pytest.raises(ValueError, match=f"the model returned {shown}, expected one tensor"):
        built(returning(result)).logits(TOKENS)


def test_one_table_is_not_taken_for_two(user):
    mine = user("def rope_tables(config, positions): return positions[:2, None].float()")
    with pytest.raises(ValueError, match=r"rope_tables returned Tensor \[2, 1\], expected two tensors"):
        mine.rope_tables(PROBE_CONFIG, torch.arange(5))


def test_nan_is_a_failure_and_no_crash(checks):
    logits = torch.full((2, 5, 131), torch.nan)
    assert outcome(checks, returning(logits), "LOGITS-1", CASE).status is Status.FAIL
    assert outcome(checks, returning(logits), "MASK-1", CASE).status is Status.FAIL


def test_a_float32_module_is_moved_to_the_weights_dtype_with_its_buffers(user):
    model = built(user(MODULE, "Model"), torch.bfloat16).model
    assert {t.dtype for t in (*model.parameters(), *model.buffers())} == {torch.bfloat16}


def test_a_mixture_of_dtypes_is_left_as_it_was_built(user):
    text = MODULE.replace("self.mlp = torch.nn.Linear(8, 8)", "self.mlp = torch.nn.Linear(8, 8).bfloat16()")
    model = built(user(text, "Model"), torch.bfloat16).model
    assert model.mlp.weight.dtype == torch.bfloat16
    assert model.rms_norm.weight.dtype == torch.float32


def test_a_module_goes_to_the_device_of_the_weights(user):
    weights = make_weights(PROBE_CONFIG, 0, "loud")
    model = user(MODULE, "Model").build(PROBE_CONFIG, {n: w.to("meta") for n, w in weights.items()}).model
    assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"meta"}


def test_logits_widened_to_float32_are_rounded_to_the_weights_dtype():
    wide = torch.randn(2, 5, 131)
    assert torch.equal(built(returning(wide), torch.bfloat16).logits(TOKENS), wide.bfloat16())
    assert built(returning(wide.double())).logits(TOKENS).dtype == torch.float64  # and judged as wrong


def test_a_build_may_write_into_its_weights():
    def build(_config, weights):
        return [w.zero_() for w in weights.values()] and (lambda tokens: tokens)

    weights = make_weights(PROBE_CONFIG, 0, "loud")
    User("mine", build).build(PROBE_CONFIG, weights)
    assert all(torch.equal(w, weights[n]) for n, w in make_weights(PROBE_CONFIG, 0, "loud").items())


def test_positions_are_passed_on_where_the_model_takes_them(user):
    text = LLAMA + "    build = right\n"
    positions = torch.tensor([0, 1, 2, 7, 9])
    want = Llama(PROBE_CONFIG, make_weights(PROBE_CONFIG, 0, "loud"))(TOKENS, positions=positions)
    assert torch.equal(built(user(text)).logits(TOKENS, positions), want)
    with pytest.raises(Unsupported, match="positions"):
        built(returning(None)).logits(TOKENS, positions)


def test_a_forward_that_takes_positions_is_seen_in_a_module(user):
    text = MODULE.replace("def forward(self, tokens)", "def forward(self, tokens, positions=None)")
    assert built(user(text, "Model")).logits(TOKENS, torch.arange(5)).shape == (2, 5, 131)


def test_results_of_inference_mode_can_be_judged(user, checks):
    text = (
        LLAMA
        + """
    def build(config, weights):
        return torch.inference_mode()(right(config, weights).__call__)
    """
    )
    for requirement in ("LOGITS-1", "MASK-1"):
        assert outcome(checks, user(text), requirement, CASE).status is Status.PASS


def test_a_config_may_be_refused_from_within_build(user, checks):
    text = (
        "from conformance import Unsupported\ndef build(config, weights): raise Unsupported('no such rule')"
    )
    record = outcome(checks, user(text), "LOGITS-1", CASE)
    assert (record.status, record.reason) == (Status.UNSUPPORTED, "no such rule")


def test_own_names_of_tensors_are_asked_for(user):
    mine = user("def build(c, w): ...\ndef own_name(canonical): return canonical.replace('model.', '')")
    assert mine.own_name("model.norm.weight") == "norm.weight"
    assert returning(None).own_name("model.norm.weight") == "model.norm.weight"


SETTINGS = """
    import torch
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_float32_matmul_precision("medium")
    torch.manual_seed(7)
    torch.set_num_threads(2)
    def seen():
        return torch.empty(1).dtype, torch.empty(1).device.type, torch.get_float32_matmul_precision()
    def rms_norm(x, weight, eps):
        torch.manual_seed(8)
        assert seen() == (torch.float64, "meta", "medium"), seen()
        return x
"""


def settings():
    precisions = (
        (torch.backends.mkldnn.matmul, torch.backends.cuda.matmul)
        if hasattr(torch.backends, "fp32_precision")
        else ()
    )
    return [
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_float32_matmul_precision(),
        torch.get_num_threads(),
        torch.get_rng_state().tolist(),
        *(p.fp32_precision for p in precisions),
    ]


def test_settings_of_the_process_hold_for_the_file_that_made_them_and_for_nothing_else(user):
    before = settings()
    mine = user(SETTINGS)
    assert settings() == before
    mine.rms_norm(X, WEIGHT, 1e-5)
    assert settings() == before


def test_settings_come_back_after_an_error_too(user):
    before = settings()
    with pytest.raises(ZeroDivisionError):
        user(SETTINGS.replace("return x", "1 / 0")).rms_norm(X, WEIGHT, 1e-5)
    assert settings() == before


def test_settings_made_at_import_hold_however_often_the_file_is_loaded(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(SETTINGS), encoding="utf-8")
    load(str(path))
    load(str(path)).rms_norm(X, WEIGHT, 1e-5)


def test_a_file_cannot_widen_its_own_budget(user, checks):
    case = ModelCase(tokens=5, batch=2, seed=4)
    text = (
        LLAMA
        + """
    torch.set_float32_matmul_precision("medium")
    def build(config, weights):
        torch.set_default_dtype(torch.bfloat16)
        return right(config, weights)
    """
    )
    outcome(checks, user(text), "LOGITS-1", case)
    measured = budgets_of(answers.logits, case)
    budgets_of.cache_clear()
    assert measured == budgets_of(answers.logits, case)


def test_a_warning_is_noted_and_is_no_failure(user, checks):
    text = """
    import warnings
    warnings.warn("at import")
    def rms_norm(x, weight, eps):
        warnings.warn("mind the gap")
        return x
    """
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("error")
        record = outcome(checks, user(text), "NORM-1", NormCase())
    assert [str(w.message) for w in warned] == ["at import"]
    assert record.status is Status.FAIL
    assert record.facts["warned"] == "mind the gap"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("raise ValueError('my own')", "raised ValueError when it was imported: my own"),
        ("def build(:", "raised SyntaxError when it was imported"),
        ("import sys; sys.exit(2)", "called sys.exit"),
    ],
)
def test_a_file_that_cannot_be_imported_is_no_typo_in_impl(user, text, shown):
    with pytest.raises(ImportError, match=shown):
        user(text)


def test_an_edited_file_is_read_anew(user):
    assert torch.equal(user("def rms_norm(x, weight, eps): return x + 1").rms_norm(X, WEIGHT, 1e-5), X + 1)
    assert torch.equal(user("def rms_norm(x, weight, eps): return x + 10").rms_norm(X, WEIGHT, 1e-5), X + 10)


def test_a_missing_dependency_is_named(user):
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        user("import no_such_library")


def test_a_file_imports_what_stands_beside_it(user, tmp_path):
    (tmp_path / "kernels_beside.py").write_text(
        "def rms_norm(x, weight, eps): return x + 5", encoding="utf-8"
    )
    assert torch.equal(user("from kernels_beside import rms_norm").rms_norm(X, WEIGHT, 1e-5), X + 5)


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("{folder}/none.py", "there is no file"),
        ("{folder}/mine.py:bulid", "has no 'bulid'; it has answer, build"),
        ("{folder}/mine.py:answer", "is int, expected build"),
        ("{folder}/empty.py", "has neither build.* nor any of rms_norm.*; it has nothing"),
        ("no_such_package.model:build", "there is no module 'no_such_package.model'"),
        ("conformance.no_such_part:build", "there is no module 'conformance.no_such_part'"),
        ("conformance.records:bulid", "has no 'bulid'; it has .*Record"),
    ],
)
def test_a_typo_is_told_what_exists(tmp_path, spec, shown):
    (tmp_path / "mine.py").write_text("answer = 42\ndef build(config, weights): ...", encoding="utf-8")
    (tmp_path / "empty.py").write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match=shown):
        load(spec.format(folder=tmp_path))


def test_a_package_is_named_by_dots():
    model = built(load("reference_impl:Llama"))
    assert model.logits(TOKENS).shape == (2, 5, 131)


def test_a_build_that_raises_is_an_error_in_what_needs_it_and_nowhere_else(user, checks):
    mine = user(
        "def rms_norm(x, weight, eps): return x\ndef build(config, weights): raise RuntimeError('broken')"
    )
    assert outcome(checks, mine, "NORM-1", NormCase()).status is Status.FAIL
    record = outcome(checks, mine, "LOGITS-1", CASE)
    assert record.status is Status.ERROR
    assert json.dumps(record.to_json(), allow_nan=False)
    assert "RuntimeError: broken (at mine.py:2)" in record.reason
