"""docs/your-own.md says what is so: names, arguments, and which requirements each part is judged on."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance import Selection, Subject
from conformance import builtin_variants as _builtin_variants  # noqa: F401 - registers them
from conformance.implementations.base import OP_CAPABILITIES, Implementation, Model
from conformance.implementations.reference import Reference
from conformance.implementations.user import User, load
from conformance.implementations.user_model import protocol
from conformance.records import Status
from conformance.variants import variants

PAGE = Path(__file__).parent.parent.parent / "docs/your-own.md"
ID = re.compile(r"[A-Z]+-\d+")
# | `name(arguments)` | result | requirements |
ROWS = re.findall(
    r"^\| `(model\.)?(\w+)(\(.*?\))` \|.*\| ?(.*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
)
WORDS = " ".join(PAGE.read_text(encoding="utf-8").split())
PROVES = {name: set(ID.findall(proves)) for _, name, _, proves in ROWS}
# Parts that only make sense together, and those that the page describes in words.
TOGETHER = {"step": ("new_cache", "step"), "cache_tensors": ("new_cache", "step", "cache_tensors")}
TOGETHER |= {
    name: ("new_cache", "step", name) for name in ("cache_kinds", "prefill", "reset", "crop", "reorder")
}
IN_WORDS = {"logits", "held", "cast", "gradients", "watch", "reloaded"}


def parts_of_the_reference(names):
    """A user's implementation that offers these parts alone, and a model where one of them needs it."""
    reference = Reference()
    ops = SimpleNamespace(**{n: getattr(reference, n) for n in names if n in OP_CAPABILITIES})

    def build(config, weights):
        model = reference.build(config, weights)
        shown = type("Shown", (), {"__call__": lambda _, tokens: model.logits(tokens)})()
        vars(shown).update({n: getattr(model, n) for n in names if hasattr(model, n)})
        return shown

    return User("mine.py", build if set(names) - set(OP_CAPABILITIES) else None, ops)


def judged(checks, names):
    chosen = tuple(variants(["llama-3-8b", "llama-3.1-8b", "llama-3.2-1b", "linear-scaled"]))
    selection = Selection(variants=chosen, dtypes=("float32", "bfloat16"), profile="quick")
    subject = Subject(parts_of_the_reference(names))
    records = [record for check in checks for record in check.run(subject, selection)]
    assert not any(record.status.is_bad for record in records)
    return {record.requirement for record in records if record.status is Status.PASS}


def test_the_table_has_every_part_as_the_protocol_calls_it():
    assert [name for model, name, _, _ in ROWS if not model] == list(OP_CAPABILITIES)
    for model, name, call, _ in ROWS:
        assert call == protocol(Model if model else Implementation, name)
    left = {n for n in vars(Model) if not n.startswith("_")} - {name for _, name, _, _ in ROWS}
    assert left == IN_WORDS


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", [name for name in PROVES if name in OP_CAPABILITIES])
def test_an_op_alone_is_judged_on_what_its_row_says(name, checks):
    assert judged(checks, [name]) == PROVES[name]


@pytest.mark.usefixtures("one_thread")
def test_a_model_is_judged_on_what_the_page_says_and_each_method_adds_what_its_row_says(checks):
    (sentence,) = re.findall(r"A model that offers none of them is judged on (.*?);", WORDS)
    alone = judged(checks, ["nothing else"])
    assert alone == set(ID.findall(sentence))
    rows = [name for name in PROVES if name not in (*OP_CAPABILITIES, "new_cache")]
    for name in rows:
        added = judged(checks, TOGETHER.get(name, (name,))) - alone
        without = judged(checks, TOGETHER[name][:-1]) - alone if name in TOGETHER else set()
        assert added - without == PROVES[name] - alone, name


@pytest.mark.usefixtures("one_thread")
def test_a_torch_module_is_judged_on_what_it_holds_besides(checks):
    (sentence,) = re.findall(r"A `torch.nn.Module` is judged on what it holds besides: (.*?)\.", WORDS)
    tutorial = load(str(PAGE.parent / "examples/tutorial_llama.py"))
    wanted = set(ID.findall(sentence))
    mine = [check for check in checks if check.requirement in wanted]
    selection = Selection(profile="quick")
    records = [r for check in mine for r in check.run(Subject(tutorial), selection)]
    assert {r.requirement for r in records if r.status is Status.PASS} == wanted
