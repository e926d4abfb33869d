"""One GRPO update of 32 replies against a plain transformers pass with full logits.

    CODEA1_DATA=data python tests/bench/update.py --model SmolLM2-135M
    ... --dtype float32    where the CPU has no bfloat16 arithmetic, which is then many times slower
    ... --check            float32 on one group: |loss / peer's - 1| and, for every single tensor,
                           the norm of the gradients' difference over the norm of the peer's
                           gradient must be under 1e-5; exit status 1 otherwise

Both sides compute in --dtype and step the same fused AdamW on float32 masters; both clip the
gradient; no KL. Ours computes a prompt once for its replies. The peer lays every reply out with its
prompt, padded on the right, `--peer-rows` at a time (all 32 at once need twice the memory of 16,
which few laptops have). Each side runs in a process of its own, so that its peak memory (the
process' resident maximum) is its own. Prompts are MBPP+'s, replies random ids of 150 to 250 tokens.
About 6 minutes on two cores.
"""

import argparse
import gzip
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from grpo import Group, Policy, grpo_loss  # noqa: E402
from model import Qwen2, Sample, Tokenizer  # noqa: E402

LIMIT, CHECK_REPLIES = 1e-5, 4


def minibatch(path: str, groups: int, replies: int = 8) -> list[Group]:
    """Replies to the longest of MBPP+'s first hundred prompts (about 150 tokens)."""
    tokenizer, draw = Tokenizer.from_pretrained(path), random.Random(0)
    size = len(tokenizer)
    with gzip.open(Path(os.environ["CODEA1_DATA"]) / "MbppPlus.jsonl.gz", "rt") as file:
        texts = sorted((json.loads(line)["prompt"] for line in list(file)[:100]), key=len)
    found = []
    for text in texts[-groups:]:
        lengths = [draw.randint(150, 250) for _ in range(replies)]
        written = [tuple(draw.randrange(3, size) for _ in range(n)) for n in lengths]
        samples = tuple(Sample(ids, (0.0,) * len(ids), True) for ids in written)
        prompt = tuple(tokenizer.encode_chat([{"role": "user", "content": text}]))
        found.append(Group(prompt, samples, tuple(draw.gauss(0, 1) for _ in lengths)))
    return found


def ours(args: argparse.Namespace, groups: list[Group]) -> Callable[[], object]:
    """Loads our side -> a function that makes one update."""
    model = Qwen2.from_pretrained(args.model, dtype=getattr(torch, args.dtype))
    policy = Policy(model, lr=1e-6, steps=100, kl_coef=0.0, micro_tokens=args.micro_tokens)
    return lambda: policy.step([groups])


def our_gradient(args: argparse.Namespace, groups: list[Group]) -> tuple[float, dict]:
    model, kept = Qwen2.from_pretrained(args.model, dtype=torch.float32), {}
    settings = {"kl_coef": 0.0, "max_grad_norm": 0.0, "micro_tokens": args.micro_tokens}
    policy = Policy(model, lr=1e-6, steps=100, **settings)
    policy.optimizer.step = lambda: kept.update(
        {name: p.grad.clone() for name, p in model.named_parameters()}
    )
    return policy.step([groups])[0].loss, kept


class Peer:
    """The same model of transformers, a row for every reply."""

    def __init__(self, args: argparse.Namespace, groups: list[Group]):
        os.environ["HF_HUB_OFFLINE"] = "1"
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(
            args.model, dtype=getattr(torch, args.dtype), attn_implementation="sdpa"
        ).train()
        # transformers drops the gradient of the padding id's embedding, even where that id is a
        # word of the text: SmolLM2 pads with <|im_end|>, which ends every turn of a prompt.
        # Otherwise 3 % of its gradient is missing.
        self.model.get_input_embeddings().padding_idx = None
        self.params = list(self.model.parameters())
        self.masters = [p.detach().float() for p in self.params]
        self.optimizer = torch.optim.AdamW(self.masters, 1e-7, weight_decay=0.1, fused=True)
        self.rows = [
            (group.prompt, sample.ids, advantage)
            for group in groups
            for sample, advantage in zip(group.samples, group.advantages, strict=True)
        ]
        self.size = args.peer_rows

    def gradient(self) -> float:
        """The loss; its gradient is added to the model's."""
        tokens, total = sum(len(reply) for _, reply, _ in self.rows), 0.0
        for start in range(0, len(self.rows), self.size):
            part = self.rows[start : start + self.size]
            width = max(len(p) + len(r) for p, r, _ in part)
            ids = torch.tensor([[*p, *r, *[0] * (width - len(p) - len(r))] for p, r, _ in part])
            places = torch.arange(1, width)
            mask = [(places >= len(p)) & (places < len(p) + len(r)) for p, r, _ in part]
            logp = self.model(ids).logits[:, :-1].float().log_softmax(-1)
            logp = logp.gather(2, ids[:, 1:, None])[..., 0]
            advantages = torch.tensor([advantage for _, _, advantage in part])
            rest = (logp.detach(), None, advantages, torch.stack(mask))
            loss, _ = grpo_loss(logp, *rest, kl_coef=0.0, total_tokens=tokens)
            loss.backward()
            total += loss.item()
        return total

    def step(self) -> None:
        self.gradient()
        for p, master in zip(self.params, self.masters, strict=True):
            master.grad, p.grad = p.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        with torch.no_grad():
            for p, master in zip(self.params, self.masters, strict=True):
                p.copy_(master)


