"""GRPO: group advantages, the token loss, and Policy, which updates one model.

Kept of the paper: dual-clip loss with asymmetric clipping, k3 KL to the frozen start model, group-normalised advantages
(sample standard deviation), token mean. Different on purpose: the mean runs over the whole minibatch however it is cut,
rewards and advantages are float32, a group of one has advantage 0, the first step has lr/warmup instead of 0.

    policy = Policy(model, lr=1e-6, steps=111)
    stats = policy.step([first_minibatch, second_minibatch])     # lists of Group

A prompt is computed once for all its replies, and logits exist only a chunk of tokens at a time.

Letters: G groups, n replies of a group, N tokens of a micro-batch, R replies, S reply tokens, V vocabulary.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from model import Attend, Qwen2, Sample, attention

LOG_RATIO_LIMIT = 20.0  # exp(20) is finite in every type, and its gradient is clipped anyway
K3_LIMIT = 10.0
SKIP_LIMIT = 5  # non-finite steps in a row before the run stops
CHUNK_NUMBERS = 8_000_000  # float32 logits held at once (32 MB), 16 times as many on a GPU


def group_advantages(rewards: Tensor | Sequence[Sequence[float]]) -> Tensor:
    """(G, n) rewards -> (G, n) float32 advantages: (r - mean) / (sample std + 1e-6); 0 without spread or for n = 1.

    >>> group_advantages([[1.0, 0.0], [0.5, 0.5]])
    tensor([[ 0.7071, -0.7071],
            [ 0.0000,  0.0000]])
    """
    rewards = torch.as_tensor(rewards, dtype=torch.float32)
    if rewards.shape[-1] < 2:
        return torch.zeros_like(rewards)
    centred = rewards - rewards.mean(-1, keepdim=True)
    # Asked of the rewards themselves: the mean of equal numbers can be off by one ulp.
    spread = rewards.amax(-1, keepdim=True) > rewards.amin(-1, keepdim=True)
    return torch.where(spread, centred / (rewards.std(-1, keepdim=True) + 1e-6), 0.0)


def grpo_loss(
    logp: Tensor, old_logp: Tensor, ref_logp: Tensor | None, advantages: Tensor, mask: Tensor, clip_low: float = 0.2,
    clip_high: float = 0.28, dual_clip: float = 10.0, kl_coef: float = 0.001, total_tokens: int | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Dual-clip policy loss plus kl_coef * k3 (http://joschu.net/blog/kl-approx.html), summed over live tokens.

    logp, old_logp, ref_logp, mask: (B, T), mask true or 1 at live tokens; advantages: (B,). The sum is divided by
    total_tokens (default: the live tokens), so that the parts of a minibatch add up to its token mean; kl and
    clip_fraction likewise, ratio_max is a maximum. ref_logp may be None where kl_coef is 0.
    """
    live = mask.bool()
    count = max(int(live.sum()) if total_tokens is None else total_tokens, 1)
    gap = torch.where(live, logp - old_logp, 0.0).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = gap.exp()
    a = advantages[:, None]
    plain, clipped = -ratio * a, -ratio.clamp(1 - clip_low, 1 + clip_high) * a
    loss = torch.maximum(plain, clipped)
    loss = torch.where(a < 0, torch.minimum(loss, -dual_clip * a), loss)
    k3 = torch.zeros_like(loss)
    if ref_logp is not None:
        gap = torch.where(live, ref_logp - logp, 0.0).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        k3 = (gap.exp() - gap - 1).clamp(max=K3_LIMIT)
    stats = {
        "kl": k3.detach().sum() / count,  # dead tokens have k3 0
        "clip_fraction": ((clipped > plain) & live).sum() / count,
        "ratio_max": ratio.detach().masked_fill(~live, 0.0).amax() if ratio.numel() else ratio.new_zeros(()),
    }
    return torch.where(live, loss + kl_coef * k3, 0.0).sum() / count, stats


@dataclass(frozen=True)
class Group:
    """n replies to one prompt with their advantages."""

    prompt: tuple[int, ...]
    samples: tuple[Sample, ...]
    advantages: tuple[float, ...]


