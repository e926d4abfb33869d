"""GRPO: group advantages, the token loss, and Policy, which updates one model.

Kept of the paper: dual-clip loss with asymmetric clipping, k3 KL to the frozen start model,
group-normalised advantages (sample standard deviation), token mean. Different on purpose: the mean
runs over the whole minibatch however it is cut, advantages are float32, a group of one has
advantage 0, the first step has lr/warmup instead of 0.

    policy = Policy(model, lr=1e-6, steps=111)
    stats = policy.step([first_minibatch, second_minibatch])     # lists of Group

A prompt is computed once for all its replies, and logits exist only a chunk of tokens at a time.

Letters: G groups, n replies of a group; N tokens of a micro-batch, S reply tokens in it; P tokens
of a prompt, T of a reply; H query heads, K key/value heads, D head or hidden size, V vocabulary.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from model import Qwen2, Sample, attention

LOG_RATIO_LIMIT = 20.0  # exp(20) is finite in every type, and its gradient is clipped anyway
K3_LIMIT = 10.0
SKIP_LIMIT = 5  # non-finite steps in a row before the run stops
CHUNK_NUMBERS = 8_000_000  # logits of one chunk (32 MB), 16 times as many on a GPU


def group_advantages(rewards: Tensor | Sequence[Sequence[float]]) -> Tensor:
    """(G, n) rewards -> (G, n) float32 advantages, (r - mean) / (sample std + 1e-6) in each group;
    0 in a group without spread or of one.

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
    logp: Tensor, old_logp: Tensor, ref_logp: Tensor | None, advantages: Tensor, mask: Tensor,
    clip_low: float = 0.2, clip_high: float = 0.28, dual_clip: float = 10.0,
    kl_coef: float = 0.001, total_tokens: int | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Dual-clip policy loss plus kl_coef * k3 (http://joschu.net/blog/kl-approx.html).

    logp, old_logp, ref_logp, mask: (B, T), mask true or 1 at live tokens; advantages: (B,). The sum
    over live tokens is divided by total_tokens (default: the live tokens), so that the parts of a
    minibatch add up to its token mean; kl and clip_fraction likewise, ratio_max is a maximum.
    ref_logp may be None where kl_coef is 0.
    """
    live = mask.bool()
    count = max(int(live.sum()) if total_tokens is None else total_tokens, 1)
    gap = torch.where(live, logp - old_logp, 0.0).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = gap.exp()
    a = advantages[:, None]
    plain = -ratio * a
    clipped = -ratio.clamp(1 - clip_low, 1 + clip_high) * a
    loss = torch.maximum(plain, clipped)
    loss = torch.where(a < 0, torch.minimum(loss, -dual_clip * a), loss)
    k3 = torch.zeros_like(loss)
    if ref_logp is not None:
        gap = torch.where(live, ref_logp - logp, 0.0).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        k3 = (gap.exp() - gap - 1).clamp(max=K3_LIMIT)  # 0 at dead tokens
    largest = ratio.detach().masked_fill(~live, 0.0)
    stats = {
        "kl": k3.detach().sum() / count,
        "clip_fraction": ((clipped > plain) & live).sum() / count,
        "ratio_max": largest.amax() if largest.numel() else largest.sum(),
    }
    return torch.where(live, loss + kl_coef * k3, 0.0).sum() / count, stats


@dataclass(frozen=True)
class Group:
    prompt: tuple[int, ...]
    samples: tuple[Sample, ...]  # replies to it
    advantages: tuple[float, ...]


@dataclass(frozen=True)
class UpdateStats:
    """One optimiser step. loss, kl, clip_fraction: means over the minibatch's reply tokens."""

    loss: float
    kl: float
    clip_fraction: float
    grad_norm: float  # before clipping; not finite if skipped
    tokens: int  # reply tokens
    skipped: bool


# ---- micro-batches ----
@dataclass(frozen=True)
class Part:
    """A micro-batch: one row of N tokens without padding, and what its S reply tokens need.

    Each group's prompt comes once, less its last token; then its replies, less theirs. A reply
    begins with the prompt's last token, so that every token of it predicts one of `targets`.
    """

    lengths: list[list[int]]  # tokens in the row, by group: [prompt, reply, reply, ...]
    ids: Tensor  # (1, N)
    positions: Tensor  # (1, N): each reply goes on where its prompt ended
    targets: Tensor  # (S,) all replies
    advantages: Tensor  # (S,)
    old: Tensor | None = None  # (S, 1) log-probs before the step; None: the model has not moved yet
    ref: Tensor | None = None  # (S, 1) log-probs under the reference


def lay_out(groups: Sequence[Group], device: torch.device | str = "cpu") -> Part:
    """Groups -> one micro-batch.

    >>> samples = (Sample((7, 8, 9), (), True), Sample((6,), (), True))
    >>> part = lay_out([Group((1, 2, 3), samples, (0.5, -0.5))])
    >>> part.ids, part.positions, part.lengths
    (tensor([[1, 2, 3, 7, 8, 3]]), tensor([[0, 1, 2, 3, 4, 2]]), [[2, 3, 1]])
    >>> part.targets, part.advantages
    (tensor([7, 8, 9, 6]), tensor([ 0.5000,  0.5000,  0.5000, -0.5000]))
    """
    lengths, ids, positions, targets, advantages = [], [], [], [], []
    for group in groups:
        *start, last = group.prompt
        ids += start
        positions += range(len(start))
        for sample, advantage in zip(group.samples, group.advantages, strict=True):
            ids += [last, *sample.ids[:-1]]
            positions += range(len(start), len(start) + len(sample.ids))
            targets += sample.ids
            advantages += [advantage] * len(sample.ids)
        lengths.append([len(start), *(len(sample.ids) for sample in group.samples)])
    tensors = [torch.tensor(numbers) for numbers in ([ids], [positions], targets)]
    tensors.append(torch.tensor(advantages, dtype=torch.float32))
    if torch.device(device).type == "cuda":  # from pinned memory a copy does not stop the host
        tensors = [tensor.pin_memory() for tensor in tensors]
    return Part(lengths, *(tensor.to(device, non_blocking=True) for tensor in tensors))


def micro_batches(groups: Sequence[Group], budget: int) -> list[list[Group]]:
    """Cut a minibatch into parts of at most `budget` tokens, each filled before the next is begun.

    A group that does not fit is cut, and its prompt repeated; one reply always fits.

    >>> samples = tuple(Sample((7,) * n, (), True) for n in (2, 4, 3))
    >>> parts = micro_batches([Group((1, 2), samples, (0.5, -0.5, 0.0))] * 2, budget=16)
    >>> [[[len(sample.ids) for sample in group.samples] for group in part] for part in parts]
    [[[2, 4, 3], [2]], [[4, 3]]]
    """
    parts: list[list[Group]] = []
    room = 0
    for group in groups:
        while group.samples:
            replies = (len(sample.ids) for sample in group.samples)
            _, *sizes = accumulate(replies, initial=len(group.prompt))  # with 1, 2, ... replies
            if sizes[0] > room:
                parts.append([])
                room = budget
            fit = max(sum(size <= room for size in sizes), 1)
            parts[-1].append(Group(group.prompt, group.samples[:fit], group.advantages[:fit]))
            group = Group(group.prompt, group.samples[fit:], group.advantages[fit:])
            room -= sizes[fit - 1]
    return parts


def reply_mask(prompt: int, reply: int, device: torch.device | str = "cpu") -> Tensor:
    """(T, P + T): a reply's token sees its whole prompt, and the reply up to itself.

    >>> reply_mask(2, 3).int()
    tensor([[1, 1, 1, 0, 0],
            [1, 1, 1, 1, 0],
            [1, 1, 1, 1, 1]], dtype=torch.int32)
    """
    return torch.ones(reply, prompt + reply, dtype=torch.bool, device=device).tril(prompt)


def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, lengths: list[list[int]]) -> Tensor:
    """q (1, N, H, D), k, v (1, N, K, D), lengths of a Part -> (1, N, H, D).

    A reply sees its prompt and itself, but no other reply.
    """
    sizes, out = sum(lengths, []), []
    pieces = zip(*(x.split(sizes, 1) for x in (q, k, v)), strict=True)
    for prompt, *replies in lengths:
        q_prompt, k_prompt, v_prompt = next(pieces)
        out.append(attention(layer, q_prompt, k_prompt, v_prompt))
        mask = reply_mask(prompt, max(replies), q.device)
        for reply in replies:
            q, k, v = next(pieces)
            k, v = torch.cat((k_prompt, k), 1), torch.cat((v_prompt, v), 1)
            # A shorter reply's mask is the corner of the longest one's.
            out.append(attention(layer, q, k, v, mask[:reply, : prompt + reply]))
    return torch.cat(out, 1)


