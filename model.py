"""Qwen2 transformer, ChatML tokenizer and sampler: everything Code-A1 needs of a language model.

It reads and writes Hugging Face checkpoint folders (Qwen2.5-Coder 0.5B to 7B) and implements exactly what those models
use: RoPE in half rotation, RMSNorm, grouped key/value heads, SwiGLU, biases on q, k and v. What a checkpoint asks for
beyond that is refused by name.

    model = Qwen2.from_pretrained("Qwen2.5-Coder-1.5B-Instruct", dtype=torch.bfloat16, device="cuda")
    tokenizer = Tokenizer.from_pretrained("Qwen2.5-Coder-1.5B-Instruct")
    prompt = tokenizer.encode_chat([{"role": "user", "content": "Write is_even(n)."}])
    samples = generate(model, [prompt], n=8, eos_ids=tokenizer.eos_ids, vocab_size=len(tokenizer))

Letters: B batch, T tokens, H query heads, K key/value heads, D head size, V vocabulary; S slots, C cache columns.
"""

import copy
import json
import math
import re
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass
class Config:
    """The names of config.json. `extra` keeps every other key, so that a saved folder says what the loaded one said."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 0  # 0: hidden_size / num_attention_heads
    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    eos_token_id: int | list[int] | None = None
    extra: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(f"{self.num_attention_heads} query heads cannot share {self.num_key_value_heads} kv heads")

    @classmethod
    def from_dict(cls, raw: dict) -> "Config":
        """config.json's object -> Config. ValueError names what this model does not implement, or a missing key."""
        rope = (raw.get("rope_scaling") or {}) | (raw.get("rope_parameters") or {})
        bases = {found.get("rope_theta") for found in (raw, rope)} - {None}
        plain = {"model_type": "qwen2", "hidden_act": "silu", "use_sliding_window": False, "attention_dropout": 0.0}
        wrong = {f"{name} {raw.get(name)!r}": (raw.get(name) or value) != value for name, value in plain.items()} | {
            "layer_types with sliding_attention": "sliding_attention" in (raw.get("layer_types") or []),
            f"RoPE scaling {rope}": rope.get("rope_type", rope.get("type", "default")) != "default",
            f"partial_rotary_factor in {rope}": rope.get("partial_rotary_factor", 1.0) != 1.0,
            f"config.json with two RoPE bases {bases}": len(bases) > 1,
        }
        if found := [name for name, is_so in wrong.items() if is_so]:
            raise ValueError(f"{'; '.join(found)}: not supported by this plain qwen2 model")
        names = [f.name for f in fields(cls) if f.name != "extra"]
        known = {k: v for k, v in [*rope.items(), *raw.items()] if k in names and v is not None}  # RoPE's base: either
        known.setdefault("num_key_value_heads", known.get("num_attention_heads"))
        if missing := [name for name in names[:6] if known.get(name) is None]:
            raise ValueError(f"config.json lacks {', '.join(missing)}")
        return cls(**known, extra={k: v for k, v in raw.items() if k not in names})

    def to_dict(self) -> dict:
        """The object for config.json, with the RoPE base in both places where readers look for it."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "extra"}
        fixed = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu"}
        return fixed | self.extra | own | {"rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta}}


# ---------------------------------------------------------------- transformer
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # (layer, q (B, T, H, D), k and v (B, T, K, D)): who sees whom


def attention(layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Causal inside each row (so padding on the right needs no mask), or what a mask (B, 1, T, keys) lets be seen."""
    if mask is not None and q.is_cuda:  # no fused kernel takes a mask and heads that share keys
        k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=True).transpose(1, 2)


