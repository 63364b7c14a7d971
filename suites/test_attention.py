"""ATTN: grouped-query attention, alone and in a layer with its projections."""

from dataclasses import replace

import torch

from conformance import (
    AttentionCase,
    CompiledAttentionCase,
    LongAttentionCase,
    ModelCase,
    Unsupported,
    agree,
    answers,
    asks,
    check,
    exact,
    judge,
    strategies,
    unchanged,
    without_memory,
    worst_of,
)


def group_cases(selection):
    """Two and more groups of two and more heads, where tiling and repeating differ."""
    for dtype in selection.dtypes:
        yield from (AttentionCase(dtype=dtype, heads=6, kv_heads=g) for g in (2, 3, 6, 1))
        yield AttentionCase(dtype=dtype, heads=8, kv_heads=4, batch=1)
        yield AttentionCase(dtype=dtype, past=7, tokens=5, batch=3)
        yield AttentionCase(dtype=dtype, past=64, tokens=1)
        yield AttentionCase(dtype=dtype, tokens=65, gain=8.0)
        yield AttentionCase(dtype=dtype, head_dim=96, tokens=3, past=4)
        yield from (AttentionCase(dtype=dtype, head_dim=d, batch=1) for d in (64, 128))  # released widths
        yield AttentionCase(dtype=dtype, gain=60.0, batch=1)  # scores whose powers overflow float32


@check("ATTN-1", cases=group_cases, draws=strategies.attentions)
def test_query_head_h_uses_kv_head_h_over_the_group_size(subject, case):
    return judge(asks.attention_core(subject, case), answers.attention_core, case)


def few_groups(selection):
    for dtype in selection.dtypes:
        yield from (AttentionCase(dtype=dtype, heads=6, kv_heads=g) for g in (2, 3))


@check("ATTN-1", cases=few_groups, draws=strategies.attentions)
def test_kv_heads_may_change_places_with_their_groups(subject, case):
    """A law without an oracle: groups in another order, the same results in that order."""
    q, k, v = (subject.on_device(t) for t in case.inputs())
    order = torch.arange(case.kv_heads).roll(1)
    size = case.heads // case.kv_heads
    queries = (order[:, None] * size + torch.arange(size)).flatten()
    core, mask, scale = core_of(subject, case)
    here = core(q, k, v, mask, scale)[:, queries]
    moved = core(q[:, queries], k[:, order], v[:, order], mask, scale)
    return agree(moved, here, answers.attention_core, case)


def core_of(subject, case):
    mask = subject.on_device(answers.causal(case))
    return subject.implementation.attention_core, mask, case.head_dim**-0.5


@check("ATTN-4", cases=few_groups, draws=strategies.attentions)
def test_groups_are_multi_head_attention_with_the_kv_heads_repeated(subject, case):
    """A law without an oracle: every query head with a kv head of its own, a copy of its group's."""
    q, k, v = (subject.on_device(t) for t in case.inputs())
    core, mask, scale = core_of(subject, case)
    size = case.heads // case.kv_heads
    expanded = core(q, k.repeat_interleave(size, 1), v.repeat_interleave(size, 1), mask, scale)
    return agree(core(q, k, v, mask, scale), expanded, answers.attention_core, case)


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
    return judge(asks.attention_core(subject, case), answers.attention_core, case)


# Lengths around the tiles of kernels.
TILES = (31, 32, 33, 63, 64, 65, 127, 128, 129)


def tile_cases(selection):
    """A step on so many keys, a chunk behind others, and a whole sequence; single rows, and several."""
    for dtype in selection.dtypes:
        for i, n in enumerate(TILES):
            yield AttentionCase(dtype=dtype, tokens=1, past=n - 1, batch=1 + i % 3)
            yield AttentionCase(dtype=dtype, tokens=n, batch=3 - i % 3, kv_heads=3)
        yield from (AttentionCase(dtype=dtype, tokens=17, past=n - 17, batch=2) for n in (33, 64, 127))
        yield from (AttentionCase(dtype=dtype, tokens=1, past=n, batch=7) for n in (37, 69))


@check("ATTN-10", cases=tile_cases, draws=strategies.attentions)
def test_lengths_around_the_tiles_of_kernels_are_as_others(subject, case):
    return judge(asks.attention_core(subject, case), answers.attention_core, case)


