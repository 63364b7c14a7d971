"""What docs/findings says is still so in the installed versions; a finding that is gone is noticed here."""

import re
import runpy
from pathlib import Path

import pytest

from conformance.spec import requirements

FINDINGS = Path(__file__).parent.parent.parent / "docs/findings"
LIBRARIES = ("litgpt", "llms_from_scratch", "transformers")  # as they are imported
SCRIPTS = sorted(path.name for library in LIBRARIES for path in FINDINGS.glob(f"{library}_*.py"))
# | library | seen in | what | who is right, and why | requirement | script |
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (FINDINGS / "README.md").read_text(encoding="utf-8").splitlines()
    if line.endswith(".py) |")
]


def exit_status(script):
    """What python SCRIPT would exit with; an exception gets out."""
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as left:
        return int(left.code or 0)
    return 0


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore")  # a library's own
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_finding_is_still_there(name, monkeypatch, capsys):
    pytest.importorskip(next(library for library in LIBRARIES if name.startswith(library)))
    if "_gguf_" in name:
        pytest.importorskip("gguf")
        monkeypatch.syspath_prepend(FINDINGS)  # where python puts a script's own folder
    assert exit_status(FINDINGS / name) == 0, f"{name} says it is gone:\n{capsys.readouterr().out}"


def test_a_script_that_says_gone_is_told_from_one_that_does_not(tmp_path):
    script = tmp_path / "finding.py"
    statuses = []
    for gone in (True, False):
        script.write_text(f"import sys\n\nsys.exit({gone})\n", encoding="utf-8")
        statuses.append(exit_status(script))
    assert statuses == [1, 0]


def test_the_table_has_a_row_for_every_script():
    assert sorted(re.findall(r"\((\w+\.py)\)", " ".join(row[-1] for row in ROWS))) == SCRIPTS


def test_the_table_names_libraries_and_requirements_that_exist():
    for library, seen_in, _, _, proved, script in ROWS:
        assert script.startswith(f"[{library.replace('-', '_')}_")
        assert re.fullmatch(r"[\d.]+", seen_in)
        assert set(re.findall(r"[A-Z]+-\d+", proved)) <= requirements().keys()