def rope_table(positions: Tensor, config: Config, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(B, T) positions -> cos and sin (B, T, 1, D), the first half of sin negated; computed in float32."""
    half = torch.arange(0, config.head_dim, 2, device=positions.device, dtype=torch.float32) / config.head_dim
    angles = positions[:, :, None, None].float() * config.rope_theta**-half  # (B, T, 1, D/2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE in half rotation: the pairs are (i, i + D/2)."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


class RMSNorm(nn.RMSNorm):
    """Computes in float32 and keeps half of what the library's keeps for the backward pass: no float32 copy of x."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_inference_mode_enabled():
            return super().forward(x)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return (x * (norm.square() / x.shape[-1] + self.eps).rsqrt()).to(x.dtype) * self.weight


class Layer(nn.Module):
    """One transformer layer; the two inner dictionaries only give its weights their checkpoint names."""
    def __init__(self, c: Config):
        super().__init__()
        size, inner, width = c.hidden_size, c.intermediate_size, c.num_attention_heads * c.head_dim
        self.head_dim, self.kv_heads, kv_width = c.head_dim, c.num_key_value_heads, c.num_key_value_heads * c.head_dim
        self.input_layernorm = RMSNorm(size, c.rms_norm_eps)
        self.self_attn = nn.ModuleDict({
            "q_proj": nn.Linear(size, width), "k_proj": nn.Linear(size, kv_width),
            "v_proj": nn.Linear(size, kv_width), "o_proj": nn.Linear(width, size, bias=False)})
        self.post_attention_layernorm = RMSNorm(size, c.rms_norm_eps)
        self.mlp = nn.ModuleDict({
            "gate_proj": nn.Linear(size, inner, bias=False), "up_proj": nn.Linear(size, inner, bias=False),
            "down_proj": nn.Linear(inner, size, bias=False)})

    def qkv(self, h: Tensor) -> Tensor:
        """(B, T, hidden) -> (B, T, (H + 2 K) D): queries, keys and values side by side."""
        a = self.self_attn
        return torch.cat((a.q_proj(h), a.k_proj(h), a.v_proj(h)), -1)

    def add_attention(self, x: Tensor, out: Tensor) -> Tensor:
        return x + self.self_attn.o_proj(out)

    def add_mlp(self, x: Tensor, h: Tensor) -> Tensor:
        return x + self.mlp.down_proj(F.silu(self.mlp.gate_proj(h)) * self.mlp.up_proj(h))

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend, layer: int) -> Tensor:
        heads, k = self.qkv(self.input_layernorm(x)).unflatten(-1, (-1, self.head_dim)), self.kv_heads
        qk, v = rotate(heads[:, :, :-k], *rope), heads[:, :, -k:]  # (B, T, H + K, D), (B, T, K, D)
        x = self.add_attention(x, attend(layer, qk[:, :, :-k], qk[:, :, -k:], v).flatten(2))
        return self.add_mlp(x, self.post_attention_layernorm(x))