LAYOUTS = ("transposed", "sliced", "expanded")


def layout_cases(selection):
    """Also one past a tile, and step by step, where kernels take shortcuts."""
    for dtype in selection.dtypes:
        for layout in LAYOUTS:
            for tokens, past in ((17, 0), (33, 0), (1, 32), (5, 60)):
                yield AttentionCase(dtype=dtype, tokens=tokens, past=past, batch=3, layout=layout)


@check("ATTN-10", cases=layout_cases, draws=lambda s: strategies.attentions(s, LAYOUTS))
def test_q_k_and_v_may_be_views_in_any_order_of_memory(subject, case):
    return judge(asks.attention_core(subject, case), answers.attention_core, case)


def long_cases(selection):
    """4096 tokens of one head in float32; more heads, in every dtype, where there is time."""
    if "float32" in selection.dtypes:
        yield LongAttentionCase(heads=1)
    if selection.profile == "thorough":
        yield from (LongAttentionCase(dtype=dtype) for dtype in selection.dtypes)


@check("ATTN-10", cases=long_cases)
def test_four_thousand_tokens_are_as_few(subject, case):
    return judge(asks.long_attention(subject, case), answers.long_attention, case)


def backend_cases(selection):
    for dtype in selection.dtypes:
        yield AttentionCase(dtype=dtype)
        yield AttentionCase(dtype=dtype, past=7, tokens=5, batch=3, kv_heads=3)
        yield AttentionCase(dtype=dtype, tokens=65, gain=8.0)
        yield AttentionCase(dtype=dtype, tokens=1, past=64, kv_heads=1)
    if selection.profile == "thorough" and "float32" in selection.dtypes:
        yield from (CompiledAttentionCase(tokens=t, past=p, batch=2) for t, p in ((128, 0), (33, 95)))


@check("ATTN-7", cases=backend_cases, draws=strategies.attentions)
def test_every_backend_gives_the_same(subject, case):
    """Those that are compiled for each shape in the thorough profile alone, on two shapes."""
    if isinstance(case, CompiledAttentionCase):
        return judge(asks.compiled_attention(subject, case), answers.attention_core, case)
    cores = subject.implementation.attention_cores()
    if len(cores) < 2:
        raise Unsupported(f"offers one attention backend alone: {', '.join(cores) or 'none'}")
    given = [subject.on_device(t) for t in (*case.inputs(), answers.causal(case))]
    results = {name: core(*given, case.head_dim**-0.5) for name, core in cores.items()}
    verdicts = {name: judge(y, answers.attention_core, case) for name, y in results.items()}
    worst = worst_of(*verdicts.values())
    wrong = [
        f"{name}: {v.reason or f'headroom {v.headroom:.3g}'}" for name, v in verdicts.items() if not v.passed
    ]
    return replace(worst, reason="; ".join(wrong), facts={"attention backends": ", ".join(cores)})


@check("ATTN-12", cases=few_groups, draws=strategies.attentions)
def test_attention_leaves_q_k_v_and_the_mask_as_they_were(subject, case):
    core, mask, scale = core_of(subject, case)
    q, k, v = (subject.on_device(t) for t in case.inputs())
    return unchanged(lambda q, k, v, mask: core(q, k, v, mask, scale), q=q, k=k, v=v, mask=mask)


@check("ATTN-11", cases=few_groups)
def test_attention_has_no_memory(subject, case):
    """The same case first, and last, after others of the same shape, longer, and of another dtype."""
    return without_memory(
        lambda c: asks.attention_core(subject, c),
        answers.attention_core,
        case,
        replace(case, dtype="float32" if case.dtype == "bfloat16" else "bfloat16"),
        replace(case, seed=case.seed + 1),
        replace(case, tokens=65, past=7),
    )


# In a layer.


def module_cases(**fields):
    def cases(selection):
        for dtype in selection.dtypes:
            for variant, shape in selection.smalls():
                yield ModelCase(dtype=dtype, variant=variant, shape=shape, tokens=17, **fields)

    return cases


# All tokens at position 0, where rotation is the identity and cannot be to blame.
unrotated_cases = module_cases(places="origin")


@check("ATTN-2", cases=unrotated_cases, draws=lambda s: strategies.models(s, places=("origin",)))
def test_scores_are_scaled_by_the_root_of_the_head_width_once(subject, case):
    return judge(asks.attention_module(subject, case), answers.attention_module, case)


