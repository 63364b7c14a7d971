"""A check cannot forget to assert, says whose line raised, and prints what can be pasted."""

import shlex

import pytest

from conformance import NormCase, Selection, Subject, check, exact
from conformance.implementations.reference import Reference
from conformance.records import Status
from conformance.tally import describe_exception

SELECTION = Selection(dtypes=("float32",), profile="quick")


def run(body, name="reference"):
    """The records of a body on one case."""
    asked = check("NORM-1", cases=lambda _selection: [NormCase()])(body).check
    return asked.run(Subject(Reference(name=name)), SELECTION)


@pytest.mark.parametrize("nothing", [None, [], True, [None]])
def test_a_body_that_returns_no_verdict_is_a_type_error(nothing):
    def forgets_to_assert(_subject, _case):
        return nothing

    with pytest.raises(TypeError, match=r"forgets_to_assert returned .*, expected a Verdict"):
        run(forgets_to_assert)


def test_an_exception_is_placed_at_the_users_own_line(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("import torch\n\ndef build():\n    return torch.zeros(2) @ torch.zeros(3)\n", "utf-8")
    namespace = {}
    exec(compile(mine.read_text("utf-8"), str(mine), "exec"), namespace)  # noqa: S102 - a user's file
    with pytest.raises(RuntimeError) as caught:
        namespace["build"]()
    assert describe_exception(caught.value).endswith("(at mine.py:4)")


def test_a_command_to_paste_survives_a_path_with_a_space():
    def fails(_subject, _case):
        return exact(False, "law", "on purpose")

    (record,) = run(fails, "my code/mine.py:build")
    assert record.status is Status.FAIL
    words = shlex.split(record.repro)
    assert words[words.index("--impl") + 1] == "my code/mine.py:build"
    assert words[words.index("--case") + 1] == "NormCase(dtype='float32')"
