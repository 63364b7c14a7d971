"""What the page shows of trained checkpoints: perplexity, greedy text, error per layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conformance.report import svg
from conformance.report.words import clipped, listed


def checkpoint_views(checkpoints: Sequence[Mapping[str, Any]], most: int) -> list[dict[str, Any]]:
    """Per checkpoint: its entries with their charts, and each greedy text once with who wrote it.

    Args:
        checkpoints: as in results.json (reports/README.md).
        most: characters of a greedy text that are shown.
    """
    found = []
    for name in dict.fromkeys(entry["checkpoint"] for entry in checkpoints):
        entries = [entry for entry in checkpoints if entry["checkpoint"] == name]
        texts: dict[str, list[str]] = {}
        for entry in entries:
            text = clipped(entry["greedy"], most)
            texts.setdefault(text, []).append(f"{entry['implementation']} {entry['dtype']}")
        # One axis per dtype, so that implementations can be compared by eye.
        axes = {
            dtype: svg.decades(entry["layers"] for entry in entries if entry["dtype"] == dtype)
            for dtype in {entry["dtype"] for entry in entries}
        }
        found.append(
            {
                "name": name,
                "entries": [_checkpoint(entry, axes[entry["dtype"]]) for entry in entries],
                "texts": [(text, listed(who)) for text, who in texts.items() if text],
            }
        )
    return found


def _checkpoint(entry: Mapping[str, Any], axis: tuple[float, float] | None) -> dict[str, Any]:
    worst: dict[int, Mapping[str, Any]] = {}
    for layer in entry["layers"]:
        known = worst.setdefault(layer["layer"], layer)
        if _size(layer) > _size(known):
            worst[layer["layer"]] = layer
    ours, oracle = entry["perplexity"], entry["oracle_perplexity"]
    change = (ours - oracle) / oracle if ours is not None and oracle else None
    label = f"{entry['implementation']}, {entry['dtype']}"
    return {
        **entry,
        "label": label,
        "change": change,
        "layers": list(worst.values()),
        "taps": len(entry["layers"]) > len(worst),
        "worst": max(worst.values(), key=_size, default=None),
        "chart": svg.layers(label, entry["layers"], axis),
    }


def _size(layer: Mapping[str, Any]) -> float:
    """How bad a layer is; no finite error is the worst of all."""
    if layer["error"] is None:
        return float("inf")
    return float(layer["headroom"] or 0.0)