def wide_cases(selection):
    configs = {case: case.config for case in unrotated_cases(selection)}
    return [case for case, c in configs.items() if c.num_attention_heads * c.head_dim != c.hidden_size]


@check("ATTN-5", cases=wide_cases)
def test_heads_times_width_need_not_be_the_hidden_size(subject, case):
    return judge(asks.attention_module(subject, case), answers.attention_module, case)


def few_models(**fields):
    def cases(selection):
        for dtype in selection.dtypes:
            for variant, shape in selection.few():
                yield ModelCase(dtype=dtype, variant=variant, shape=shape, tokens=17, batch=2, **fields)

    return cases


def moved(case, weights):
    """The same function: kv heads in another order, each with its queries and their columns of the output."""
    order = torch.arange(case.config.num_key_value_heads).roll(1)

    def by_groups(weight, axis):
        return weight.unflatten(axis, (len(order), -1)).index_select(axis, order).flatten(axis, axis + 1)

    return {
        name: by_groups(w, 1)
        if "o_proj" in name
        else by_groups(w, 0)
        if any(part in name for part in ("q_proj", "k_proj", "v_proj"))
        else w
        for name, w in weights.items()
    }


def built_on(subject, config, weights):
    return subject.implementation.build(config, {n: subject.on_device(w) for n, w in weights.items()})


@check("ATTN-1", cases=few_models(), draws=strategies.models)
def test_a_model_with_its_kv_groups_in_another_order_gives_the_same_logits(subject, case):
    """A law without an oracle, for who offers logits alone."""
    model = built_on(subject, case.config, moved(case, case.weights()))
    return agree(asks.logits_of(model, subject, case), asks.logits(subject, case), answers.logits, case)


def expanded(case, weights):
    """A model in which every query head has a kv head of its own, and its weights."""
    config = case.config
    size, width = config.group_size, config.head_dim
    own = replace(case, but=(*case.but, ("num_key_value_heads", config.num_attention_heads)))
    repeated = {
        name: w.unflatten(0, (-1, width)).repeat_interleave(size, 0).flatten(0, 1)
        for name, w in weights.items()
        if "k_proj" in name or "v_proj" in name
    }
    return own.config, {**weights, **repeated}


@check("ATTN-4", cases=few_models(), draws=strategies.models)
def test_a_model_with_its_kv_heads_repeated_gives_the_same_logits(subject, case):
    model = built_on(subject, *expanded(case, case.weights()))
    return agree(asks.logits_of(model, subject, case), asks.logits(subject, case), answers.logits, case)


BIASED = (("attention_bias", True),)


@check("ATTN-6", cases=few_models(but=BIASED), draws=lambda s: strategies.models(s, but=(BIASED,)))
def test_q_k_v_and_o_add_their_biases(subject, case):
    y, answer = asks.attention(subject, case)
    return judge(y, answer, case)


@check("ATTN-11", cases=few_models())
def test_the_same_input_gives_the_same_bits(subject, case):
    """Whatever the generator of the process holds: dropout would draw from it."""
    torch.manual_seed(1)
    before = asks.logits(subject, case).clone()
    torch.manual_seed(2)
    same = torch.equal(before, asks.logits(subject, case))
    return exact(same, "the same bits", "two passes over the same tokens differ")


@check("ATTN-12", cases=few_models(), draws=strategies.models)
def test_a_layer_leaves_its_input_as_it_was(subject, case):
    x, positions = (subject.on_device(t) for t in (case.hidden(), case.positions()))
    model = subject.model(case)
    return unchanged(
        lambda x, positions: model.attention_module(x, positions, case.layer), x=x, positions=positions
    )


@check("ATTN-12", cases=few_models())
def test_a_whole_layer_leaves_its_input_as_it_was(subject, case):
    x, positions = (subject.on_device(t) for t in (case.hidden(), case.positions()))
    model = subject.model(case)
    return unchanged(lambda x, positions: model.block(x, positions, case.layer), x=x, positions=positions)


@check("ATTN-12", cases=few_models())
def test_a_network_leaves_its_input_as_it_was(subject, case):
    x, model = subject.on_device(case.hidden()), subject.model(case)
    return unchanged(lambda x: model.mlp(x, case.layer), x=x)
