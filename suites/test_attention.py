"""ATTN and MASK: grouped-query attention, and what it may see."""

import torch

from conformance import AttentionCase, ModelCase, agree, answers, check, judge, strategies


def attend(subject, case):
    q, k, v = (subject.on_device(t) for t in case.inputs())
    mask = subject.on_device(answers.causal(case))
    return subject.implementation.attention_core(q, k, v, mask, case.head_dim**-0.5)


def group_cases(selection):
    """Two and more groups of two and more heads, where tiling and repeating differ."""
    for dtype in selection.dtypes:
        yield from (AttentionCase(dtype=dtype, heads=6, kv_heads=g) for g in (2, 3, 6, 1))
        yield AttentionCase(dtype=dtype, heads=8, kv_heads=4, batch=1)
        yield AttentionCase(dtype=dtype, past=7, tokens=5, batch=3)
        yield AttentionCase(dtype=dtype, past=64, tokens=1)
        yield AttentionCase(dtype=dtype, tokens=65, gain=8.0)


@check("ATTN-1", cases=group_cases, draws=strategies.attentions)
def test_query_head_h_uses_kv_head_h_over_the_group_size(subject, case):
    return judge(attend(subject, case), answers.attention_core, case)


def simplex_cases(selection):
    """v = 1 makes the output the sum of the weights; many keys show a 16-bit sum."""
    for dtype in selection.dtypes:
        yield from (
            AttentionCase(dtype=dtype, v_pattern="constant", tokens=t, past=p, gain=g, batch=1)
            for t, p, g in ((9, 0, 2.0), (65, 0, 0.1), (1, 2047, 0.1), (3, 1021, 10.0))
        )
        yield AttentionCase(dtype=dtype, tokens=1, past=2047, gain=0.5, batch=1)


@check("ATTN-3", cases=simplex_cases)
def test_weights_sum_to_one_also_over_many_keys(subject, case):
    return judge(attend(subject, case), answers.attention_core, case)


def module_cases(selection):
    for dtype in selection.dtypes:
        for variant, shape in selection.smalls():
            yield ModelCase(dtype=dtype, variant=variant, shape=shape, tokens=17)


def attention_module(subject, case):
    """All tokens at position 0, where rotation is the identity and cannot be to blame."""
    x = subject.on_device(case.hidden())
    positions = subject.on_device(torch.zeros(case.tokens, dtype=torch.int64))
    return subject.model(case).attention_module(x, positions, case.layer)


@check("ATTN-2", cases=module_cases, draws=strategies.models)
def test_scores_are_scaled_by_the_root_of_the_head_width_once(subject, case):
    return judge(attention_module(subject, case), answers.unrotated_attention_module, case)


def wide_cases(selection):
    configs = {case: case.config for case in module_cases(selection)}
    return [case for case, c in configs.items() if c.num_attention_heads * c.head_dim != c.hidden_size]


@check("ATTN-5", cases=wide_cases)
def test_heads_times_width_need_not_be_the_hidden_size(subject, case):
    return judge(attention_module(subject, case), answers.unrotated_attention_module, case)


def causal_cases(selection):
    for dtype in selection.dtypes:
        for variant, shape in selection.smalls():
            yield ModelCase(dtype=dtype, variant=variant, shape=shape, tokens=35, batch=2)


@check("MASK-1", cases=causal_cases, draws=strategies.models)
def test_changing_a_token_leaves_the_logits_before_it_unchanged(subject, case):
    model = subject.model(case)
    tokens = case.token_ids()
    at = case.tokens // 2
    changed = tokens.clone()
    changed[:, at:] = (changed[:, at:] + 1) % case.config.vocab_size
    before = model.logits(subject.on_device(tokens))[:, :at].clone()
    after = model.logits(subject.on_device(changed))[:, :at]
    return agree(after, before, answers.first_logits, case)
