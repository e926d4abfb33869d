"""grpo.py: the formulas by hand, rows with a shared prompt against separate rows, and the story of
gradients that are not finite."""

import copy
import doctest
import math

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

import grpo
from grpo import Group, Policy, group_advantages, grpo_loss, micro_batches
from model import Config, Qwen2, Sample

# ---------------------------------------------------------------- formulas


@pytest.mark.parametrize(
    ("rewards", "want"),
    [
        ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0]),
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
        ([1.0], [0.0]),
        ([1.0, 0.0], [0.7071, -0.7071]),
        ([3.0, 1.0, 2.0], [1.0, -1.0, 0.0]),
        ([0.1] * 7, [0.0] * 7),  # the float mean of seven times 0.1 is not 0.1
    ],
)
def test_advantages_use_the_sample_deviation_and_are_zero_without_spread(rewards, want):
    found = group_advantages([rewards])
    assert found.dtype == torch.float32
    assert found[0].tolist() == pytest.approx(want, abs=1e-4)
    assert want[0] or not found.any()


def test_two_candidates_of_one_question_are_two_groups():
    assert not group_advantages([[1.0, 1.0], [0.0, 0.0]]).any()


def loss_of(log_ratio, advantage, **changes):
    logp, mask = torch.tensor([[log_ratio]]), torch.ones(1, 1)
    loss, _ = grpo_loss(logp, torch.zeros(1, 1), logp, torch.tensor([advantage]), mask, **changes)
    return loss.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "want"),
    [
        (1.0, 2.0, -2.0),
        (1.1, 1.0, -1.1),
        (1.5, 1.0, -1.28),  # a gain is capped at 1.28
        (0.5, 1.0, -0.5),
        (0.9, -1.0, 0.9),
        (0.5, -1.0, 0.8),
        (1.5, -1.0, 1.5),
        (9.0, -1.0, 9.0),
        (30.0, -1.0, 10.0),  # a loss at 10 times
        (30.0, -0.5, 5.0),
        (30.0, 0.0, 0.0),
    ],
)
def test_dual_clip_by_hand(ratio, advantage, want):
    assert loss_of(math.log(ratio), advantage) == pytest.approx(want, rel=1e-5)


def test_kl_is_k3_by_hand_and_bounded():
    logp, ref = torch.tensor([[-1.0, -1.0, -50.0]]), torch.tensor([[-1.5, -0.5, -1.0]])
    loss, stats = grpo_loss(logp, logp, ref, torch.zeros(1), torch.ones(1, 3), kl_coef=0.5)
    want = (math.exp(-0.5) - 0.5) + (math.exp(0.5) - 1.5) + 10.0
    assert stats["kl"].item() == pytest.approx(want / 3, rel=1e-5)
    assert loss.item() == pytest.approx(want / 6, rel=1e-5)


def test_extreme_log_ratios_stay_finite_with_finite_gradients():
    logp = torch.tensor([[500.0, -500.0]], requires_grad=True)
    zeros = torch.zeros(1, 2)
    loss, stats = grpo_loss(logp, zeros, zeros, torch.tensor([1.0]), torch.ones(1, 2))
    loss.backward()
    assert loss.isfinite() and logp.grad.isfinite().all()
    assert stats["ratio_max"].item() == pytest.approx(math.exp(20))


def test_gradient_equals_autograd_of_the_formula_written_out():
    torch.manual_seed(0)
    logp = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    old, ref = logp.detach() + 0.4 * torch.randn(4, 5), logp.detach() + 0.3 * torch.randn(4, 5)
    advantages = torch.tensor([1.0, -2.0, 0.5, -0.1], dtype=torch.float64)
    mask = torch.rand(4, 5) < 0.8
    loss, stats = grpo_loss(logp, old, ref, advantages, mask, kl_coef=0.1)
    (found,) = torch.autograd.grad(loss, logp)
    total, clipped = 0.0, 0
    for i in range(4):
        for j in range(5):
            if mask[i, j]:
                ratio, a = (logp[i, j] - old[i, j]).exp(), advantages[i]
                gap = ref[i, j] - logp[i, j]
                term = max(-ratio * a, -min(max(ratio, 0.8), 1.28) * a)
                clipped += bool(term > -ratio * a)
                term = min(term, -10 * a) if a < 0 else term
                total = total + term + 0.1 * (gap.exp() - gap - 1)
    (want,) = torch.autograd.grad(total / mask.sum(), logp)
    assert torch.allclose(found, want, atol=1e-9)
    assert stats["clip_fraction"].item() == pytest.approx(clipped / mask.sum().item()) and clipped