class Qwen2(nn.Module):
    """The causal language model. `Qwen2(config)` starts from random weights (torch's global generator)."""
    def __init__(self, config: Config):
        super().__init__()
        self.config, self.generation_config = config, {"eos_token_id": config.eos_token_id}  # or a loaded folder's own
        self.model = nn.ModuleDict({
            "embed_tokens": nn.Embedding(config.vocab_size, config.hidden_size),
            "layers": nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers)),
            "norm": RMSNorm(config.hidden_size, config.rms_norm_eps)})
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(weight)
            elif "norm" not in name:
                nn.init.normal_(weight, std=config.initializer_range)

    @property
    def head(self) -> Tensor:
        """(V, hidden) output matrix; with tied weights it is the embedding itself."""
        return self.model.embed_tokens.weight if self.config.tie_word_embeddings else self.lm_head.weight

    def hidden(self, ids: Tensor, positions: Tensor | None = None, attend: Attend = attention,
               checkpointing: bool = False, layers: Sequence[Layer] | None = None) -> Tensor:
        """(B, T) ids -> (B, T, hidden) states after the final norm. checkpointing: keep only each layer's input."""
        positions = torch.arange(ids.shape[1], device=ids.device)[None] if positions is None else positions
        x = self.model.embed_tokens(ids)
        rope = rope_table(positions, self.config, x.dtype)
        for i, layer in enumerate(layers or self.model.layers):
            run = partial(checkpoint, layer, use_reentrant=False, preserve_rng_state=False) if checkpointing else layer
            x = run(x, rope, attend, i)
        return self.model.norm(x)

    def forward(self, input_ids: Tensor) -> Tensor:
        """(B, T) ids -> (B, T, V) logits. Rows may be padded on the right with any id."""
        return F.linear(self.hidden(input_ids), self.head)

    @classmethod
    def from_pretrained(cls, path: str | Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> "Qwen2":
        """Read a Hugging Face folder: one safetensors file, or shards with an index. ValueError names what is wrong."""
        path = Path(path)
        config = Config.from_dict(read_json(path / "config.json"))
        with torch.device("meta"):
            model = cls(config)
        found = read_weights(path, dtype, device)
        if config.tie_word_embeddings and "lm_head.weight" in found:
            if not torch.equal(found.pop("lm_head.weight"), found.get("model.embed_tokens.weight", torch.empty(0))):
                raise ValueError(f"{path}: lm_head.weight differs from model.embed_tokens.weight, yet they are tied")
        try:
            model.load_state_dict(found, assign=True)
        except RuntimeError as error:  # names what is missing, unexpected or of another shape
            raise ValueError(f"{path}: {error}") from error
        if (path / "generation_config.json").exists():
            model.generation_config = read_json(path / "generation_config.json")
        return model.requires_grad_(True)

    def save_pretrained(self, path: str | Path, dtype: torch.dtype | None = None) -> None:
        """Write config.json, generation_config.json and model.safetensors (in dtype, default the model's own)."""
        path, dtype = Path(path), dtype or self.head.dtype
        path.mkdir(parents=True, exist_ok=True)
        config = self.config.to_dict() | dict.fromkeys(("dtype", "torch_dtype"), str(dtype).removeprefix("torch."))
        for file, value in (("config.json", config), ("generation_config.json", self.generation_config)):
            (path / file).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        weights = {k: v.detach().to("cpu", dtype).contiguous() for k, v in self.state_dict().items()}
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})


def read_json(path: Path) -> dict:
    if not path.exists():
        raise ValueError(f"{path} is missing: a checkpoint folder in Hugging Face layout has one")
    return json.loads(path.read_text(encoding="utf-8"))


def read_weights(path: Path, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """All tensors of a checkpoint folder, by name, as own copies (never views of the file)."""
    whole, found = "model.safetensors", {}
    index = {} if (path / whole).exists() else read_json(path / f"{whole}.index.json")["weight_map"]  # tensor -> shard
    for shard in sorted(set(index.values())) or [whole]:
        if not (path / shard).exists():
            held = ", ".join(tensor for tensor, file in index.items() if file == shard)
            raise ValueError(f"{path}: {shard} is missing; it holds {held}")
        with safe_open(path / shard, framework="pt", device=str(device)) as file:
            found |= {name: file.get_tensor(name).to(dtype, copy=True) for name in file.keys()}
    return found


# ---------------------------------------------------------------- tokenizer
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json",
                   "added_tokens.json", "vocab.json", "merges.txt")


