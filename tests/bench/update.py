"""One GRPO update of 32 replies against a plain transformers forward and backward pass with full logits.

    CODEA1_DATA=data python tests/bench/update.py --model SmolLM2-135M
    ... --check        float32 on one group: |loss - peer's| and, for every single tensor, the norm of the gradients'
                       difference over the norm of the peer's gradient must be under 1e-3; exit status 1 otherwise

Both sides compute in bfloat16 and step the same fused AdamW on float32 masters; both clip the gradient; no KL. Ours
packs a prompt with its replies. The peer lays every reply out with its prompt, padded on the right, `--peer-rows` at a
time (all 32 at once need twice the memory of 16, which few laptops have). Each side runs in a process of its own, so
that its peak memory (the process' resident maximum) is its own. Prompts are MBPP+'s, replies random ids of 150 to 250
tokens. About 6 minutes on two cores.
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
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from grpo import Group, Policy, grpo_loss  # noqa: E402
from model import Qwen2, Sample, Tokenizer  # noqa: E402

LIMIT, CHECK_REPLIES = 1e-3, 4


def minibatch(path: str, groups: int, replies: int = 8) -> list[Group]:
    """Groups of replies to MBPP+ prompts, the longest prompts of the file's first hundred (about 150 tokens)."""
    tokenizer, draw = Tokenizer.from_pretrained(path), random.Random(0)
    size = len(tokenizer)
    with gzip.open(Path(os.environ["CODEA1_DATA"]) / "MbppPlus.jsonl.gz", "rt") as file:
        texts = sorted((json.loads(line)["prompt"] for line in list(file)[:100]), key=len)[-groups:]
    found = []
    for text in texts:
        lengths = [draw.randint(150, 250) for _ in range(replies)]
        written = [tuple(draw.randrange(3, size) for _ in range(n)) for n in lengths]
        samples = tuple(Sample(ids, (0.0,) * len(ids), True) for ids in written)
        prompt = tuple(tokenizer.encode_chat([{"role": "user", "content": text}]))
        found.append(Group(prompt, samples, tuple(draw.gauss(0, 1) for _ in lengths)))
    return found


def ours(args, groups: list[Group], dtype: torch.dtype):
    model = Qwen2.from_pretrained(args.model, dtype=dtype)
    policy = Policy(model, lr=1e-6, steps=100, kl_coef=0.0, micro_tokens=args.micro_tokens)
    if args.check:
        policy.optimizer.step = lambda: None
        policy.max_grad_norm, kept = 1e30, {}
        policy.publish = lambda: kept.update({n: p.grad.clone() for n, p in model.named_parameters()})
        return policy.step([groups])[0].loss, kept
    return lambda: policy.step([groups])


def theirs(args, groups: list[Group], dtype: torch.dtype):
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype, attn_implementation="sdpa").train()
    # transformers drops the gradient of the padding id's embedding, even where that id is a word of the text: SmolLM2
    # pads with <|im_end|>, which ends every turn of a prompt. Otherwise 3 % of its gradient is missing.
    model.get_input_embeddings().padding_idx = None
    params = list(model.parameters())
    masters = [p.detach().float() for p in params]
    optimizer = torch.optim.AdamW(masters, 1e-7, weight_decay=0.1, fused=True)
    rows = [(g.prompt, s.ids, a) for g in groups for s, a in zip(g.samples, g.advantages, strict=True)]
    tokens = sum(len(reply) for _, reply, _ in rows)

    def gradient() -> float:
        total = 0.0
        for start in range(0, len(rows), args.peer_rows):
            part = rows[start:start + args.peer_rows]
            width = max(len(p) + len(r) for p, r, _ in part)
            ids = torch.tensor([[*p, *r, *[0] * (width - len(p) - len(r))] for p, r, _ in part])
            places = torch.arange(1, width)
            mask = torch.stack([(places >= len(p)) & (places < len(p) + len(r)) for p, r, _ in part])
            logp = model(ids).logits[:, :-1].float().log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
            advantages = torch.tensor([a for _, _, a in part])
            loss, _ = grpo_loss(logp, logp.detach(), None, advantages, mask, kl_coef=0.0, total_tokens=tokens)
            loss.backward()
            total += loss.item()
        return total

    def step() -> None:
        gradient()
        for p, master in zip(params, masters, strict=True):
            master.grad, p.grad = p.grad.float(), None
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        with torch.no_grad():
            for p, master in zip(params, masters, strict=True):
                p.copy_(master)

    if args.check:
        return gradient(), {name: p.grad for name, p in model.named_parameters()}
    return step


def side(args) -> None:
    """One side in this process: seconds of each run and peak memory, or loss and gradients, to args.result."""
    torch.set_num_threads(args.threads)
    run = ours if args.side == "ours" else theirs
    if args.check:
        return torch.save(run(args, minibatch(args.model, 1, CHECK_REPLIES), torch.float32), args.result)
    step, times = run(args, minibatch(args.model, 4), torch.bfloat16), []
    for _ in range(args.runs_here):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    Path(args.result).write_text(json.dumps([times, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))


def check(loss: float, grads: dict, peer_loss: float, peer_grads: dict) -> None:
    """Print how far both sides are apart; exit with 1 if a loss or a tensor's gradient differs by more than LIMIT."""
    gaps = {name: ((grads[name] - g).norm() / g.norm()).item() for name, g in peer_grads.items()}
    worst = max(gaps, key=gaps.get)
    whole, apart = (torch.stack([g.norm() for g in found]).norm()
                    for found in (peer_grads.values(), [grads[name] - g for name, g in peer_grads.items()]))
    print(f"float32, {CHECK_REPLIES} replies: losses {loss:.7f} and {peer_loss:.7f}; gradients of all weights together "
          f"differ by {apart / whole:.1e} of their norm, those of one tensor by at most {gaps[worst]:.1e} ({worst})")
    if set(grads) != set(gaps) or not max(gaps[worst], abs(loss / peer_loss - 1)) < LIMIT:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
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
                command = [sys.executable, __file__, *sys.argv[1:], "--side", name, "--result", result]
                subprocess.run(command, check=True)
                results[name].append(torch.load(result) if args.check else json.loads(Path(result).read_text()))
    if args.check:
        return check(*results["ours"][0], *results["theirs"][0])
    groups = minibatch(args.model, 4)
    tokens = sum(len(g.prompt) + len(s.ids) for g in groups for s in g.samples)
    seconds = {name: statistics.median(t for times, _ in found for t in times) for name, found in results.items()}
    peak = {name: max(bytes for _, bytes in found) for name, found in results.items()}
    for name in results:
        print(f"{name:7} {seconds[name]:6.1f} s, {tokens / seconds[name]:5.0f} tok/s (prompt counted for every reply), "
              f"peak {peak[name] / 2**30:.2f} GiB")
    ratio = seconds["theirs"] / seconds["ours"]
    print(f"speed {ratio:.2f} times, memory {peak['ours'] / peak['theirs']:.2f} of the peer's")


if __name__ == "__main__":
    main()