def test_dead_tokens_may_hold_anything_and_no_tokens_cost_nothing():
    logp = torch.tensor([[-1.0, torch.nan], [-2.0, torch.inf]], requires_grad=True)
    mask = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    loss, _ = grpo_loss(logp, logp.detach(), logp.detach(), torch.tensor([1.0, 3.0]), mask)
    loss.backward()
    assert loss.item() == -2.0 and logp.grad.tolist() == [[-0.5, 0.0], [-1.5, 0.0]]
    loss, stats = grpo_loss(logp, logp.detach(), logp.detach(), torch.ones(2), torch.zeros(2, 2))
    assert loss.item() == 0.0 and all(float(value) == 0.0 for value in stats.values())


def test_parts_of_a_minibatch_add_up_to_its_token_mean():
    """Averaging each part over its own tokens would weigh a token of a short part more."""
    torch.manual_seed(0)
    logp, old, ref = torch.randn(3, 6), torch.randn(3, 6), torch.randn(3, 6)
    advantages, mask = torch.randn(3), torch.arange(6) < torch.tensor([[6], [1], [3]])
    whole, stats = grpo_loss(logp, old, ref, advantages, mask)
    cuts = [slice(i, i + 1) for i in range(3)]
    parts = [
        grpo_loss(logp[c], old[c], ref[c], advantages[c], mask[c], total_tokens=10) for c in cuts
    ]
    assert sum(loss for loss, _ in parts).item() == pytest.approx(whole.item(), rel=1e-5)
    assert sum(s["kl"] for _, s in parts).item() == pytest.approx(stats["kl"].item(), rel=1e-5)


# ---------------------------------------------------------------- rows with a shared prompt


def tiny(seed=0, **changes):
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.3,
        "tie_word_embeddings": True,
    }
    return Qwen2(Config(**sizes | changes))


def minibatch(seed=0, shapes=((5, (3, 1, 7)), (9, (4, 4)), (1, (1, 1)), (20, (12,)))):
    """Groups of random ids: (prompt length, reply lengths) each."""
    generator = torch.Generator().manual_seed(seed)

    def ids(n):
        return tuple(torch.randint(0, 90, (n,), generator=generator).tolist())

    groups = []
    for prompt, replies in shapes:
        samples = tuple(Sample(ids(r), (0.0,) * r, True) for r in replies)
        advantages = torch.randn(len(replies), generator=generator).tolist()
        groups.append(Group(ids(prompt), samples, tuple(advantages)))
    return groups


def reply_logprobs(model, prompt, reply, vocab_size=90, temperature=0.8):
    """(1, T) log-probs of a reply's tokens, by a row of its own and softmax over the whole row."""
    logits = model(torch.tensor([prompt + reply]))[:, len(prompt) - 1 : -1, :vocab_size]
    logprobs = (logits / temperature).log_softmax(-1)
    return logprobs.gather(2, torch.tensor(reply)[None, :, None])[..., 0]


def separate_rows(model, reference, groups, old=None, kl_coef=0.3):
    """The loss with a row for every reply, by plain autograd. Returns loss and log-probs."""
    replies = [
        (group.prompt, sample.ids, advantage)
        for group in groups
        for sample, advantage in zip(group.samples, group.advantages, strict=True)
    ]
    tokens, loss, found = sum(len(ids) for _, ids, _ in replies), 0.0, []
    for i, (prompt, ids, advantage) in enumerate(replies):
        logp = reply_logprobs(model, prompt, ids)
        ref = reply_logprobs(reference, prompt, ids).detach()
        before = logp.detach() if old is None else old[i]
        rest = (ref, torch.tensor([advantage]), torch.ones_like(logp))
        loss = loss + grpo_loss(logp, before, *rest, kl_coef=kl_coef, total_tokens=tokens)[0]
        found.append(logp.detach())
    return loss, found


