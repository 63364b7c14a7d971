"""The kill matrix, fault × requirement, and what it says of the suites."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from conformance.faults import Fault
from conformance.power.judge import PROFILES, Cell, Fate
from conformance.power.places import COMPARISONS, component_of
from conformance.power.workers import PLAIN
from conformance.report.words import count, number
from conformance.requirements_page import NEEDS_A_CHECKPOINT

QUICK_KILLS = 0.95  # of the faults that show: the covering lists alone are to notice that share
MAY_BE_EQUIVALENT = 0.10  # of all faults: more would be an excuse


@dataclass(kw_only=True)
class Matrix:
    """Every cell that was judged.

    Args:
        faults: the rows.
        requirements: the columns, in the order of the spec.
        whole: whether the rows are all there are, so that requirements without a fault can be told.
        cells: by fault and requirement; what is absent was not run.
    """

    faults: Sequence[Fault]
    requirements: Sequence[str]
    whole: bool = True
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)

    def take(self, cell: Cell) -> None:
        """Keep a cell."""
        self.cells[cell.fault, cell.requirement] = cell

    def at(self, fault: Fault, requirement: str) -> Cell:
        """The cell of a fault and a requirement."""
        absent = Cell(fault=fault.name, requirement=requirement, fate=Fate.NOT_RUN)
        return self.cells.get((fault.name, requirement), absent)

    def declared(self, fault: Fault) -> Cell:
        """The cell on which a fault must fall."""
        return self.at(fault, fault.requirement)

    @property
    def shown(self) -> list[Fault]:
        """The faults that are not called equivalent."""
        return [f for f in self.faults if not f.equivalent]

    @property
    def alive(self) -> set[str]:
        """The requirements on which a fault that declares them falls."""
        return {f.requirement for f in self.faults if self.declared(f).fate is Fate.KILLED}

    def problems(self) -> list[str]:
        """What must not be, one sentence each; empty where the suites have the power they claim."""
        found = [text for fault in self.faults if (text := self._problem(fault))]
        if not self.whole:
            return found
        having = {f.requirement for f in self.faults} | NEEDS_A_CHECKPOINT
        found += [f"{r} has no fault: seed one that it notices" for r in self.requirements if r not in having]
        killed = [self.declared(f) for f in self.shown if self.declared(f).fate is Fate.KILLED]
        quick = sum(cell.needs == PROFILES[0] for cell in killed)
        if quick < QUICK_KILLS * len(killed):
            found.append(
                f"the quick profile kills {quick} of {len(killed)}, expected at least {QUICK_KILLS:.0%}: "
                "put their cases into the covering lists"
            )
        equivalent = len(self.faults) - len(self.shown)
        if equivalent > MAY_BE_EQUIVALENT * len(self.faults):
            found.append(f"{equivalent} of {len(self.faults)} are called equivalent, expected at most 10%")
        return found

    def _problem(self, fault: Fault) -> str:
        cell = self.declared(fault)
        if cell.fate is Fate.ERROR:
            return f"{fault.name} ends in an error on {fault.requirement}, which is no kill: {cell.reason}"
        if fault.equivalent and cell.fate is Fate.KILLED:
            return f"{fault.name} is called equivalent, but {fault.requirement} kills it on {cell.case}"
        if not fault.equivalent and cell.fate is Fate.SURVIVED:
            return (
                f"{fault.name} survives {fault.requirement}: "
                "a hole in its checks, or equivalent, which a fault may say"
            )
        return ""

    def line(self, fault: Fault) -> str:
        """A fault in words: what became of it on its requirement, how far from the line, and on what case."""
        cell, plain = self.declared(fault), self.at(fault, PLAIN)
        stands = cell.measure if cell.headroom is None else f"headroom {number(cell.headroom, line=True)}"
        told = [f"{fault.name}: {cell.fate} on {fault.requirement}", stands, cell.case]
        if plain.requirement != fault.requirement:
            told.append(f"{plain.fate} on {PLAIN}")
        return ", ".join(filter(None, told))

    def sentence(self) -> str:
        """The matrix in one sentence."""
        fates = Counter(self.declared(f).fate for f in self.shown)
        told = [f"{fates[Fate.KILLED]} killed on their declared requirement"]
        words = {
            Fate.SURVIVED: ("survives", "survive"),
            Fate.ERROR: ("ends in an error", "end in an error"),
            Fate.NOT_RUN: ("not run", "not run"),
        }
        told += [count(fates[fate], *word) for fate, word in words.items() if fates[fate]]
        told.append(f"{len(self.faults) - len(self.shown)} equivalent")
        parts = [f"{count(len(self.faults), 'fault')}: {', '.join(told)}"]
        if self.whole:
            live = [r for r in self.requirements if r not in NEEDS_A_CHECKPOINT]
            spared = sorted(NEEDS_A_CHECKPOINT.intersection(self.requirements))
            without = f" ({', '.join(spared)} needs a checkpoint)" if spared else ""
            parts.append(f"{len(self.alive)} of {len(live)} requirements alive{without}")
        plain = [fate for f in self.shown if (fate := self.at(f, PLAIN).fate) is not Fate.NOT_RUN]
        if plain:
            parts.append(
                f"a plain float32 comparison of logits sees {plain.count(Fate.KILLED)} of {len(plain)}"
            )
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; the schema is in reports/README.md."""
        return {
            "sentence": self.sentence(),
            "problems": self.problems(),
            "requirements": list(self.requirements),
            "plain": PLAIN,
            "faults": [self._row(fault) for fault in self.faults],
        }

    def _row(self, fault: Fault) -> dict[str, Any]:
        cell = self.declared(fault)
        traced = [place for r in COMPARISONS if (place := self.at(fault, r).place)]
        return {
            "fault": fault.name,
            "component": fault.component,
            "requirement": fault.requirement,
            "source": fault.source,
            "equivalent": fault.equivalent,
            "equivalent_on": fault.equivalent_on,
            "fate": str(cell.fate),
            "needs": cell.needs,
            "check": cell.check,
            "measure": cell.measure,
            "headroom": cell.headroom if cell.headroom is not None and math.isfinite(cell.headroom) else None,
            "case": cell.case,
            "reason": cell.reason,
            "sits_in": component_of(fault),
            "located": dataclasses.asdict(traced[0]) if traced else None,
            "cells": {r: str(c.fate) for r in self.requirements if (c := self.cells.get((fault.name, r)))},
        }
