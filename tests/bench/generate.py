"""Sampling against transformers' `generate`: the same prompts, tokens, type and threads, in turn.

    CODEA1_DATA=data python tests/bench/generate.py --model SmolLM2-135M
    ... --loads group --runs 5     only one of the loads: group, single, tail
    ... --dtype float32            for a CPU that does not multiply bfloat16 itself
    ... --device cuda              tokens per second and share of the bandwidth, without the peer

Loads: `group` 4 prompts x 8 samples x 96 tokens; `single` 32 prompts x 1 x 96; `tail` 128 prompts
through 32 slots with limits drawn from 16 to 512 (the peer: static batches of 32 in the same order,
each up to its longest limit; one run, as it takes minutes). No end id stops a row, so both sides do
the same work. Prompts are MBPP+'s. The peer runs in the same type with SDPA in inference mode, on
as many threads. About 9 minutes on two cores, 3 without `tail`.
"""

import argparse
import gzip
import json
import os
import random
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from model import Qwen2, Tokenizer, generate  # noqa: E402

TAIL_SEED = 0


def loads(tokenizer: Tokenizer, scale: float) -> dict[str, tuple[list[list[int]], int, list[int]]]:
    """name -> (prompts, samples of each, limit of each prompt)."""
    with gzip.open(Path(os.environ["CODEA1_DATA"]) / "MbppPlus.jsonl.gz", "rt") as file:
        texts = [json.loads(line)["prompt"] for line in file][:128]
    prompts = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in texts]
    draw = random.Random(TAIL_SEED)
    limits = [draw.randint(16, int(512 * scale)) for _ in prompts]
    group, single = (prompts[:4], 8, [96] * 4), (prompts[:32], 1, [96] * 32)
    return {"group": group, "single": single, "tail": (prompts, 1, limits)}


def sample_ours(model: Qwen2, size: int, load: tuple, graphs: bool) -> float:
    """Seconds of one run."""
    prompts, n, limits = load
    start = time.perf_counter()
    found = generate(model, prompts, n, limits, vocab_size=size, slots=32, cuda_graphs=graphs)
    seconds = time.perf_counter() - start
    assert sum(len(s.ids) for group in found for s in group) == n * sum(limits)
    return seconds


@torch.inference_mode()
def sample_theirs(model, load: tuple) -> float:
    """Seconds of one run in static, left-padded batches of 32 rows."""
    prompts, n, limits = load
    rows = 32 // n
    start = time.perf_counter()
    for i in range(0, len(prompts), rows):
        batch, longest = prompts[i:i + rows], max(limits[i:i + rows])
        width = max(map(len, batch))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in batch])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in batch])
        out = model.generate(ids, attention_mask=mask, max_new_tokens=longest, do_sample=True,
                             temperature=1.0, top_k=0, top_p=1.0, num_return_sequences=n,
                             eos_token_id=None, pad_token_id=0)
        assert out.shape == (len(batch) * n, width + longest)
    return time.perf_counter() - start


def load_theirs(path: str, dtype: torch.dtype):
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa")
    model.eval().generation_config.eos_token_id = None
    return model


def bandwidth(device: str) -> float:
    """Bytes per second that a large copy reads and writes."""
    source = torch.empty(1 << 27, dtype=torch.uint8, device=device)
    target, best = torch.empty_like(source), float("inf")
    for _ in range(8):
        start = time.perf_counter()
        target.copy_(source)
        if device != "cpu":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * source.numel() / best


def main() -> None:
    names = ["group", "single", "tail"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--loads", nargs="+", default=names, choices=names)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tail-runs", type=int, default=1)
    parser.add_argument("--tail-scale", type=float, default=1.0, help="of the tail load's limits")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.dtype)
    tokenizer = Tokenizer.from_pretrained(args.model)
    ours = Qwen2.from_pretrained(args.model, dtype=dtype, device=args.device)
    theirs = load_theirs(args.model, dtype) if args.device == "cpu" else None
    speed, peer = bandwidth(args.device), version("transformers") if theirs else "(not run)"
    print(f"{args.dtype}, {args.threads} threads, copy bandwidth {speed / 1e9:.1f} GB/s; "
          f"peer: transformers {peer}, same type, sdpa, inference mode, as many threads")
    for name in args.loads:
        load, times, peer_times = loads(tokenizer, args.tail_scale)[name], [], []
        for _ in range(args.tail_runs if name == "tail" else args.runs):
            times.append(sample_ours(ours, len(tokenizer), load, args.device != "cpu"))
            if theirs:
                peer_times.append(sample_theirs(theirs, load))
        report(name, load, times, peer_times, ours, speed)


def report(
    name: str, load: tuple, times: list, peer_times: list, model: Qwen2, speed: float
) -> None:
    """Print medians, and which share of the limit that a copy's bandwidth sets they reach."""
    (prompts, n, limits), c, bytes_each = load, model.config, model.head.element_size()
    tokens, seconds = n * sum(limits), statistics.median(times)
    steps = tokens / min(32, n * len(prompts))  # decode steps if every slot were always in use
    lengths = [len(p) + limit / 2 for p, limit in zip(prompts, limits, strict=True)]
    weights = sum(p.numel() for p in model.parameters()) * bytes_each
    values = 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim  # of a token
    cache = 32 * statistics.mean(lengths) * values * bytes_each
    limit = (weights + cache) / speed
    print(f"{name:6} ours {seconds:6.1f} s {tokens / seconds:6.0f} tok/s, "
          f"{1e3 * seconds / steps:5.1f} ms a step of 32; weights {weights / 1e6:.0f} MB + cache "
          f"{cache / 1e6:.0f} MB a step are {1e3 * limit:.1f} ms at copy bandwidth: "
          f"{limit * steps / seconds:.0%} of the limit")
    if peer_times:
        peer = statistics.median(peer_times)
        ratios = [f"{b / a:.2f}" for a, b in zip(times, peer_times, strict=True)]
        print(f"       peer {peer:6.1f} s {tokens / peer:6.0f} tok/s; ratio {peer / seconds:.2f} "
              f"(runs {', '.join(ratios)})", flush=True)


if __name__ == "__main__":
    main()