def keep_gradients(policy):
    """A list that gets the gradients of every optimiser step."""
    seen, step = [], policy.optimizer.step

    def keep():
        seen.append([m.grad.clone() for m in policy.masters])
        step()

    policy.optimizer.step = keep
    return seen


def policy_on(model, reference=None, **changes):
    """A Policy whose gradients stay readable: `seen` holds those of every optimiser step, which
    changes no weight."""
    settings = {"lr": 1e-3, "steps": 100, "vocab_size": 90, "temperature": 0.8, "kl_coef": 0.3}
    policy = Policy(model, reference=reference, **settings | {"max_grad_norm": 0.0} | changes)
    policy.seen = []
    policy.optimizer.step = lambda: policy.seen.append([m.grad.clone() for m in policy.masters])
    return policy


def worst(found, want):
    """The largest difference of two tensors in the same place, over the norm of the second."""
    pairs = zip(found, want, strict=True)
    return max(((a - b).norm() / b.norm().clamp(min=1e-9)).item() for a, b in pairs)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("micro_tokens", [16384, 40, 1])
def test_shared_prompts_have_the_gradients_of_separate_rows(tied, micro_tokens):
    model, reference = tiny(tie_word_embeddings=tied), tiny(1, tie_word_embeddings=tied)
    groups = minibatch()
    policy = policy_on(model, reference, micro_tokens=micro_tokens)
    (stats,) = policy.step([groups])
    loss, _ = separate_rows(model, reference, groups)
    want = torch.autograd.grad(loss, list(model.parameters()))
    assert worst(policy.seen[0], want) < 1e-5
    assert stats.loss == pytest.approx(loss.item(), rel=1e-5) and stats.tokens == 33
    norm = torch.stack([g.norm() for g in want]).norm().item()
    assert stats.grad_norm == pytest.approx(norm, rel=1e-4)


def test_the_result_does_not_depend_on_how_the_minibatch_is_cut():
    """The second minibatch too, whose ratios are not 1: some of its tokens are clipped."""
    runs = []
    for micro_tokens in (16384, 60, 25, 1):
        settings = {"lr": 3e-3, "steps": 20, "warmup": 0, "kl_coef": 0.3, "max_grad_norm": 0.0}
        policy = Policy(tiny(), reference=tiny(1), micro_tokens=micro_tokens, **settings)
        parts = [len(micro_batches(minibatch(seed), micro_tokens)) for seed in (0, 5)]
        seen = keep_gradients(policy)
        runs.append((parts, policy.step([minibatch(0), minibatch(5)]), seen))
    assert [parts for parts, _, _ in runs] == [[1, 1], [2, 2], [3, 3], [8, 8]]
    _, want, gradients = runs[0]
    assert 0 < want[1].clip_fraction < 1 and want[1].kl > 0
    for _, found, seen in runs[1:]:
        for i in range(2):
            for name in ("loss", "kl", "clip_fraction", "grad_norm"):
                number = getattr(want[i], name)
                assert getattr(found[i], name) == pytest.approx(number, rel=1e-3, abs=1e-6), name
        assert worst(seen[0], gradients[0]) < 1e-5 and worst(seen[1], gradients[1]) < 1e-3


def test_old_is_the_log_prob_before_the_first_minibatch():
    """The second minibatch must see how far the first has moved the weights."""
    model, reference, first, second = tiny(), tiny(1), minibatch(0), minibatch(5)
    _, old = separate_rows(model, reference, second)
    settings = {"vocab_size": 90, "temperature": 0.8, "kl_coef": 0.3, "reference": reference}
    policy = Policy(model, lr=0.01, steps=10, warmup=0, **settings)
    models, update = [], policy.update
    policy.update = lambda parts: (models.append(copy.deepcopy(model)), update(parts))[1]
    stats = policy.step([first, second])
    loss, _ = separate_rows(models[1], reference, second, old)
    blind, _ = separate_rows(models[1], reference, second)
    assert stats[1].loss == pytest.approx(loss.item(), rel=1e-4)
    assert abs(loss.item() - blind.item()) > 0.01
    assert stats[0].clip_fraction == 0.0 and stats[1].clip_fraction > 0.0