class Tokenizer:
    """Text to ids and back, and the ChatML frame. Control words of a message's own text stay text, never become ids."""
    def __init__(self, path: Path):
        raw, self.path = read_json(path / "tokenizer.json"), path
        for added in raw["added_tokens"]:  # some tokenizers add runs of spaces: those are ordinary text
            added["special"] = added["special"] or re.fullmatch(r"<.+>", added["content"]) is not None
        control = {added["content"]: added["id"] for added in raw["added_tokens"] if added["special"]}
        self.fast = FastTokenizer.from_str(json.dumps(raw))
        self.fast.encode_special_tokens = True  # as the characters they are
        self.control_ids = frozenset(control.values())
        self.default_system = default_system(path)
        if not {"<|im_start|>", "<|im_end|>"} <= set(control):
            raise ValueError(f"{path}: the tokenizer lacks <|im_start|> or <|im_end|>, which the ChatML frame needs")
        self.start, self.end = control["<|im_start|>"], control["<|im_end|>"]
        files = [path / name for name in ("generation_config.json", "config.json") if (path / name).exists()]
        found = [read_json(file).get("eos_token_id") for file in files]  # each an id, a list of ids, or nothing
        ends = [i for ids in found for i in (ids if isinstance(ids, list) else [ids]) if i is not None]
        self.eos_ids = tuple(dict.fromkeys([*ends, self.end]))  # every id that ends a reply

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "Tokenizer":
        """Read tokenizer.json and the chat template of a folder. ValueError if the template is not ChatML."""
        return cls(Path(path))

    def save_pretrained(self, path: str | Path) -> None:
        """Copy the tokenizer's files unchanged."""
        Path(path).mkdir(parents=True, exist_ok=True)
        for name in TOKENIZER_FILES:
            if (self.path / name).exists() and Path(path).resolve() != self.path.resolve():
                shutil.copyfile(self.path / name, Path(path) / name)

    def __len__(self) -> int:
        """Ids in use: the largest plus one. Rows of the model from here up are padding."""
        return max(self.fast.get_vocab().values()) + 1

    def encode(self, text: str) -> list[int]:
        """Plain text -> ids, without any control id."""
        return self.fast.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Ids -> text; control ids and padding rows are skipped."""
        return self.fast.decode([i for i in ids if i not in self.control_ids], skip_special_tokens=False)

    def encode_chat(self, messages: list[dict]) -> list[int]:
        """[{"role", "content"}, ...] -> ids, byte for byte the family's template, open for the assistant's reply."""
        if not messages or any(m["role"] not in ("system", "user", "assistant") for m in messages):
            raise ValueError(f"a chat is one message or more with roles system, user, assistant; got {messages!r:.200}")
        if messages[0]["role"] != "system" and self.default_system is not None:
            messages = [{"role": "system", "content": self.default_system}, *messages]
        turns = [[self.start, *self.encode(f"{m['role']}\n{m['content']}"), self.end] for m in messages]
        newline = self.encode("\n")
        return [i for turn in turns for i in (*turn, *newline)] + [self.start, *self.encode("assistant\n")]


def default_system(path: Path) -> str | None:
    """The system text that a folder's template puts first where there is none. ValueError if it is not ChatML's."""
    if (path / "chat_template.jinja").exists():
        template = (path / "chat_template.jinja").read_text(encoding="utf-8")
    else:
        template = read_json(path / "tokenizer_config.json").get("chat_template") or ""
    if isinstance(template, list):  # older files: [{"name": "default", "template": "..."}, ...]
        template = {entry["name"]: entry["template"] for entry in template}.get("default", "")
    line = r"(?:\\n|\n)"
    join = r"""(?:['"]\s*\+\s*['"]|['"]?\s*\+\s*['"]?|\s*-?\}\}|\{\{-?\s*)?"""  # between literal and name
    role, content = (rf"""\w+(?:\.{name}|\[['"]{name}['"]\])""" for name in ("role", "content"))
    turn = join.join((r"<\|im_start\|>", role, line, content, r"<\|im_end\|>", line))
    turns = re.search(turn, template) and re.search(rf"<\|im_start\|>assistant{line}", template)
    if not turns or "bos_token" in template:
        raise ValueError(f"{path}: there is no chat template, or another than that of ChatML, the only one supported")
    found = re.search(rf"""(?s)<\|im_start\|>system{line}((?:(?!['"]\s*\+|\{{\{{|<\|im_).)*)<\|im_end\|>""", template)
    return re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), found[1], flags=re.DOTALL) if found else None


# ---------------------------------------------------------------- sampling
PREFILL_TOKENS = 4096  # of prompts that run through the model together
CHECK_EVERY = 4  # decode steps between two looks at which rows have ended
SHRINK_AT = 0.75  # share in use under which slots (once none waits) and columns of the cache are dropped


@dataclass(frozen=True)
class Sample:
    """One reply. logprobs: of each id, log-softmax at the temperature (T 0: at T 1) over the unmasked vocabulary."""

    ids: tuple[int, ...]  # with the end id, if one was sampled
    logprobs: tuple[float, ...]
    finished: bool  # an end id was sampled; False: cut by max_new_tokens


