"""Histories of KV caches: played on an implementation event by event, every logit judged by one pass."""

from conformance.histories.draws import any_history, sliding_history
from conformance.histories.player import played

__all__ = ["any_history", "played", "sliding_history"]
