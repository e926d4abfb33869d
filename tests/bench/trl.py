"""One GRPO step, sampling included, against TRL's GRPOTrainer: 4 prompts x 8 samples x 96 tokens, batch of 32, k3 KL.

    python -m venv trl && trl/bin/pip install torch safetensors tokenizers transformers accelerate datasets trl==1.16.0
    CODEA1_DATA=data trl/bin/python tests/bench/trl.py --model SmolLM2-135M

Both sides sample at temperature 1, score with the same length-free reward (the share of even token ids), measure KL to
the start model and take one AdamW step in bfloat16 compute. Ours writes 96 tokens for every reply; TRL insists on the
tokenizer's end id, so some of its replies are shorter. A process of its own for each side and run, in turn; the time is
that of the step (loading left out), the memory the process' resident maximum.
"""

import argparse
import gzip
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path = [p for p in sys.path if Path(p or ".").resolve() != FOLDER]  # this file is not the package trl
sys.path.insert(0, str(FOLDER.parents[1]))

import torch  # noqa: E402

KL, LR, TOKENS, GROUP = 0.001, 1e-6, 96, 8


def texts() -> list[str]:
    with gzip.open(Path(os.environ["CODEA1_DATA"]) / "MbppPlus.jsonl.gz", "rt") as file:
        return [json.loads(line)["prompt"] for line in file][:4]


def reward(ids) -> float:
    return sum(1 for i in ids if i % 2 == 0) / len(ids)


def ours(path: str) -> float:
    from grpo import Group, Policy, group_advantages
    from model import Qwen2, Tokenizer, generate

    tokenizer = Tokenizer.from_pretrained(path)
    model = Qwen2.from_pretrained(path, dtype=torch.bfloat16)
    policy = Policy(model, lr=LR, steps=100, kl_coef=KL, vocab_size=len(tokenizer), micro_tokens=2048)
    prompts = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in texts()]
    start = time.perf_counter()
    groups = generate(model, prompts, GROUP, TOKENS, vocab_size=len(tokenizer))
    advantages = group_advantages([[reward(s.ids) for s in group] for group in groups]).tolist()
    batch = [Group(tuple(p), tuple(g), tuple(a)) for p, g, a in zip(prompts, groups, advantages, strict=True)]
    (stats,) = policy.step([batch])
    seconds = time.perf_counter() - start
    assert stats.tokens == 4 * GROUP * TOKENS and not stats.skipped
    return seconds


def theirs(path: str) -> float:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, attn_implementation="sdpa")
    model.generation_config.eos_token_id = None
    tokenizer = AutoTokenizer.from_pretrained(path)
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in texts()])
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=4 * GROUP, num_generations=GROUP,
            max_completion_length=TOKENS, max_steps=1, learning_rate=LR, beta=KL, temperature=1.0, top_k=0, top_p=1.0,
            use_cpu=True, bf16=True, gradient_checkpointing=False, report_to=[], save_strategy="no", logging_steps=1,
            disable_tqdm=True)
        trainer = GRPOTrainer(model=model, args=config, train_dataset=data, processing_class=tokenizer,
                              reward_funcs=lambda completion_ids, **_: [reward(ids) for ids in completion_ids])
        start = time.perf_counter()
        trainer.train()
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--side", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.side:
        seconds = (ours if args.side == "ours" else theirs)(args.model)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Path(args.result).write_text(json.dumps([seconds, peak]))
    results: dict[str, list] = {"ours": [], "theirs": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.runs):
            for name in results:
                result = f"{folder}/{name}"
                command = [sys.executable, __file__, *sys.argv[1:], "--side", name, "--result", result]
                subprocess.run(command, check=True)
                results[name].append(json.loads(Path(result).read_text()))
    seconds = {name: statistics.median(t for t, _ in found) for name, found in results.items()}
    peak = {name: max(m for _, m in found) for name, found in results.items()}
    for name in results:
        print(f"{name:7} {seconds[name]:6.1f} s a step, peak {peak[name] / 2**30:.2f} GiB")
    ratio = seconds["theirs"] / seconds["ours"]
    print(f"speed {ratio:.2f} times, memory {peak['ours'] / peak['theirs']:.2f} of the peer's")


if __name__ == "__main__":
    main()
