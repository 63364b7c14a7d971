"""python -m conformance trace: every step of one pass, with what it inherits and what it adds."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    """The command's options."""
    command = commands.add_parser(
        "trace", help="show every step of a forward pass, and the first that is wrong"
    )
    command.add_argument("--impl", required=True, help="implementation, as pytest suites/ --impl takes it")
    command.add_argument("--variant", default="llama-3.1-8b", help="variant (default: llama-3.1-8b)")
    command.add_argument("--shape", default="gqa", help="small config of the variant (default: gqa)")
    command.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16")
    command.add_argument("--regime", default="loud", help="weights: loud, quiet or outlier")
    command.add_argument(
        "--tokens", type=int, help="tokens of each sequence (default: 65; 64 of a checkpoint)"
    )
    command.add_argument("--seed", type=int, default=0, help="of weights and tokens")
    command.add_argument("--case", help="a case as a failure prints it, in place of the options above")
    command.add_argument("--checkpoint", help="trace a trained checkpoint: smollm2, a folder or a GGUF file")
    command.add_argument("--device", default="cpu", help="where the implementation computes")


def run(options: argparse.Namespace) -> int:
    """Print the table and what it says; 1 where a step is over its budget.

    Raises:
        ValueError: an unknown name, a malformed case, or an implementation that shows no taps.
    """
    import torch  # noqa: PLC0415 - the lists of other commands need none

    from conformance import builtin_variants as _builtin  # noqa: F401, PLC0415
    from conformance.implementations.base import Unsupported  # noqa: PLC0415
    from conformance.options import implementations  # noqa: PLC0415
    from conformance.report.traces import conclusion, lines  # noqa: PLC0415
    from conformance.session import find  # noqa: PLC0415
    from conformance.subject import Subject  # noqa: PLC0415

    torch.set_num_threads(1)
    worst = 0
    for name in implementations([options.impl]):
        subject = Subject(find(name), options.device)
        try:
            what, found = _traced(subject, options)
        except Unsupported as unsupported:
            raise ValueError(
                f"{name}: {unsupported}; offer model.taps or a table TAPS (docs/your-own.md)"
            ) from None
        print(f"{name}, {what}\n")  # noqa: T201
        print("\n".join(lines(found.rows)))  # noqa: T201
        print(f"\n{conclusion(found)}")  # noqa: T201
        worst |= found.first is not None
    return worst


def _traced(subject: Any, options: argparse.Namespace) -> tuple[str, Any]:
    from conformance.case_spec import parse_case  # noqa: PLC0415
    from conformance.cases import ModelCase  # noqa: PLC0415
    from conformance.checkpoint_trace import trace_checkpoint  # noqa: PLC0415
    from conformance.tracing import trace  # noqa: PLC0415

    if options.checkpoint:
        tokens = options.tokens or 64
        found = trace_checkpoint(subject, options.checkpoint, options.dtype, tokens)
        return f"checkpoint {options.checkpoint}, {options.dtype}, {tokens} tokens", found
    spec = options.case or ModelCase(
        variant=options.variant,
        shape=options.shape,
        dtype=options.dtype,
        regime=options.regime,
        tokens=options.tokens or 65,
        seed=options.seed,
    )
    case = parse_case(spec if isinstance(spec, str) else spec.spec)
    if not isinstance(case, ModelCase):
        raise ValueError(f"{case.spec} is no case of a model, expected ModelCase(…)")  # noqa: TRY004
    return case.spec, trace(subject, case)