def mix(x: Tensor) -> Tensor:
    """A bijection of int64 that scatters its bits (Stafford's variant 13 of the murmur3 finaliser)."""
    x = (x ^ (x >> 30 & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    x = (x ^ (x >> 27 & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return x ^ (x >> 31 & 0x1FFFFFFFF)


def row_keys(seed: int, prompts: Tensor, samples: Tensor) -> Tensor:
    """int64 keys of random streams, functions of seed, prompt index and sample index alone."""
    return mix(mix(mix(torch.tensor(seed % 2**63)) + prompts + 1) + samples + 1)


def uniforms(keys: Tensor, positions: Tensor) -> Tensor:
    """Counter-based float32 uniforms in [0, 1 - 2**-23]: one per (row key, position of the token in its reply)."""
    return (mix(keys + mix(positions + 1)) >> 41 & 0x7FFFFF).float() * 2.0**-23


def choose(logits: Tensor, u: Tensor, temperature: float, top_p: float = 1.0, top_k: int = 0) -> tuple[Tensor, Tensor]:
    """(B, V) logits and (B,) uniforms -> ids (B,) and their log-probs (B,), by inverse CDF in float32.

    top_k keeps the k likeliest ids, top_p the fewest whose probability reaches it. Log-probs are over the whole row.
    """
    if temperature not in (0, 1):
        logits = (logits.float() - logits.amax(-1, keepdim=True)) / temperature
    probs = logits.softmax(-1, dtype=torch.float32)
    if temperature == 0:
        ids = probs.argmax(-1, keepdim=True)
    elif top_k or top_p < 1:
        values, order = probs.topk(min(top_k or probs.shape[-1], probs.shape[-1]), dim=-1)
        values /= values.sum(-1, keepdim=True)
        before = values.cumsum(-1) - values
        keep = before < top_p - 1e-6  # float32 sums of a boundary that is hit exactly land on either side of it
        keep[:, 0] = True
        ids = order.gather(-1, draw(values * keep, u))
    else:
        ids = draw(probs, u)
    return ids[:, 0], probs.gather(-1, ids).log()[:, 0]


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """(B, V) weights, (B,) uniforms -> (B, 1) first index whose cumulated weight exceeds u times the sum."""
    cdf = weights.cumsum(-1)
    return torch.searchsorted(cdf, u[:, None] * cdf[:, -1:], right=True).clamp_(max=cdf.shape[-1] - 1)


def generate(
    model: Qwen2, prompts: Sequence[Sequence[int]], n: int = 1, max_new_tokens: int | Sequence[int] = 256,
    temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, eos_ids: Sequence[int] = (),
    vocab_size: int | None = None, seed: int = 0, on_group: Callable[[int, list[Sample]], None] | None = None,
    cache_bytes: int | None = None, slots: int | None = None, cuda_graphs: bool = False,
) -> list[list[Sample]]:
    """n replies to each prompt. A row's ids depend on seed, prompt index and sample index alone.

    max_new_tokens: one limit, or one per prompt. Ids from vocab_size up are never sampled. on_group(prompt index,
    samples) is called as soon as a prompt's n samples are finished. slots: replies decoded at a time, default as many
    as cache_bytes (default half of what is free on a GPU, else 2 GiB) hold at full length, at least one. cuda_graphs:
    replay a step's kernels, not launch them one by one.
    """
    prompts = [list(map(int, prompt)) for prompt in prompts]
    limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    wrong = {
        f"temperature must be a finite number >= 0, got {temperature}": not 0 <= temperature < math.inf,
        f"top_p must be in (0, 1], got {top_p}": not 0 < top_p <= 1,
        f"top_k must be >= 0 and n >= 1, got {top_k} and {n}": top_k < 0 or n < 1,
        "max_new_tokens must be >= 1, for all or for each": len(limits) != len(prompts) or min(limits, default=1) < 1,
        "a prompt is empty: there is nothing to continue": not all(map(len, prompts)),
    }
    if found := [message for message, is_so in wrong.items() if is_so]:
        raise ValueError("; ".join(found))
    if not prompts:
        return []
    results: list[list] = [[None] * n for _ in prompts]
    c, longest = model.config, max(len(p) + limit for p, limit in zip(prompts, limits, strict=True))
    row_bytes = longest * 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * model.head.element_size()
    slots = slots or max((cache_bytes or cache_room(model.head.device)) // row_bytes, 1)
    with torch.inference_mode():
        sampler = Sampler(model, *laid_out(model, vocab_size or c.vocab_size), prompts, n, limits, slots, seed,
                          (temperature, top_p, top_k), eos_ids, cuda_graphs)
        while sampler.waiting or any(sampler.rows):
            sampler.refill()
            sampler.decode(CHECK_EVERY)
            for prompt, sample, reply in sampler.collect():
                results[prompt][sample] = reply
                if on_group and None not in results[prompt]:
                    on_group(prompt, results[prompt])
    return results


def cache_room(device: torch.device) -> int:
    """Bytes for keys and values where no other number is given."""
    if device.type != "cuda":
        return 2 << 30
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return (torch.cuda.mem_get_info(device)[0] + idle) // 2


def laid_out(model: Qwen2, vocab_size: int) -> tuple[Sequence[Layer], Callable[[Tensor], Tensor]]:
    """A model's layers, and states -> logits of the first vocab_size ids, as sampling runs them.

    On a CPU they are copies that share the norms: every matrix laid out once for the CPU's library, those of q, k and v
    as one, and what follows a product (SiLU, times, plus) done inside it.
    """
    head, layers = model.head[:vocab_size], model.model.layers
    useful = head.device.type == "cpu" and torch.backends.mkldnn.is_available()
    if not useful or head.dtype != torch.float32 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return layers, lambda states: F.linear(states, head)
    linear, pack = torch.ops.mkldnn._linear_pointwise, torch.ops.mkldnn._reorder_linear_weight

    def lay_out(layer: Layer) -> Layer:
        a, m, layer = layer.self_attn, layer.mlp, copy.copy(layer)
        wide = (a.q_proj, a.k_proj, a.v_proj)
        qkv, bias = pack(torch.cat([x.weight for x in wide]), None), torch.cat([x.bias for x in wide])
        o, gate, up, down = (pack(x.weight, None) for x in (a.o_proj, m.gate_proj, m.up_proj, m.down_proj))

        layer.qkv = lambda h: linear(h, qkv, bias, "none", [], "")
        layer.add_attention = lambda x, out: linear.binary(out, x, o, None, "add")
        layer.add_mlp = lambda x, h: linear.binary(
            linear.binary(h, linear(h, gate, None, "swish", [], ""), up, None, "mul"), x, down, None, "add")
        return layer
    return list(map(lay_out, layers)), partial(lambda w, h: linear(h, w, None, "none", [], ""), pack(head, None))


class Sampler:
    """One call of `generate`: S slots with a reply each, and the key/value cache that they share.

    `refill` puts waiting rows into free slots, `prefill` computes new prompts' keys and values, what they share once,
    `decode` adds tokens to all slots, each of its own length. A row starts by decoding its prompt's last token.
    """
    def __init__(self, model: Qwen2, layers: Sequence[Layer], logits_of: Callable, prompts: Sequence[Sequence[int]],
                 n: int, limits: list[int], slots: int, seed: int, choice: tuple[float, float, int],
                 eos_ids: Sequence[int], cuda_graphs: bool):
        self.model, self.layers, self.logits_of, self.prompts, self.limits = model, layers, logits_of, prompts, limits
        self.seed, self.choice, self.end_ids, self.cuda_graphs = seed, choice, set(eos_ids), cuda_graphs
        order = sorted(range(len(prompts)), key=lambda i: (-limits[i], -len(prompts[i])))  # no long row starts last
        self.waiting = deque((i, s) for i in order for s in range(n))
        self.rows: list[tuple[int, int] | None] = [None] * min(slots, len(self.waiting))  # (prompt, sample) in a slot
        self.latest: dict[int, list[Tensor]] = {}  # what prefill found of the prompt whose other rows may still wait
        size, c = len(self.rows), model.config
        with model.head.device:
            self.ends = torch.tensor(sorted(self.end_ids), dtype=torch.int64)
            self.done = torch.ones(size, dtype=torch.bool)
            # Random key, token to be decoded next, columns of the prompt before its last token, columns in use, limit.
            self.state = torch.zeros(5, size, dtype=torch.int64)
            longest = max(limits) + 1  # one more than a reply needs: a row that has ended writes there until collected
            self.ids, self.logprobs = torch.zeros(size, longest, dtype=torch.int64), torch.zeros(size, longest)
            empty = torch.zeros(2, size, c.num_key_value_heads, 0, c.head_dim, dtype=model.head.dtype)
        self.cache = [empty] * c.num_hidden_layers  # keys and values of each layer (2, S, K, C, D)
        self.graph: torch.cuda.CUDAGraph | None = None  # a step on the tensors above

    def refill(self) -> None:
        """Put waiting rows into the free slots."""
        slots, device = [i for i, row in enumerate(self.rows) if row is None][:len(self.waiting)], self.state.device
        if not slots:
            return
        taken: dict[int, list[int]] = {}  # prompt -> slots; the rows of a prompt wait one after the other
        starts = []
        for slot in slots:
            prompt, sample = self.rows[slot] = self.waiting.popleft()
            taken.setdefault(prompt, []).append(slot)
            starts.append((prompt, sample, (ids := self.prompts[prompt])[-1], len(ids) - 1, self.limits[prompt]))
        prompt, sample, token, first, limit = torch.tensor(starts).T
        self.state[:, slots] = torch.stack((row_keys(self.seed, prompt, sample), token, first, first, limit)).to(device)
        self.done[slots] = False
        self.fit(int(self.state[3].max()))
        last, size = int(prompt[-1]), max(PREFILL_TOKENS // int(first.max() + 1), 1)
        new = sorted(taken, key=lambda i: (i == last, i not in self.latest, self.prompts[i]))  # begun alike: together
        for wave in (new[i:i + size] for i in range(0, len(new), size)):
            known = self.latest | self.prefill([prompt for prompt in wave if prompt not in self.latest])
            for prompt in wave:
                for cache, found in zip(self.cache, known[prompt], strict=True):
                    cache[:, taken[prompt], :, :found.shape[2]] = found[:, None]
            self.latest = {wave[-1]: known[wave[-1]]}

    def prefill(self, prompts: list[int]) -> dict[int, list[Tensor]]:
        """Keys and values (2, K, T, D) of each layer, for each prompt less its last token. All run as one row."""
        ids, found = [self.prompts[prompt][:-1] for prompt in prompts], {prompt: [] for prompt in prompts}
        counts, device = list(map(len, ids)), self.state.device
        tree: dict[tuple[int, int], int] = {}  # (place of the id before, id) -> place in the row: once if begun alike
        places, firsts = [], []  # place of each token of all prompts, and for each place the first of these tokens
        for prompt in ids:
            place = -1
            for token in prompt:
                place = tree.setdefault((place, token), len(tree))
                firsts += [len(places)] if place == len(firsts) else []
                places.append(place)
        row, places, firsts = (torch.tensor(x).long().to(device) for x in ([i for _, i in tree], places, firsts))

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            parts = list(zip(*(x[:, places].split(counts, 1) for x in (q, k, v)), strict=True))
            for prompt, (_, keys, values) in zip(prompts, parts, strict=True):
                found[prompt].append(torch.cat((keys, values)).transpose(1, 2))
            out = [attention(layer, *part) if part[0].numel() else part[0] for part in parts]
            return torch.cat(out, 1)[:, firsts]
        if prompts:
            positions = torch.cat([torch.arange(n, device=device) for n in counts])[firsts]
            self.model.hidden(row[None], positions[None], attend, layers=self.layers)
        return found

    def decode(self, steps: int) -> None:
        """A few tokens more for every slot, without looking whether a row ends."""
        self.fit(int(self.state[3].max()) + steps)
        for _ in range(steps):
            (self.graph.replay if self.graph else self.step)()
            if self.cuda_graphs and not self.graph:
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph):  # recorded, not run
                    self.step()

    def step(self) -> None:
        """One token for every slot. Tensors only: nothing here waits for the device or asks about a row."""
        key, token, first, length, limit = self.state
        slots, columns = (torch.arange(n, device=length.device) for n in self.cache[0].shape[1:4:2])
        bias = torch.where(columns > length[:, None], -torch.inf, 0.0).to(self.cache[0].dtype)[:, None, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.cache[layer]
            keys[slots, :, length], values[slots, :, length] = k[:, 0], v[:, 0]
            return cached_attention(q, keys, values, bias)

        states = self.model.hidden(token[:, None], length[:, None], attend, layers=self.layers)
        count = length - first
        at_once = 16 if count.device.type == "cpu" else len(count)  # so few that their probabilities fit a CPU's cache
        parts = zip(*(x.split(at_once) for x in (self.logits_of(states[:, 0]), uniforms(key, count))), strict=True)
        ids, logprobs = map(torch.cat, zip(*(choose(*part, *self.choice) for part in parts), strict=True))
        token.copy_(ids)
        self.ids[slots, count], self.logprobs[slots, count] = ids, logprobs
        length += ~self.done
        self.done |= (ids[:, None] == self.ends).any(1) | (length - first >= limit)

    def collect(self) -> Iterator[tuple[int, int, Sample]]:
        """(prompt, sample, reply) of every row that has ended, whose slot becomes free."""
        done = self.done.tolist()
        ended = [slot for slot, row in enumerate(self.rows) if row and done[slot]]
        counts = (self.state[3, ended] - self.state[2, ended]).tolist()
        found = zip(ended, counts, self.ids[ended].tolist(), self.logprobs[ended].tolist(), strict=True)
        self.state[2:4, ended] = 0
        for slot, count, ids, logprobs in found:
            row, self.rows[slot] = self.rows[slot], None
            if not all(map(math.isfinite, logprobs[:count])):
                raise ValueError(f"the model's logits for prompt {row[0]} are not finite")
            yield *row, Sample(tuple(ids[:count]), tuple(logprobs[:count]), ids[count - 1] in self.end_ids)

    def fit(self, columns: int) -> None:
        """Fit the cache to rows of this length, in blocks, and drop slots that stay free: a step pays for all of it."""
        live = [slot for slot, row in enumerate(self.rows) if row]
        if not self.waiting and len(live) <= len(self.rows) * SHRINK_AT:
            self.graph, self.rows, self.state = None, [self.rows[slot] for slot in live], self.state[:, live]
            self.done, self.ids, self.logprobs = self.done[live], self.ids[live], self.logprobs[live]
            for i, cache in enumerate(self.cache):  # one after the other: never the whole cache twice
                self.cache[i] = cache[:, live]
        block, old = 256 if self.cuda_graphs else 32, self.cache[0].shape[3]
        new = -(-columns // block) * block
        if new > old or new < old * SHRINK_AT:
            self.graph = None
            for i, cache in enumerate(self.cache):  # zeros, because what a mask hides is still multiplied, by 0
                self.cache[i] = F.pad(cache, (0, 0, 0, new - old))


def cached_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """One query per row: q (S, 1, H, D), k and v (S, K, C, D), bias (S, 1, 1, C) -> (S, 1, H, D)."""
    q = q[:, 0].unflatten(1, (k.shape[1], -1))  # (S, K, H/K, D): heads that share keys, beside each other as queries
    if q.is_cuda:
        out = F.scaled_dot_product_attention(q, k, v, bias.expand(-1, k.shape[1], q.shape[2], -1))
    else:
        out = (q * q.shape[-1] ** -0.5 @ k.transpose(2, 3) + bias).softmax(-1) @ v
    return out.flatten(1, 2)[:, None]


def stream(model, prompts, cuda_graphs=False, **kw):
    found = []
    generate(model, prompts, on_group=lambda i, s: found.append((i, s)), cuda_graphs=cuda_graphs, **kw)
    yield from found
