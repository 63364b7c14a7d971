"""REAL: a trained checkpoint on real text."""

from conformance import CHECKPOINT_DTYPES, explain_checkpoint, judge_checkpoint, proves, skipped

ABSENT = "no checkpoint asked for: add --checkpoint smollm2, a Hugging Face folder, or a GGUF file"


@proves("REAL-1")
def test_logits_and_greedy_tokens_on_real_text(subject, selection, checkpoint, keep_records, keep_checkpoint):
    """On the page it comes with perplexity and the error of every layer."""
    records = []
    for dtype in [
        d for d in CHECKPOINT_DTYPES if checkpoint and d in selection.dtypes and not selection.case
    ]:
        record, seen = judge_checkpoint(subject, checkpoint, dtype)
        records.append(explain_checkpoint(record, subject, checkpoint))
        if seen is not None:
            keep_checkpoint(seen)
    keep_records(records or [skipped("REAL-1", subject, ABSENT)])
