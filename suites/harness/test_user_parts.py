"""Your own file beyond build and the first ops: what a module holds, other ways to build, options."""

import sys
import textwrap

import pytest
import torch
from torch import nn

from conformance import ModelCase, Subject, check, config_spellings, exact
from conformance import builtin_variants as _builtin_variants  # noqa: F401 - registers them
from conformance.checkpoints.config_json import rope_from_hf
from conformance.checks import Selection
from conformance.implementations.base import Unsupported
from conformance.implementations.user import PROBE_CONFIG, User, load
from conformance.records import Status
from conformance.variants import variants
from conformance.weights import make_weights

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENS = torch.arange(10).view(2, 5)
BIASED = ModelCase(tokens=5, but=(("mlp_bias", True),))


class Tiny(nn.Module):
    """An embedding that is its own unembedding, and a table that is not saved."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(131, 8)
        self.head = nn.Linear(8, 131, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.linspace(0, 1, 7), persistent=False)

    def forward(self, tokens):
        return self.head(self.embed(tokens))

    def loss(self, tokens):
        return nn.functional.cross_entropy(self(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def model_of(made):
    return User("mine", lambda *_: made).build(PROBE_CONFIG, make_weights(PROBE_CONFIG, 0, "loud"))


def test_a_module_shows_what_it_holds_a_tied_tensor_under_both_names():
    held = {h.name: h for h in model_of(Tiny()).held()}
    assert {n: (h.kind, h.saved) for n, h in held.items()} == {
        "embed.weight": ("parameter", True),
        "head.weight": ("parameter", True),
        "table": ("buffer", False),
    }
    assert held["embed.weight"].tensor.data_ptr() == held["head.weight"].tensor.data_ptr()


def test_a_cast_is_a_copy_with_its_buffers_cast_along():
    model = model_of(Tiny())
    before = model.logits(TOKENS)
    narrow = model.cast(torch.bfloat16)
    assert {h.tensor.dtype for h in narrow.held()} == {torch.bfloat16}
    assert narrow.logits(TOKENS).dtype == torch.bfloat16
    assert {h.tensor.dtype for h in model.held()} == {torch.float32}
    assert torch.equal(model.logits(TOKENS), before)


def test_gradients_are_one_for_each_parameter_and_stay_off_the_model():
    tiny = Tiny()
    (gradient,) = model_of(tiny).gradients(TOKENS)
    assert gradient.shape == (131, 8)
    assert gradient.abs().max() > 0
    assert tiny.embed.weight.grad is None


@pytest.mark.parametrize("capability", ["held", "cast", "gradients"])
def test_what_is_no_module_holds_nothing_that_can_be_seen(capability):
    given = {"held": (), "cast": (torch.bfloat16,), "gradients": (TOKENS,)}[capability]
    with pytest.raises(
        Unsupported, match=f"does not offer {capability}: what it builds is no torch.nn.Module"
    ):
        getattr(model_of(lambda tokens: tokens), capability)(*given)


def test_a_module_without_a_loss_has_no_gradients():
    with pytest.raises(Unsupported, match=r"does not offer loss: no loss\(tokens_BT\)"):
        model_of(nn.Embedding(131, 131)).gradients(TOKENS)


@pytest.fixture
def user(tmp_path):
    def write(text):
        path = tmp_path / "mine.py"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return load(str(path))

    return write


def test_other_ways_to_build_stand_beside_build(user):
    mine = user("""
        def build(config, weights):
            return lambda tokens: "as it is"
        def build_adjacent(config, weights):
            return lambda tokens: "adjacent"
        def formats():
            return ["gguf"]
        def build_from(format_name, config, tensors):
            return lambda tokens: (format_name, sorted(tensors))
    """)
    weights = {"a": torch.ones(1)}
    assert mine.build_adjacent(PROBE_CONFIG, weights).model(TOKENS) == "adjacent"
    assert mine.formats() == ("gguf",)
    assert mine.build_from("gguf", PROBE_CONFIG, weights).model(TOKENS) == ("gguf", ["a"])


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda u: u.build_adjacent(PROBE_CONFIG, {}), r"no build_adjacent\(config, weights\) in "),
        (lambda u: u.formats(), r"no formats\(\) in "),
        (
            lambda u: u.build_from("gguf", PROBE_CONFIG, {}),
            r"no build_from\(format_name, config, tensors\) in ",
        ),
        (lambda u: u.attention_cores(), r"does not offer attention_cores: "),
        (lambda u: u.ffn_width(8, 2, 1.0), r"does not offer ffn_width: "),
    ],
)
def test_what_is_not_there_is_not_offered(user, ask, message):
    with pytest.raises(Unsupported, match=message):
        ask(user("def build(config, weights):\n    return lambda tokens: tokens\n"))


def test_backends_are_functions_by_name(user):
    mine = user("""
        def attention_cores():
            return {"slow": lambda q, k, v, mask, scale: q, "fast": lambda q, k, v, mask, scale: v}
    """)
    q, k, v = torch.randn(3, 1, 2, 3, 4)
    given = {name: core(q, k, v, torch.ones(3, 3), 1.0) for name, core in mine.attention_cores().items()}
    assert torch.equal(given["slow"], q)
    assert torch.equal(given["fast"], v)


@pytest.mark.parametrize("cores", ["[print]", "{'slow': 3}", "None"])
def test_backends_of_another_shape_are_an_error_that_says_what_is_expected(user, cores):
    mine = user(f"def attention_cores():\n    return {cores}\n")
    with pytest.raises(ValueError, match="expected a dict from names to functions"):
        mine.attention_cores()


# Options: to refuse one is an answer, to ignore it is a failure.


def refusing(*_):
    raise RuntimeError("Unexpected key(s) in state_dict: mlp.gate_proj.bias")


def test_whoever_refuses_an_option_is_not_judged_on_it():
    message = r"refuses mlp_bias = True \(RuntimeError: Unexpected key"
    with pytest.raises(Unsupported, match=message):
        Subject(User("mine", refusing)).model(BIASED)


def test_whoever_refuses_what_every_llama_has_is_in_error():
    for case in (ModelCase(), ModelCase(but=(("num_hidden_layers", 3),))):
        with pytest.raises(RuntimeError, match="Unexpected key"):
            Subject(User("mine", refusing)).model(case)


@pytest.mark.parametrize(("case", "said"), [(BIASED, True), (ModelCase(tokens=5), False)])
def test_a_failure_on_an_option_says_how_to_decline_it(case, said):
    def wrong(_subject, asked):
        return exact(bool(case.but) and not asked.but, "law", "on purpose")

    asked = check("MLP-5", cases=lambda _selection: [case])(wrong).check
    (record,) = asked.run(Subject(User("mine", refusing)), Selection(profile="quick"))
    assert record.status is Status.FAIL
    assert record.reason.startswith("on purpose")
    assert (
        "the config asks for mlp_bias = True: who does not know it refuses to build" in record.reason
    ) is said


@pytest.mark.parametrize("variant", ["llama-3-8b", "llama-3.1-8b", "linear-scaled"])
def test_every_spelling_of_a_config_says_the_same(variant):
    config = variants([variant])[0].config
    spellings = config_spellings(config)
    assert len(spellings) == (2 if config.rope.rope_type == "default" else 3)
    assert {rope_from_hf(spelt) for spelt in spellings.values()} == {config.rope}


def test_few_are_an_untied_and_a_tied_one_and_every_variant_stands_in_float32():
    selection = Selection(dtypes=("float32", "float16"))
    assert selection.few() == [("llama-2-7b", "gqa"), ("llama-3.2-3b", "gqa")]
    assert [(v, s) for dtype, v, s in selection.models() if dtype == "float16"] == selection.few()
    assert [(v, s) for dtype, v, s in selection.models() if dtype == "float32"] == selection.smalls()


# What a file imports from its own folder is its own.


def a_folder(tmp_path, name, value, late=False):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "my_layers.py").write_text(f"VALUE = {value}\n", "utf-8")
    if late:
        text = (
            "def build(config, weights):\n    from my_layers import VALUE\n    return lambda tokens: VALUE\n"
        )
    else:
        text = "from my_layers import VALUE\ndef build(config, weights):\n    return lambda tokens: VALUE\n"
    (folder / "mine.py").write_text(text, "utf-8")
    return load(str(folder / "mine.py"))


@pytest.mark.parametrize("late", [False, True])
def test_two_files_may_have_helpers_of_the_same_name(tmp_path, late):
    one, other = a_folder(tmp_path, "one", 1, late), a_folder(tmp_path, "other", 2, late)
    weights = make_weights(PROBE_CONFIG, 0, "loud")
    assert [u.build(PROBE_CONFIG, weights).model(TOKENS) for u in (one, other, one)] == [1, 2, 1]
    assert "my_layers" not in sys.modules


def test_autocast_that_a_file_switches_on_is_off_outside_of_it(user):
    mine = user("""
        import torch
        torch.set_autocast_enabled("cpu", True)
        def build(config, weights):
            return lambda tokens: torch.is_autocast_enabled("cpu")
    """)
    assert not torch.is_autocast_enabled("cpu")
    model = mine.build(PROBE_CONFIG, make_weights(PROBE_CONFIG, 0, "loud"))
    assert model._code.call("the model", "(tokens)", model.model, TOKENS) is True
    assert not torch.is_autocast_enabled("cpu")