def test_the_first_minibatch_needs_one_forward_pass(monkeypatch):
    calls, hidden = [], Qwen2.hidden

    def counted(self, *arguments):
        calls.append(torch.is_grad_enabled())
        return hidden(self, *arguments)

    monkeypatch.setattr(Qwen2, "hidden", counted)
    Policy(tiny(), lr=1e-3, steps=20, kl_coef=0.0).step([minibatch()])
    assert calls == [True]
    Policy(tiny(), lr=1e-3, steps=20).step([minibatch(0), minibatch(1)])
    # reference, old and reference, then the two updates
    assert calls[1:] == [False, False, False, True, True]


def test_micro_batches_hold_every_reply_once_within_the_budget():
    lengths = [tuple(1 + (7 * i + j) % 23 for j in range(6)) for i in range(12)]
    groups = minibatch(shapes=[(3 + i % 5, replies) for i, replies in enumerate(lengths)])
    parts = micro_batches(groups, 120)
    sizes = [sum(map(sum, grpo.lay_out(part).lengths)) for part in parts]
    assert max(sizes) <= 120 and len(parts) > 5 and sum(sizes) > 0.8 * 120 * len(parts)

    def pairs(groups):
        return [
            (group.prompt, *pair)
            for group in groups
            for pair in zip(group.samples, group.advantages, strict=True)
        ]

    assert pairs(group for part in parts for group in part) == pairs(groups)


def test_groups_without_spread_keep_their_tokens():
    """Their KL counts, and their tokens do in the mean: the others' gradient is divided by all."""
    groups, flat = minibatch(shapes=((5, (6, 6)),)), minibatch(1, shapes=((5, (6, 6)),))
    flat = [Group(g.prompt, g.samples, (0.0, 0.0)) for g in flat]
    runs = []
    for batch in (groups, groups + flat):
        policy = policy_on(tiny(), kl_coef=0.0)
        (stats,) = policy.step([batch])
        runs.append((policy.seen[0], stats))
    assert [stats.tokens for _, stats in runs] == [12, 24]
    assert worst(runs[1][0], [g / 2 for g in runs[0][0]]) < 1e-5


def test_checkpointing_changes_no_gradient():
    seen = []
    for flag in (False, True):
        policy = policy_on(tiny(), checkpointing=flag)
        policy.step([minibatch()])
        seen.append(policy.seen[0])
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


# ---------------------------------------------------------------- memory, and waiting for a device


class Watch(TorchDispatchMode):
    """Sees every kernel, forward and backward: the largest tensor that one made, and all names."""

    def __init__(self):
        super().__init__()
        self.largest, self.names = 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        self.names.add(func.name())
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return out


def test_no_tensor_holds_the_logits_of_all_tokens(monkeypatch):
    monkeypatch.setattr(grpo, "CHUNK_NUMBERS", 4 * 2000)
    model = tiny(vocab_size=2000)
    policy = Policy(model, lr=1e-3, steps=20, vocab_size=2000)
    groups = minibatch(shapes=((30, (40,) * 6),))
    with Watch() as watch:
        policy.step([groups, groups])
    assert watch.largest <= model.head.numel() < 240 * 2000 / 3


def test_the_logits_of_a_chunk_are_not_kept_for_the_backward_pass(monkeypatch):
    """Chunks that all wait for the backward pass take the memory of one large tensor of logits."""
    monkeypatch.setattr(grpo, "CHUNK_NUMBERS", 4 * 2000)
    torch.manual_seed(0)
    states, head = torch.randn(240, 8, requires_grad=True), torch.randn(2000, 8, requires_grad=True)
    targets = torch.randint(0, 2000, (240,))
    kept: dict[int, int] = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        plain = (states @ head.T / 0.7).log_softmax(-1).gather(1, targets[:, None])[:, 0]
        assert sum(kept.values()) >= 240 * 2000  # so the hooks do see logits
        kept.clear()
        found = grpo.token_logprobs(states, head, targets, 0.7)
    assert sum(kept.values()) < 2 * head.numel()  # of 60 chunks none kept its 8,000 numbers
    assert torch.allclose(found, plain, atol=1e-5)
    weight = torch.randn(240)
    want = torch.autograd.grad((plain * weight).sum(), (states, head))
    assert worst(torch.autograd.grad((found * weight).sum(), (states, head)), want) < 1e-5


