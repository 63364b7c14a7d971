"""python -m conformance: the suites without pytest's spelling, and lists of what there is."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance import trace_command
from conformance.power import command as power_command
from conformance.suites import SUITES

if TYPE_CHECKING:
    from conformance.records import Record


def main(arguments: list[str] | None = None) -> int:
    """Run one command; its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["check"]:
        return check(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="run the suites; takes every option of pytest suites/")
    listed = commands.add_parser("requirements", help="list the numbered requirements")
    listed.add_argument("--markdown", action="store_true", help="as docs/requirements.md, with all there is")
    commands.add_parser("variants", help="list the variants")
    seeded = commands.add_parser("faults", help="list the seeded faults, as --impl fault:NAME takes them")
    seeded.add_argument("--public", action="store_true", help="list public reports, and what covers each")
    for name, help_ in (
        ("verdict", "print the verdict of a results.json, and where its page is"),
        ("page", "write index.html again from a results.json"),
    ):
        command = commands.add_parser(name, help=help_)
        command.add_argument("folder", nargs="?", default="reports", help="its folder (default: reports)")
    headroom = commands.add_parser("headroom", help="measure the headroom of right implementations")
    headroom.add_argument("--cases", type=int, default=300, help="random cases per question and dtype")
    headroom.add_argument("--seed", type=int, default=0, help="seed of the cases")
    headroom.add_argument(
        "--impl", action="append", default=[], help="implementation (default: all installed)"
    )
    headroom.add_argument(
        "--from",
        dest="folder",
        metavar="DIR",
        help="tell it from the results.json there instead of measuring",
    )
    power_command.add(commands)
    trace_command.add(commands)
    soak = commands.add_parser("soak", help="judge drawn cases of many seeds (minutes)")
    soak.add_argument("--seeds", type=int, default=50, help="how many, from 0 on (default: 50)")
    soak.add_argument(
        "--profile", default="standard", help="standard or thorough: how many cases a seed draws"
    )
    soak.add_argument("--impl", action="append", default=[], help="implementation (default: all installed)")
    soak.add_argument("--requirement", action="append", default=[], metavar="ID", help="these alone")
    soak.add_argument("--jobs", type=int, default=2, help="processes, of one thread each (default: 2)")
    options = parser.parse_args(arguments)
    try:
        return int(globals()[f"run_{options.command}"](options) or 0)
    except ValueError as error:
        parser.error(str(error))


def is_suite(argument: str) -> bool:
    """Whether an argument names a suite; any other path is the value of an option."""
    place = Path(argument.partition("::")[0])
    return place.exists() and (place.resolve() == SUITES or SUITES in place.resolve().parents)


def check(arguments: list[str]) -> int:
    """Run pytest on the suites with the plugin loaded; pytest's exit status."""
    import pytest  # noqa: PLC0415 - each command imports what it needs

    places = [a for a in arguments if not a.startswith("-") and is_suite(a)]
    return int(pytest.main([*([] if places else [str(SUITES)]), *arguments]))


def run_requirements(options: argparse.Namespace) -> None:
    """Print id and statement, or the whole page."""
    from conformance.spec import requirements  # noqa: PLC0415

    if options.markdown:
        from conformance.requirements_page import page  # noqa: PLC0415

        print(page(), end="")  # noqa: T201
        return
    for id_, requirement in requirements().items():
        print(f"{id_:9} {requirement.statement}")  # noqa: T201 - a list for a person


def run_variants(_options: argparse.Namespace) -> None:
    """Print name and what is special."""
    from conformance import builtin_variants as _builtin  # noqa: F401, PLC0415
    from conformance.variants import variants  # noqa: PLC0415

    for v in variants():
        c = v.config
        heads = f"{c.num_attention_heads}/{c.num_key_value_heads} heads of {c.head_dim}"
        rope = f"θ {c.rope.rope_theta:g} {c.rope.rope_type}"
        tied = ", tied" if c.tie_word_embeddings else ""
        print(f"{v.name:15} {c.num_hidden_layers} layers of {c.hidden_size}, {heads}, {rope}{tied}")  # noqa: T201