@dataclass(frozen=True)
class UpdateStats:
    """One optimiser step. loss, kl, clip_fraction: means over the minibatch's reply tokens."""

    loss: float
    kl: float
    clip_fraction: float
    ratio_max: float
    grad_norm: float  # before clipping; not finite if skipped
    tokens: int  # reply tokens
    skipped: bool


# ---------------------------------------------------------------- packing

@dataclass(frozen=True)
class Pack:
    """A micro-batch in which every prompt stands once.

    The layers see one row of N tokens without padding: the prompts, then the replies (less their last tokens, after
    which nothing is predicted), whose positions go on where their prompt ended. Attention alone needs rectangles.
    """

    ids: Tensor  # (1, N)
    positions: Tensor  # (1, N)
    prompt_rows: Tensor  # (G, P) index of each prompt's tokens, padded on the right
    reply_rows: Tensor  # (R, T) index of each reply's tokens, padded on the right
    key_rows: Tensor  # (R, P + T) the prompt's tokens, padded on the left, then the reply's
    prompt_sizes: Tensor  # (R,) tokens of a reply's own prompt
    where: Tensor  # (N,) place of each token in the two rectangles laid end to end
    source: Tensor  # (S,) index of the token whose state predicts a reply token
    targets: Tensor  # (S,)
    advantages: Tensor  # (S,)

    def attend(self) -> Attend:
        """The rule of this packing for one pass: q (1, N, H, D), k and v (1, N, K, D) -> (1, N, H, D). A reply's token
        sees its own prompt and its reply up to itself; the mask (R, 1, T, P + T) lives as long as the pass."""
        replies, columns = torch.arange(self.reply_rows.shape[1]), torch.arange(self.key_rows.shape[1])
        longest = len(columns) - len(replies)
        before = (columns <= longest + replies[:, None]).to(self.ids.device)
        mask = ((columns.to(self.ids.device) >= longest - self.prompt_sizes[:, None])[:, None] & before)[:, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v, prompt = q[0], k[0], v[0], self.prompt_rows
            prompts = attention(layer, take(q, prompt), take(k, prompt), take(v, prompt))
            replies = attention(layer, take(q, self.reply_rows), take(k, self.key_rows), take(v, self.key_rows), mask)
            return take(torch.cat((prompts.flatten(0, 1), replies.flatten(0, 1))), self.where[None])

        return attend


def take(x: Tensor, rows: Tensor) -> Tensor:
    """x (N, heads, D), rows (B, T) -> (B, T, heads, D); the backward pass sums what was taken more than once."""
    return F.embedding(rows, x.flatten(1)).unflatten(-1, x.shape[1:])


def pack(groups: Sequence[Group], device: torch.device) -> Pack:
    """Lay groups out as one micro-batch."""
    prompts = [torch.tensor(g.prompt) for g in groups]
    replies = [torch.tensor(s.ids) for g in groups for s in g.samples]
    owner = torch.tensor([i for i, g in enumerate(groups) for _ in g.samples])
    p_len, r_len = torch.tensor([len(p) for p in prompts]), torch.tensor([len(r) - 1 for r in replies])
    p_start, r_start = p_len.cumsum(0) - p_len, p_len.sum() + r_len.cumsum(0) - r_len
    p_max, r_max = int(p_len.max()), max(int(r_len.max()), 1)
    p_grid, r_grid = torch.arange(p_max), torch.arange(r_max)
    prompt_rows = torch.where(p_grid < p_len[:, None], p_start[:, None] + p_grid, 0)
    live = r_grid < r_len[:, None]  # (R, T)
    reply_rows = torch.where(live, r_start[:, None] + r_grid, 0)
    left = p_grid - p_max + p_len[owner][:, None]  # (R, P) token of the prompt, negative on the padding
    key_rows = torch.cat((torch.where(left >= 0, p_start[owner][:, None] + left, 0), reply_rows), 1)
    p_where = torch.arange(len(groups))[:, None] * p_max + p_grid
    r_where = len(groups) * p_max + torch.arange(len(owner))[:, None] * r_max + r_grid
    before = torch.cat(((p_start + p_len - 1)[owner][:, None], reply_rows), 1)  # (R, 1 + T), the prompt's end first
    predicted = torch.cat((torch.ones_like(live[:, :1]), live), 1)
    positions = [torch.arange(len(p)) for p in prompts]
    positions += [torch.arange(n) + start for n, start in zip(r_len.tolist(), p_len[owner].tolist(), strict=True)]
    advantages = torch.tensor([a for g in groups for a in g.advantages], dtype=torch.float32)
    tensors = {
        "ids": torch.cat(prompts + [r[:-1] for r in replies])[None], "positions": torch.cat(positions)[None],
        "prompt_rows": prompt_rows, "reply_rows": reply_rows, "key_rows": key_rows, "prompt_sizes": p_len[owner],
        "where": torch.cat((p_where[p_grid < p_len[:, None]], r_where[live])), "source": before[predicted],
        "targets": torch.cat(replies), "advantages": advantages.repeat_interleave(r_len + 1),
    }
    if device.type == "cuda":
        tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
    return Pack(**{name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()})


def micro_batches(groups: Sequence[Group], budget: int) -> list[list[Group]]:
    """Cut a minibatch into parts of at most `budget` tokens, counting the padding of attention's rectangles, which is
    small because replies are sorted. A group over the budget is cut, its prompt repeated; one reply always fits."""
    pieces = []
    for group in sorted(groups, key=lambda g: (len(g.prompt), max(len(s.ids) for s in g.samples))):
        pairs = sorted(zip(group.samples, group.advantages, strict=True), key=lambda pair: len(pair[0].ids))
        while pairs:
            room = max(budget - len(group.prompt), 0)
            fit = max([i for i in range(1, len(pairs) + 1) if i * len(pairs[i - 1][0].ids) <= room], default=1)
            samples, advantages = zip(*pairs[:fit], strict=True)
            pieces.append(Group(group.prompt, samples, advantages))
            pairs = pairs[fit:]
    parts: list[list[Group]] = []
    for piece in pieces:
        if parts and padded_tokens([*parts[-1], piece]) <= budget:
            parts[-1].append(piece)
        else:
            parts.append([piece])
    return parts


def padded_tokens(groups: Sequence[Group]) -> int:
    replies = [len(s.ids) for g in groups for s in g.samples]
    return len(groups) * max(len(g.prompt) for g in groups) + len(replies) * max(replies)


# ---------------------------------------------------------------- logits, a chunk at a time

@torch.no_grad()
def through_head(states: Tensor, head: Tensor, targets: Tensor, temperature: float, head_grad: Tensor | None = None,
                 loss_of: Callable[[slice, Tensor], tuple[Tensor, dict]] | None = None) -> tuple[Tensor, list]:
    """Log-probs (S,) of targets (S,) under softmax(states (S, D) @ head.T / temperature) in float32, head (V, D).

    With loss_of, which gives a slice's share of the loss, and stats, for its log-probs (C, 1): the loss' gradient by
    the states instead, with [(loss, stats), ...]; the gradient by the head is added to head_grad (V, D). As no token's
    loss needs another's log-prob, a chunk goes forward and backward before the next, and no logits outlive it.
    """
    logprobs, grad, found = torch.empty(len(states), device=states.device), torch.empty_like(states), []
    size = max(CHUNK_NUMBERS * (16 if states.is_cuda else 1) // len(head), 1)
    for part in (slice(start, start + size) for start in range(0, len(states), size)):
        target, logits = targets[part, None], F.linear(states[part], head).float().div_(temperature)
        total = logits.logsumexp(1, keepdim=True)
        logp = logits.gather(1, target) - total
        logprobs[part] = logp[:, 0]
        if loss_of is None:
            continue
        with torch.enable_grad():
            loss, stats = loss_of(part, logp.requires_grad_())
            slope = torch.autograd.grad(loss, logp)[0] / temperature  # (C, 1)
        found.append((loss.detach(), stats))
        # d logp / d logits = one-hot of the target - softmax
        by_logits = logits.sub_(total).exp_().mul_(-slope).scatter_add_(1, target, slope).to(head.dtype)
        grad[part] = by_logits @ head
        head_grad += by_logits.T @ states[part]
    return (grad if loss_of else logprobs), found


# ---------------------------------------------------------------- policy

class Policy:
    """A model that learns: float32 masters and moments, a schedule, and the frozen model that KL is measured to.

    reference: may be shared by several policies; None makes a frozen copy (none if kl_coef is 0). micro_tokens: tokens
    of one forward and backward pass. checkpointing: recompute layers instead of keeping their activations. offload:
    between steps masters and moments wait in host memory. A model not in float32 has separate masters.

    Memory in bfloat16, measured on a CPU with SmolLM2-135M: 18.1 bytes per parameter (2 more with a reference of its
    own), 20.3 at the peak of a step of 12 tokens; and 0.9 MB per token of a micro-batch, that is 53 bytes per token,
    layer and unit of the hidden size.
    """

    def __init__(
        self, model: Qwen2, *, lr: float, steps: int, warmup: int = 10, weight_decay: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, max_grad_norm: float = 1.0, clip_low: float = 0.2,
        clip_high: float = 0.28, dual_clip: float = 10.0, kl_coef: float = 0.001, temperature: float = 1.0,
        vocab_size: int | None = None, micro_tokens: int = 16384, reference: Qwen2 | None = None,
        checkpointing: bool = False, offload: bool = False,
    ):
        if not 0 <= warmup < steps:
            raise ValueError(f"warmup {warmup} must be shorter than the run of {steps} steps")
        if not temperature > 0:
            raise ValueError(f"temperature must be > 0 to take log-probs at it, got {temperature}")
        self.model, self.lr, self.steps, self.warmup = model.requires_grad_(True), lr, steps, warmup
        self.max_grad_norm, self.temperature, self.micro_tokens = max_grad_norm, temperature, micro_tokens
        self.loss = {"clip_low": clip_low, "clip_high": clip_high, "dual_clip": dual_clip, "kl_coef": kl_coef}
        self.vocab_size = vocab_size or model.config.vocab_size
        self.checkpointing, self.offload, self.device = checkpointing, offload, model.head.device
        if reference is None and kl_coef:
            reference = copy.deepcopy(model).requires_grad_(False)
        self.reference = reference if kl_coef else None
        self.params = list(model.parameters())
        self.masters = [p if p.dtype == torch.float32 else p.detach().float() for p in self.params]
        for p, master in zip(self.params, self.masters, strict=True):
            if p is not master:
                p.register_post_accumulate_grad_hook(partial(move_gradient, master=master))
        fused = self.device.type in ("cpu", "cuda")
        self.optimizer = torch.optim.AdamW(self.masters, lr, betas, eps, weight_decay, fused=fused)
        self.pinned: dict[int, Tensor] = {}  # host copies of what `offload` moves
        self.t = self.skipped = self.skipped_in_a_row = 0
        if offload:
            self.move_state(torch.device("cpu"))

    def lr_at(self, t: int) -> float:
        """Learning rate of step t = 1, 2, ..., steps: linear warm-up, then a cosine that is 0 when the run is over."""
        if t <= self.warmup:
            return self.lr * t / self.warmup
        return self.lr * (1 + math.cos(math.pi * (t - self.warmup) / (self.steps + 1 - self.warmup))) / 2

    def step(self, minibatches: Sequence[Sequence[Group]]) -> list[UpdateStats]:
        """One training step: one optimiser step per minibatch, all at the same learning rate.

        `old` is the log-prob before the first of them; the first needs no pass of its own for it. FloatingPointError
        after SKIP_LIMIT optimiser steps in a row whose gradient was not finite.
        """
        self.t += 1
        self.optimizer.param_groups[0]["lr"] = self.lr_at(self.t)
        batches = [self.prepare(groups, first=i == 0) for i, groups in enumerate(minibatches)]
        if self.offload:
            self.move_state(self.device)
        stats = [self.update(batch) for batch in batches]
        if self.offload:
            self.move_state(torch.device("cpu"))
        return stats

    def prepare(self, groups: Sequence[Group], first: bool) -> list[tuple[Pack, Tensor | None, Tensor | None]]:
        """A minibatch's packs with their old (None for the first minibatch) and reference log-probs."""
        groups = [g for g in groups if g.samples]
        packs = [pack(part, self.device) for part in micro_batches(groups, self.micro_tokens)]
        return [(p, None if first else self.logprobs(self.model, p),
                 self.logprobs(self.reference, p) if self.reference else None) for p in packs]

    @torch.no_grad()
    def logprobs(self, model: Qwen2, p: Pack) -> Tensor:
        """(S,) log-probs of a pack's reply tokens at the sampling temperature."""
        states = model.hidden(p.ids, p.positions, p.attend())[0]
        return through_head(states[p.source], model.head[:self.vocab_size], p.targets, self.temperature)[0]

    def update(self, batch: list[tuple[Pack, Tensor | None, Tensor | None]]) -> UpdateStats:
        """One optimiser step on one minibatch; a gradient that is not finite leaves weights and moments alone."""
        tokens = sum(len(p.targets) for p, _, _ in batch)
        if tokens == 0:
            return UpdateStats(0.0, 0.0, 0.0, 0.0, 0.0, 0, False)
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        losses, stats = zip(*(part for parts in batch for part in self.backward(*parts, tokens)), strict=True)
        norm = torch.nn.utils.get_total_norm([master.grad for master in self.masters])
        skipped = not bool(norm.isfinite())
        if not skipped:
            torch.nn.utils.clip_grads_with_norm_(self.masters, self.max_grad_norm, norm)
            self.optimizer.step()
            self.publish()
        for master in self.masters:
            master.grad = None
        self.skipped += skipped
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0
        if self.skipped_in_a_row >= SKIP_LIMIT:
            raise FloatingPointError(f"step {self.t}: the gradient was not finite {SKIP_LIMIT} times in a row")
        kl, clip_fraction = (float(sum(s[name] for s in stats)) for name in ("kl", "clip_fraction"))
        ratio_max = float(max(s["ratio_max"] for s in stats))
        return UpdateStats(float(sum(losses)), kl, clip_fraction, ratio_max, float(norm), tokens, skipped)

    def backward(self, p: Pack, old: Tensor | None, ref: Tensor | None, tokens: int) -> list[tuple[Tensor, dict]]:
        """Add a micro-batch's share of the minibatch's gradient. Returns its shares of the loss, with stats."""

        def loss_of(part: slice, logp: Tensor) -> tuple[Tensor, dict]:
            before, frozen = logp.detach() if old is None else old[part, None], None if ref is None else ref[part, None]
            live = torch.ones_like(logp)  # each token a row of its own
            return grpo_loss(logp, before, frozen, p.advantages[part], live, **self.loss, total_tokens=tokens)

        states = self.model.hidden(p.ids, p.positions, p.attend(), self.checkpointing)[0][p.source]
        head = self.model.head
        head_grad = next(m.grad for q, m in zip(self.params, self.masters, strict=True) if q is head)
        grad, parts = through_head(states, head[:self.vocab_size], p.targets, self.temperature,
                                   head_grad[:self.vocab_size], loss_of)
        states.backward(grad)
        return parts

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the masters into the model that samples."""
        for p, master in zip(self.params, self.masters, strict=True):
            if p is not master:
                p.copy_(master)

    def move_state(self, device: torch.device) -> None:
        """Take moments, and masters that are not the model's own weights, to the device or to pinned host memory."""
        own = [m for p, m in zip(self.params, self.masters, strict=True) if p is not m]
        moments = [s[name] for s in self.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
        for i, tensor in enumerate([*own, *moments]):
            if device.type == "cpu" and tensor.device.type != "cpu":
                if i not in self.pinned:
                    self.pinned[i] = torch.empty_like(tensor, device="cpu", pin_memory=True)
                tensor.data = self.pinned[i].copy_(tensor, non_blocking=True)
            elif tensor.device != device:
                tensor.data = tensor.to(device, non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def state_dict(self) -> dict:
        """What a resumed run needs beside the start model: masters, moments, schedule, counters."""
        return {"masters": [m.detach() for m in self.masters], "optimizer": self.optimizer.state_dict(), "t": self.t,
                "skipped": self.skipped, "skipped_in_a_row": self.skipped_in_a_row}

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        """Go on where state_dict was taken. Build the Policy on the start model first: it is the KL's reference."""
        for master, saved in zip(self.masters, state["masters"], strict=True):
            master.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.t, self.skipped, self.skipped_in_a_row = (state[k] for k in ("t", "skipped", "skipped_in_a_row"))
        self.publish()
        if self.offload:
            self.move_state(torch.device("cpu"))


def move_gradient(p: Tensor, master: Tensor) -> None:
    """Add a parameter's fresh gradient to its float32 master's, and free it."""
    master.grad += p.grad
    p.grad = None