def test_chunks_do_not_change_the_result(monkeypatch):
    seen = []
    for numbers in (8_000_000, 97 * 5):
        monkeypatch.setattr(grpo, "CHUNK_NUMBERS", numbers)
        policy = policy_on(tiny(), tiny(1))
        policy.step([minibatch()])
        seen.append(policy.seen[0])
    assert worst(*seen) < 1e-5


def test_no_number_is_read_between_micro_batches(monkeypatch):
    """On a GPU the host would wait there for every part, and the next would find the GPU idle."""
    monkeypatch.setattr(grpo, "CHUNK_NUMBERS", 97 * 5)
    policy = Policy(tiny(), lr=1e-3, steps=20, micro_tokens=40, checkpointing=True)
    parts = policy.prepare(minibatch(), first=False)
    assert len(parts) > 1
    with Watch() as watch:
        policy.backward(parts, 33)
    reads = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "unique", "index.Tensor")
    assert not [name for name in watch.names if name.removeprefix("aten::").startswith(reads)]
    assert any("embedding_dense_backward" in name for name in watch.names)  # the backward pass too
    with Watch() as watch:
        torch.ones(2).sum().item()
        torch.ones(2)[torch.ones(2) > 0]
    assert {"aten::_local_scalar_dense", "aten::index.Tensor"} <= watch.names


# ---------------------------------------------------------------- steps


def frozen_copy(policy):
    moments = [
        state[name].clone()
        for state in policy.optimizer.state.values()
        for name in ("exp_avg", "exp_avg_sq")
    ]
    return [p.detach().clone() for p in [*policy.params, *policy.masters]] + moments


def equal(found, want):
    return all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_that_is_not_finite_is_skipped_and_harms_nothing(poison, dtype):
    """One number in one gradient of one micro-batch; the loss itself stays finite."""
    policy, other = (
        Policy(tiny(seed).to(dtype), lr=1e-2, steps=50, warmup=1, micro_tokens=40)
        for seed in (0, 1)
    )
    policy.step([minibatch()])
    before, seen = frozen_copy(policy), []

    def poisoned(gradient):
        seen.append(gradient.clone())
        if len(seen) == 1:
            gradient.view(-1)[1] = poison
        return gradient

    hook = policy.params[3].register_hook(poisoned)
    (skipped,) = policy.step([minibatch()])
    hook.remove()
    assert len(seen) > 1  # more micro-batches came after the poison
    assert skipped.skipped and not math.isfinite(skipped.grad_norm) and math.isfinite(skipped.loss)
    assert equal(frozen_copy(policy), before)
    assert (policy.skipped_in_a_row, policy.t) == (1, 2)
    assert not other.step([minibatch()])[0].skipped
    (after,) = policy.step([minibatch()])
    assert not after.skipped and policy.skipped_in_a_row == 0
    assert not torch.equal(before[0], policy.params[0])