# ---- log-probs, a chunk at a time ----
def token_logprobs(states: Tensor, head: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """(S, D) states, (V, D) head, (S,) targets -> (S,) log-probs at the temperature, in float32.

    The backward pass computes a chunk's logits again: those of all tokens would take more memory
    than everything else.
    """
    size = max(CHUNK_NUMBERS * (16 if states.is_cuda else 1) // len(head), 1)
    chunks = zip(states.split(size), targets.split(size), strict=True)
    run = partial(checkpoint, chunk_logprobs, use_reentrant=False, preserve_rng_state=False)
    return torch.cat([run(*chunk, head, temperature) for chunk in chunks])


def chunk_logprobs(states: Tensor, targets: Tensor, head: Tensor, temperature: float) -> Tensor:
    logits = F.linear(states, head).float() / temperature  # (C, V)
    return -F.cross_entropy(logits, targets, reduction="none")


# ---- policy ----
@dataclass(eq=False, repr=False)
class Policy:
    """A model that learns: float32 masters and moments, a schedule, a frozen reference for the KL.

    Memory in bfloat16, measured on a CPU with SmolLM2-135M: 18.1 bytes per parameter (2 more with a
    reference of its own), 18.9 at the peak of a step; and 47 bytes per token of a micro-batch,
    layer and unit of the hidden size, where the MLP is 2.7 times as wide as that.
    """

    model: Qwen2
    _: KW_ONLY
    lr: float
    steps: int
    warmup: int = 10
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0  # 0 clips nothing
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 10.0
    kl_coef: float = 0.001
    temperature: float = 1.0
    vocab_size: int | None = None
    micro_tokens: int = 16384  # of one forward and backward pass
    reference: Qwen2 | None = None  # may be shared; None: a copy of the model, if kl_coef > 0
    checkpointing: bool = False  # recompute layers instead of keeping their activations
    offload: bool = False  # between steps masters and moments wait in host memory

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < self.steps:
            raise ValueError(
                f"warmup {self.warmup} must be shorter than the run of {self.steps} steps")
        if not self.temperature > 0:
            raise ValueError(
                f"temperature must be > 0 to take log-probs at it, got {self.temperature}")
        self.device = self.model.requires_grad_(True).head.device
        if not self.kl_coef:
            self.reference = None
        elif self.reference is None:
            self.reference = copy.deepcopy(self.model).requires_grad_(False)
        self.params = list(self.model.parameters())
        self.masters = [p if p.dtype == torch.float32 else p.detach().float() for p in self.params]
        pairs = zip(self.params, self.masters, strict=True)
        self.apart = [(p, master) for p, master in pairs if p is not master]  # none in float32
        for p, master in self.apart:
            p.register_post_accumulate_grad_hook(partial(move_gradient, master=master))
        self.optimizer = torch.optim.AdamW(
            self.masters, self.lr, weight_decay=self.weight_decay, fused=True)
        self.pinned: dict[int, Tensor] = {}  # host copies of what `offload` moves
        self.t = self.skipped_in_a_row = 0
        self.move_state(torch.device("cpu"))

    def lr_at(self, t: int) -> float:
        """Learning rate of step t = 1 ... steps: linear warm-up, cosine to 0 at steps + 1."""
        if t <= self.warmup:
            return self.lr * t / self.warmup
        done = (t - self.warmup) / (self.steps + 1 - self.warmup)
        return self.lr * (1 + math.cos(math.pi * done)) / 2

    def step(self, minibatches: Sequence[Sequence[Group]]) -> list[UpdateStats]:
        """One optimiser step per minibatch, all at the same learning rate.

        `old` is the log-prob before the first, which needs no pass of its own for it.
        FloatingPointError after SKIP_LIMIT steps in a row whose gradient was not finite.
        """
        self.t += 1
        self.optimizer.param_groups[0]["lr"] = self.lr_at(self.t)
        batches = [self.prepare(groups, first=i == 0) for i, groups in enumerate(minibatches)]
        self.move_state(self.device)
        stats = [self.update(parts) for parts in batches]
        self.move_state(torch.device("cpu"))
        return stats

    @torch.no_grad()
    def prepare(self, groups: Sequence[Group], first: bool) -> list[Part]:
        """A minibatch's parts, with their old and reference log-probs."""
        parts = [lay_out(part, self.device) for part in micro_batches(groups, self.micro_tokens)]
        if not first:
            parts = [replace(part, old=self.logprobs(self.model, part)) for part in parts]
        if self.reference:
            parts = [replace(part, ref=self.logprobs(self.reference, part)) for part in parts]
        return parts

    def logprobs(self, model: Qwen2, part: Part) -> Tensor:
        """(S, 1) log-probs of the reply tokens at the sampling temperature."""
        rule = partial(attend, lengths=part.lengths)
        states = model.hidden(part.ids, part.positions, rule, self.checkpointing)[0]  # (N, D)
        groups = states.split([sum(lengths) for lengths in part.lengths])
        replies = [group[prompt:] for group, (prompt, *_) in zip(groups, part.lengths, strict=True)]
        head = model.head[: self.vocab_size]
        return token_logprobs(torch.cat(replies), head, part.targets, self.temperature)[:, None]

    def update(self, parts: list[Part]) -> UpdateStats:
        """One optimiser step; a gradient that is not finite changes nothing."""
        tokens = sum(len(part.targets) for part in parts)
        if tokens == 0:
            return UpdateStats(0.0, 0.0, 0.0, 0.0, 0, False)
        self.optimizer.zero_grad()
        sums = self.backward(parts, tokens)
        norm = torch.nn.utils.get_total_norm([master.grad for master in self.masters])
        loss, kl, clip_fraction, grad_norm = torch.cat((sums, norm[None])).tolist()
        skipped = not math.isfinite(grad_norm)
        if not skipped:
            if self.max_grad_norm:
                torch.nn.utils.clip_grads_with_norm_(self.masters, self.max_grad_norm, norm)
            self.optimizer.step()
            self.publish()
        self.optimizer.zero_grad()  # to leave the memory to sampling
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0
        if self.skipped_in_a_row >= SKIP_LIMIT:
            raise FloatingPointError(
                f"step {self.t}: the gradient was not finite {SKIP_LIMIT} times in a row")
        return UpdateStats(loss, kl, clip_fraction, grad_norm, tokens, skipped)

    def backward(self, parts: list[Part], tokens: int) -> Tensor:
        """Add up the minibatch's gradient. Returns its loss, kl and clip_fraction, still on the
        device: reading a number would make the host wait for every part."""
        sums = torch.zeros(3, device=self.device)
        for part in parts:
            logp = self.logprobs(self.model, part)
            old = logp.detach() if part.old is None else part.old
            live = torch.ones_like(logp)  # every token is a row of its own
            loss, stats = grpo_loss(
                logp, old, part.ref, part.advantages, live, self.clip_low, self.clip_high,
                self.dual_clip, self.kl_coef, tokens)
            loss.backward()
            sums += torch.stack((loss.detach(), stats["kl"], stats["clip_fraction"]))
        return sums

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the masters into the model that samples."""
        for p, master in self.apart:
            p.copy_(master)

    def move_state(self, device: torch.device) -> None:
        """With offload, take optimiser state and separate masters to the device or the host."""
        if not self.offload:
            return
        state = [master for _, master in self.apart]
        for found in self.optimizer.state.values():
            state += found.values()  # step counts too: loaded ones lie where their masters do
        for i, tensor in enumerate(state):
            if device.type != "cpu":
                tensor.data = tensor.to(device, non_blocking=True)
            elif tensor.device != device:
                if i not in self.pinned:
                    self.pinned[i] = torch.empty_like(tensor, device="cpu", pin_memory=True)
                tensor.data = self.pinned[i].copy_(tensor, non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def state_dict(self) -> dict:
        """What a resumed run needs beside the start model."""
        return {
            "masters": [master.detach() for master in self.masters],
            "optimizer": self.optimizer.state_dict(),
            "t": self.t,
            "skipped_in_a_row": self.skipped_in_a_row,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        """Go on where state_dict was taken. The Policy was built on the start model, for its KL."""
        for master, saved in zip(self.masters, state["masters"], strict=True):
            master.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.t, self.skipped_in_a_row = state["t"], state["skipped_in_a_row"]
        self.publish()
        self.move_state(torch.device("cpu"))


def move_gradient(p: Tensor, master: Tensor) -> None:
    """Add a weight's gradient to its float32 master's, and free it."""
    if master.grad is None:
        master.grad = torch.zeros_like(master)
    master.grad += p.grad
    p.grad = None