def run_faults(options: argparse.Namespace) -> None:
    """Print name, the requirement that falls, and the source; or public reports and what covers them."""
    from conformance.faults import catalogue  # noqa: PLC0415

    if options.public:
        from conformance.faults.public import lines  # noqa: PLC0415

        print("\n".join(lines()))  # noqa: T201
        return
    for name, fault in catalogue().items():
        on = (
            f", equivalent{fault.equivalent_on and ' on a ' + fault.equivalent_on}"
            if fault.equivalent
            else ""
        )
        print(f"fault:{name:32} {fault.requirement:9} {fault.source}{on}")  # noqa: T201


def run_power(options: argparse.Namespace) -> int:
    """Run the suites' checks on every seeded fault."""
    return power_command.run(options)


def run_trace(options: argparse.Namespace) -> int:
    """Show every step of a pass."""
    return trace_command.run(options)


def run_soak(options: argparse.Namespace) -> int:
    """Judge seed after seed, and tell what right implementations used of their budgets; 1 where one fails."""
    from conformance.options import implementations  # noqa: PLC0415
    from conformance.soak import Soak, performed, rounds  # noqa: PLC0415
    from conformance.spec import requirement  # noqa: PLC0415

    for id_ in options.requirement:
        requirement(id_)
    names = implementations(options.impl)
    todo = rounds(names, range(options.seeds), options.profile, options.requirement)
    soak, seed, interrupted = Soak(), 0, False
    try:
        for outcome in performed(todo, options.jobs):
            if outcome.round.seed != seed:
                print(f"after seed {seed}: {soak.summary}", file=sys.stderr)  # noqa: T201
                seed = outcome.round.seed
            soak.add(outcome)
    except KeyboardInterrupt:  # what was judged is told all the same
        interrupted = True
    print("\n".join(soak.lines()))  # noqa: T201
    if interrupted:
        print(f"interrupted in seed {seed}")  # noqa: T201
        return 130
    return 0 if soak.good else 1


def run_page(options: argparse.Namespace) -> None:
    """Render results.json again."""
    from conformance.report.page import write_page  # noqa: PLC0415
    from conformance.report.power import read_power  # noqa: PLC0415

    folder = Path(options.folder)
    print(write_page(folder, *results_of(folder), read_power(folder)))  # noqa: T201


def run_verdict(options: argparse.Namespace) -> None:
    """Print the sentence of results.json, and where the page is."""
    from conformance.report.summary import heading  # noqa: PLC0415

    folder = Path(options.folder)
    run, records, _ = results_of(folder)
    print(f"{heading(run, records)}\npage: {folder / 'index.html'}")  # noqa: T201


def results_of(folder: Path) -> tuple[dict[str, Any], list[Record], list[dict[str, Any]]]:
    """What a folder's results.json holds.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    from conformance.records import read_results  # noqa: PLC0415

    try:
        return read_results(folder)
    except OSError as error:
        raise ValueError(
            f"cannot read {folder}/results.json: {error.strerror}; run the suites first"
        ) from error


def run_headroom(options: argparse.Namespace) -> None:
    """Print p50, p99 and max as a Markdown table: in yardsticks on random cases, or in budgets of a run."""
    if options.folder is not None:
        headroom_of_run(Path(options.folder), options.impl)
        return
    import torch  # noqa: PLC0415

    from conformance import builtin_variants as _builtin  # noqa: F401, PLC0415
    from conformance.headroom import survey  # noqa: PLC0415
    from conformance.inputs import DTYPES  # noqa: PLC0415
    from conformance.options import implementations  # noqa: PLC0415
    from conformance.session import find  # noqa: PLC0415
    from conformance.subject import Subject  # noqa: PLC0415

    torch.set_num_threads(1)
    subjects = [Subject(find(name)) for name in implementations(options.impl)]
    print("| question | dtype | implementation | cases | p50 | p99 | max |\n|---|---|---|---|---|---|---|")  # noqa: T201
    with torch.no_grad():
        for row in survey(subjects, tuple(DTYPES), options.cases, options.seed):
            print(f"| {' | '.join(row)} |", flush=True)  # noqa: T201


def headroom_of_run(folder: Path, implementations: list[str]) -> None:
    """Print what a run says about headroom, and the case that came closest to the line."""
    from conformance.headroom import closest, spread, used  # noqa: PLC0415

    _, records, _ = results_of(folder)
    records = used(r for r in records if not implementations or r.implementation in implementations)
    print("| requirement | dtype | records | p50 | p99 | max |\n|---|---|---|---|---|---|")  # noqa: T201
    for row in spread(records):
        print(f"| {' | '.join(row)} |")  # noqa: T201
    print(f"\n{closest(records)}")  # noqa: T201