def test_several_skipped_steps_in_a_row_stop_the_run():
    policy = Policy(tiny(), lr=1e-2, steps=50)
    with torch.no_grad():
        policy.model.model.layers[0].mlp.up_proj.weight[0, 0] = torch.inf
    stats = [policy.step([minibatch()])[0] for _ in range(4)]
    assert all(found.skipped for found in stats)
    with pytest.raises(FloatingPointError, match="5 times in a row"):
        policy.step([minibatch()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_that_broke_off_leaves_no_gradient_behind(dtype):
    """Out of memory, or Ctrl-C, after the first of two micro-batches."""
    broken, fresh = (policy_on(tiny().to(dtype), micro_tokens=40) for _ in range(2))
    logprobs, calls = broken.logprobs, []

    def breaks(*arguments):
        calls.append(torch.is_grad_enabled())
        if calls.count(True) == 2:
            raise KeyboardInterrupt
        return logprobs(*arguments)

    broken.logprobs = breaks
    with pytest.raises(KeyboardInterrupt):
        broken.step([minibatch()])
    assert all(m.grad is not None for m in broken.masters)
    broken.logprobs = logprobs
    broken.step([minibatch(5)])
    fresh.step([minibatch(5)])
    assert equal(broken.seen[0], fresh.seen[0])


@pytest.mark.parametrize("limit", [0.01, 0.0])
def test_the_gradient_norm_is_clipped_over_all_weights(limit):
    """0 clips nothing: scaling to a norm of 0 would train nothing, in silence."""
    policy = policy_on(tiny(), max_grad_norm=limit)
    (stats,) = policy.step([minibatch()])
    assert stats.grad_norm > 0.1
    norm = torch.stack([g.norm() for g in policy.seen[0]]).norm().item()
    assert norm == pytest.approx(limit or stats.grad_norm, rel=1e-3)


def test_small_steps_add_up_in_float32_masters_under_bfloat16_weights():
    """At lr 1e-5 a step is below bfloat16's resolution: without masters nothing would be learnt."""
    policy = Policy(tiny().to(torch.bfloat16), lr=1e-5, steps=400, warmup=0, kl_coef=0.0)
    before = [m.clone() for m in policy.masters]
    policy.step([minibatch()])
    weight = policy.model.model.layers[0].mlp.up_proj.weight
    moved = [(a - b).abs().max().item() for a, b in zip(policy.masters, before, strict=True)]
    assert weight.dtype == torch.bfloat16
    assert all(m.dtype == torch.float32 for m in policy.masters)
    assert all(0 < m < 1.1e-4 for m in moved)
    states = policy.optimizer.state.values()
    assert all(s["exp_avg"].dtype == s["exp_avg_sq"].dtype == torch.float32 for s in states)
    assert equal(policy.params, [m.to(torch.bfloat16) for m in policy.masters])


def test_bfloat16_gradients_point_where_float32_ones_do():
    seen = []
    for dtype in (torch.float32, torch.bfloat16):
        policy = policy_on(tiny().to(dtype), tiny(1).to(dtype), micro_tokens=40)
        policy.step([minibatch()])
        seen.append(torch.cat([g.flatten() for g in policy.seen[0]]))
    assert torch.cosine_similarity(*seen, dim=0) > 0.99 and seen[1].dtype == torch.float32


def test_gradients_of_micro_batches_add_up_in_float32():
    """In bfloat16, 1 and many times 1/512 stay 1: what comes late in a minibatch would be lost."""
    weight, master = torch.zeros(3, dtype=torch.bfloat16, requires_grad=True), torch.zeros(3)
    weight.register_post_accumulate_grad_hook(lambda p: grpo.move_gradient(p, master))
    for size in [1.0] + [1 / 512] * 256:
        (weight * size).sum().backward()
    assert master.grad.tolist() == [1.5] * 3 and weight.grad is None


def test_the_learning_rate_warms_up_from_its_first_step_and_ends_at_zero():
    policy = Policy(tiny(), lr=1e-6, steps=111)
    assert [policy.lr_at(t) for t in (1, 5, 10)] == pytest.approx([1e-7, 5e-7, 1e-6])
    rates = [policy.lr_at(t) for t in range(10, 113)]
    assert rates == sorted(rates, reverse=True)
    assert 0 < policy.lr_at(111) < 1e-9 and abs(policy.lr_at(112)) < 1e-15
    policy.step([minibatch(0), minibatch(1)])
    assert policy.t == 1 and policy.optimizer.param_groups[0]["lr"] == pytest.approx(1e-7)
    with pytest.raises(ValueError, match="warmup 10 must be shorter than the run of 10"):
        Policy(tiny(), lr=1e-6, steps=10)


def test_all_weights_decay():
    policy = Policy(tiny(), lr=0.1, steps=20, warmup=0, kl_coef=0.0)
    policy.optimizer.param_groups[0]["eps"] = 1e9  # so that Adam itself moves nothing
    before = [p.detach().clone() for p in policy.params]
    policy.step([minibatch()])
    lr = policy.lr_at(1)
    for p, b in zip(policy.params, before, strict=True):
        assert torch.allclose(p, b * (1 - 0.1 * lr), atol=1e-6)


def test_runs_are_bit_identical_also_through_a_saved_state(tmp_path):
    def run(policy, steps):
        for t in steps:
            policy.step([minibatch(2 * t), minibatch(2 * t + 1)])

    whole, again, first, second = (
        Policy(tiny(), lr=1e-3, steps=20, reference=tiny(1)) for _ in range(4)
    )
    run(whole, range(4))
    run(again, range(4))
    run(first, range(2))
    torch.save(first.state_dict(), tmp_path / "policy.pt")
    second.load_state_dict(torch.load(tmp_path / "policy.pt"))
    run(second, range(2, 4))
    for policy in (again, second):
        assert equal(frozen_copy(policy), frozen_copy(whole))
        assert policy.t == 4


def test_the_reference_is_shared_frozen_and_only_made_when_used():
    reference = tiny(1)
    before = [p.detach().clone() for p in reference.parameters()]
    coder, tester = (Policy(tiny(seed), lr=1e-2, steps=20, reference=reference) for seed in (0, 2))
    coder.step([minibatch()])
    assert coder.reference is tester.reference is reference
    assert equal(reference.parameters(), before)
    own = Policy(tiny(), lr=1e-2, steps=20, warmup=1)
    assert own.step([minibatch()])[0].kl == 0.0 and own.step([minibatch()])[0].kl > 0.0
    without = Policy(tiny(), lr=1e-2, steps=20, kl_coef=0.0, reference=reference)
    assert without.reference is None


def test_an_empty_minibatch_changes_nothing():
    policy = Policy(tiny(), lr=1e-2, steps=20)
    before = frozen_copy(policy)
    stats = policy.step([[], [Group((1, 2), (), ())]])
    assert [s.tokens for s in stats] == [0, 0] and not any(s.skipped for s in stats)
    assert equal(frozen_copy(policy), before)


def test_better_replies_become_likelier():
    (group,) = minibatch(shapes=((6, (8, 8)),))
    for advantages in ((0.7, -0.7), (-0.7, 0.7)):
        model = tiny()
        policy = Policy(model, lr=1e-3, steps=20, warmup=0)
        gaps = []
        for _ in range(2):
            first, second = (
                reply_logprobs(model, group.prompt, sample.ids).sum() for sample in group.samples
            )
            gaps.append((first - second).item() * advantages[0])
            policy.step([[Group(group.prompt, group.samples, advantages)]])
        assert gaps[1] > gaps[0]


def test_examples_in_docstrings():
    found = doctest.testmod(grpo)
    assert found.failed == 0 and found.attempted >= 9


# ---------------------------------------------------------------- GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("offload", [False, True])
def test_a_gpu_updates_as_the_cpu_does(offload):
    torch.backends.cuda.matmul.allow_tf32 = False
    settings = {"lr": 1e-3, "steps": 20, "warmup": 1, "offload": offload}
    cpu, gpu = (Policy(model, **settings) for model in (tiny(), tiny().cuda()))
    for _ in range(3):
        want, found = (policy.step([minibatch(0), minibatch(1)]) for policy in (cpu, gpu))
        assert found[1].loss == pytest.approx(want[1].loss, rel=1e-3)
    masters = [[m.detach().cpu() for m in policy.masters] for policy in (gpu, cpu)]
    assert worst(*masters) < 1e-3
    if offload:
        states = gpu.optimizer.state.values()
        assert all(state["exp_avg"].device.type == "cpu" for state in states)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_run_with_offload_goes_on_from_a_saved_state():
    """It is loaded while the masters wait on the host; the fused step needs all in one place."""
    settings = {"lr": 1e-3, "steps": 20, "warmup": 1, "offload": True}
    whole, resumed = (Policy(tiny().cuda().bfloat16(), **settings) for _ in range(2))
    whole.step([minibatch(0)])
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    assert resumed.step([minibatch(1)]) == whole.step([minibatch(1)])
