"""The sign of learning, on a real checkpoint: one step towards the rewarded reply, and away from it when exchanged.

The embedded coder by default; CODEA1_MODEL names another checkpoint folder.
"""

import os
from pathlib import Path

import pytest
import torch

import codea1
from grpo import Group, Policy, group_advantages
from model import Qwen2, Sample, Tokenizer, generate
from tasks import coder_messages, load_questions

ROOT = Path(codea1.__file__).parent


def log_prob(model: Qwen2, prompt: list[int], sample: Sample, vocab_size: int) -> float:
    """Sum of the log-probs of a reply's tokens, by one plain forward pass."""
    ids = torch.tensor([prompt + list(sample.ids)])
    with torch.no_grad():
        logits = model(ids)[0, len(prompt) - 1:-1, :vocab_size].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(sample.ids)[:, None]).sum().item()


@pytest.mark.parametrize("rewards", [(1.0, 0.0), (0.0, 1.0)])
def test_one_step_moves_towards_the_rewarded_reply(rewards):
    folder = os.environ.get("CODEA1_MODEL", ROOT / "tiny/coder")
    style = "instruct" if "CODEA1_MODEL" in os.environ else "plain"
    model, tokenizer = Qwen2.from_pretrained(folder), Tokenizer.from_pretrained(folder)
    question = load_questions(ROOT / "tiny/tune.jsonl.gz")[0]
    prompt = tokenizer.encode_chat(coder_messages(question, style))
    size = len(tokenizer)
    samples = generate(model, [prompt], n=8, max_new_tokens=48, eos_ids=tokenizer.eos_ids, vocab_size=size, seed=1)[0]
    pair = list({s.ids: s for s in samples}.values())[:2]
    assert len(pair) == 2
    advantages = group_advantages(torch.tensor([rewards]))[0].tolist()
    policy = Policy(model, lr=1e-5, steps=2, warmup=0, vocab_size=size)
    before = [log_prob(model, prompt, s, size) for s in pair]
    policy.step([[Group(tuple(prompt), tuple(pair), tuple(advantages))]])
    after = [log_prob(model, prompt, s, size) for s in pair]
    change = (after[0] - after[1]) - (before[0] - before[1])
    print(f"rewards {rewards}: log p(first) - log p(second) {before[0] - before[1]:.4f} -> {after[0] - after[1]:.4f}")
    assert change > 0 if rewards[0] > rewards[1] else change < 0