def their_gradient(args: argparse.Namespace, groups: list[Group]) -> tuple[float, dict]:
    peer = Peer(args, groups)
    return peer.gradient(), {name: p.grad for name, p in peer.model.named_parameters()}


def side(args: argparse.Namespace) -> None:
    """One side here: seconds of each run and peak memory, or loss and gradients, to args.result."""
    torch.set_num_threads(args.threads)
    if args.check:
        args.dtype, groups = "float32", minibatch(args.model, 1, CHECK_REPLIES)
        gradient = our_gradient if args.side == "ours" else their_gradient
        return torch.save(gradient(args, groups), args.result)
    groups, times = minibatch(args.model, 4), []
    step = ours(args, groups) if args.side == "ours" else Peer(args, groups).step
    for _ in range(args.runs_here):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    Path(args.result).write_text(json.dumps([times, peak]))


def check(loss: float, grads: dict, peer_loss: float, peer_grads: dict) -> None:
    """Print how far apart both sides are; exit with 1 where that is LIMIT or more."""
    apart = {name: grads[name] - peer_grads[name] for name in peer_grads}
    gaps = {name: (apart[name].norm() / g.norm()).item() for name, g in peer_grads.items()}
    worst = max(gaps, key=gaps.get)
    difference, whole = (
        torch.stack([g.norm() for g in found.values()]).norm() for found in (apart, peer_grads)
    )
    print(
        f"float32, {CHECK_REPLIES} replies: losses {loss:.7f} and {peer_loss:.7f}; gradients of "
        f"all weights together differ by {difference / whole:.1e} of their norm, those of one "
        f"tensor by at most {gaps[worst]:.1e} ({worst})"
    )
    if set(grads) != set(gaps) or not max(gaps[worst], abs(loss / peer_loss - 1)) < LIMIT:
        raise SystemExit(1)


def report(args: argparse.Namespace, results: dict[str, list]) -> None:
    groups = minibatch(args.model, 4)
    tokens = sum(len(group.prompt) + len(s.ids) for group in groups for s in group.samples)
    seconds, peak = {}, {}
    for name, found in results.items():
        seconds[name] = statistics.median(second for times, _ in found for second in times)
        peak[name] = max(peak for _, peak in found)
        print(
            f"{name:7} {seconds[name]:6.1f} s, {tokens / seconds[name]:5.0f} tok/s "
            f"(prompt counted for every reply), peak {peak[name] / 2**30:.2f} GiB"
        )
    speed, memory = seconds["theirs"] / seconds["ours"], peak["ours"] / peak["theirs"]
    print(f"speed {speed:.2f} times, memory {memory:.2f} of the peer's")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--runs", type=int, default=3, help="processes of each side, in turn")
    parser.add_argument("--runs-here", type=int, default=1, help="updates in each process")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--micro-tokens", type=int, default=2560)
    parser.add_argument("--peer-rows", type=int, default=16)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--side", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        return side(args)
    results: dict[str, list] = {"ours": [], "theirs": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(1 if args.check else args.runs):
            for name in results:
                result = f"{folder}/{name}"
                command = [sys.executable, __file__, *sys.argv[1:]]
                subprocess.run([*command, "--side", name, "--result", result], check=True)
                load = torch.load if args.check else lambda path: json.loads(Path(path).read_text())
                results[name].append(load(result))
    if args.check:
        return check(*results["ours"][0], *results["theirs"][0])
    report(args, results)


if __name__ == "__main__":
    main()
