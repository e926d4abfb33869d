"""Qwen2 transformer, ChatML tokenizer and sampler: everything Code-A1 needs of a language model.

It reads and writes Hugging Face checkpoint folders (Qwen2.5-Coder 0.5B to 7B). What a checkpoint
asks for beyond RoPE in half rotation, RMSNorm, grouped key/value heads, SwiGLU and biases on q, k
and v is refused by name.

    model = Qwen2.from_pretrained("Qwen2.5-Coder-1.5B", dtype=torch.bfloat16, device="cuda")
    tokenizer = Tokenizer.from_pretrained("Qwen2.5-Coder-1.5B")
    prompt = tokenizer.encode_chat([{"role": "user", "content": "Write is_even(n)."}])
    samples = generate(model, [prompt], n=8, eos_ids=tokenizer.eos_ids, vocab_size=len(tokenizer))

Letters: B batch, T tokens, H query heads, K key/value heads, D head size, V vocabulary; S slots,
C cache columns.
"""

import copy
import gzip
import hashlib
import json
import math
import re
import shutil
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

LFS = "version https://git-lfs"  # how the pointers begin that a clone without git-LFS has
# All that this file implements.
ONLY = {"model_type": "qwen2", "hidden_act": "silu", "use_sliding_window": False,
        "attention_dropout": 0.0, "partial_rotary_factor": 1.0}


@dataclass
class Config:
    """The names of config.json. `extra`: all that a loaded one says, to be saved again."""

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
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        self.head_dim = self.head_dim or self.hidden_size // heads
        if heads % kv_heads:
            raise ValueError(f"{heads} query heads cannot share {kv_heads} kv heads")

    @classmethod
    def from_dict(cls, raw: dict) -> "Config":
        """config.json's object -> Config. ValueError names what is missing or not supported."""
        rope = (raw.get("rope_scaling") or {}) | (raw.get("rope_parameters") or {})
        # The RoPE base stands at the top in older files, among the RoPE parameters in newer.
        found = {k: v for k, v in [*rope.items(), *raw.items()] if v is not None}
        faults = [f"{k} {found[k]!r}" for k, v in ONLY.items() if found.get(k, v) != v]
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            faults.append(f"RoPE scaling {rope}")
        if "sliding_attention" in found.get("layer_types", []):
            faults.append("layer_types with sliding_attention")
        if len(bases := {at.get("rope_theta") for at in (rope, raw)} - {None}) > 1:
            faults.append(f"two RoPE bases {bases}")
        if faults:
            raise ValueError(f"{'; '.join(faults)}: not supported by this plain qwen2 model")
        found.setdefault("num_key_value_heads", found.get("num_attention_heads"))
        names = [f.name for f in fields(cls) if f.name != "extra"]
        if missing := [name for name in names[:6] if found.get(name) is None]:
            raise ValueError(f"config.json lacks {', '.join(missing)}")
        return cls(**{name: found[name] for name in names if name in found}, extra=raw)

    def to_dict(self) -> dict:
        """The object for config.json, with the RoPE base in both places."""
        own = {name: value for name, value in vars(self).items() if name != "extra"}
        rope = {"rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta}}
        kind = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu"}
        return kind | self.extra | own | rope


# ---- transformer ----
# (layer number, q (B, T, H, D), k and v (B, T, K, D)) -> (B, T, H, D): who sees whom.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def attention(layer: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Causal in each row, which hides padding on the right, or as a mask (B, 1, T, keys) says."""
    if mask is not None and q.is_cuda:  # no fused kernel takes a mask and heads that share keys
        k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    causal = mask is None
    out = F.scaled_dot_product_attention(*heads_first, mask, is_causal=causal, enable_gqa=True)
    return out.transpose(1, 2)


def rope_table(positions: Tensor, config: Config, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(B, T) positions -> cos and sin (B, T, 1, D), the first half of sin negated for `rotate`."""
    # In float32: bfloat16 cannot tell positions over 256 apart.
    power = torch.arange(0, config.head_dim, 2, device=positions.device).float() / config.head_dim
    angles = positions[:, :, None, None].float() * config.rope_theta**-power  # (B, T, 1, D/2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE in half rotation: entries i and i + D/2 turn as a pair. Here by a quarter:

    >>> rotate(torch.tensor([1.0, 2, 3, 4]), torch.zeros(4), torch.tensor([-1.0, -1, 1, 1]))
    tensor([-3., -4.,  1.,  2.])
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


class RMSNorm(nn.RMSNorm):
    """The library's, less its float32 copy of x that waits for the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_inference_mode_enabled():  # the library's is faster
            return super().forward(x)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return (x * (norm.square() / x.shape[-1] + self.eps).rsqrt()).to(x.dtype) * self.weight


class Layer(nn.Module):
    """The inner dictionaries give the weights their checkpoint names."""

    def __init__(self, c: Config):
        super().__init__()
        self.head_dim = c.head_dim
        size, inner, plain = c.hidden_size, c.intermediate_size, partial(nn.Linear, bias=False)
        width, kv_width = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.input_layernorm = RMSNorm(size, c.rms_norm_eps)
        self.self_attn = nn.ModuleDict({
            "q_proj": nn.Linear(size, width),
            "k_proj": nn.Linear(size, kv_width),
            "v_proj": nn.Linear(size, kv_width),
            "o_proj": plain(width, size)})
        self.post_attention_layernorm = RMSNorm(size, c.rms_norm_eps)
        self.mlp = nn.ModuleDict({
            "gate_proj": plain(size, inner),
            "up_proj": plain(size, inner),
            "down_proj": plain(inner, size)})

    def forward(self, x: Tensor, rope: tuple[Tensor, ...], attend: Attend, layer: int) -> Tensor:
        a, m = self.self_attn, self.mlp
        h = self.input_layernorm(x)  # (B, T, hidden)
        q, k, v = (f(h).unflatten(-1, (-1, self.head_dim)) for f in (a.q_proj, a.k_proj, a.v_proj))
        out = attend(layer, rotate(q, *rope), rotate(k, *rope), v)  # (B, T, H, D)
        x = x + a.o_proj(out.flatten(2))
        h = self.post_attention_layernorm(x)
        return x + m.down_proj(F.silu(m.gate_proj(h)) * m.up_proj(h))


class Qwen2(nn.Module):
    """The language model. `Qwen2(config)` draws its weights from torch's generator."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.generation_config = {"eos_token_id": config.eos_token_id}  # or a loaded folder's own
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
        tied = self.config.tie_word_embeddings
        return (self.model.embed_tokens if tied else self.lm_head).weight

    def hidden(
        self, ids: Tensor, positions: Tensor | None = None, attend: Attend = attention,
        checkpointing: bool = False,
    ) -> Tensor:
        """(B, T) ids -> (B, T, hidden) states after the final norm.

        positions: (B, T), default 0, 1, 2 ... checkpointing: only the input of each layer waits for
        the backward pass, which computes the rest again.
        """
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]
        x = self.model.embed_tokens(ids)
        rope = rope_table(positions, self.config, x.dtype)
        for i, layer in enumerate(self.model.layers):
            if checkpointing:
                layer = partial(checkpoint, layer, use_reentrant=False, preserve_rng_state=False)
            x = layer(x, rope, attend, i)
        return self.model.norm(x)

    def forward(self, input_ids: Tensor) -> Tensor:
        """(B, T) ids -> (B, T, V) logits. Rows may be padded on the right with any id."""
        return F.linear(self.hidden(input_ids), self.head)

    @classmethod
    def from_pretrained(
        cls, path: str | Path, dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> "Qwen2":
        """Read a Hugging Face folder. ValueError names what is missing or does not fit."""
        path = Path(path)
        raw = read_json(path / "config.json")
        try:
            config = Config.from_dict(raw)
            with torch.device("meta"):  # shapes only
                model = cls(config)
        except (ValueError, TypeError, AttributeError, RuntimeError, ZeroDivisionError) as error:
            raise ValueError(f"{path / 'config.json'}: {error}") from error
        found = read_weights(path, dtype, device)
        if config.tie_word_embeddings and "lm_head.weight" in found:
            embedding = found.get("model.embed_tokens.weight", torch.empty(0))
            if not torch.equal(found.pop("lm_head.weight"), embedding):
                raise ValueError(f"{path}: lm_head.weight differs from model.embed_tokens.weight, "
                                 "yet they are tied")
        try:
            model.load_state_dict(found, assign=True)
        except RuntimeError as error:  # names what is missing, unexpected or of another shape
            raise ValueError(f"{path}: {error}") from error
        if (file := path / "generation_config.json").exists():
            model.generation_config = read_json(file)
        return model.requires_grad_(True)

    def save_pretrained(self, path: str | Path, dtype: torch.dtype | None = None) -> None:
        """Write a Hugging Face folder, in the model's own type by default."""
        path, dtype = Path(path), dtype or self.head.dtype
        path.mkdir(parents=True, exist_ok=True)
        name = str(dtype).removeprefix("torch.")
        config = self.config.to_dict() | {"dtype": name, "torch_dtype": name}  # new and old readers
        for file, value in (("config", config), ("generation_config", self.generation_config)):
            (path / f"{file}.json").write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        weights = {k: v.to("cpu", dtype).contiguous() for k, v in self.state_dict().items()}
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})


def broken(path: str | Path, error: object) -> ValueError:
    """What to say of a file that could not be read."""
    with open(path, "rb") as file:
        if file.read(len(LFS)) == LFS.encode():
            return ValueError(f"{path} is a git-LFS pointer, not the file: run `git lfs pull`")
    return ValueError(f"{path} is damaged or cut ({error}): fetch or write it again")


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file, unpacked if its name ends in .gz, without a byte-order mark.

    ValueError says what is wrong with the file; OSError if there is none.
    """
    raw = Path(path).read_bytes()
    try:
        text = (gzip.decompress(raw) if str(path).endswith(".gz") else raw).decode("utf-8-sig")
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise broken(path, error) from error
    if text.startswith(LFS):
        raise broken(path, "")
    return text.replace("\r\n", "\n")


def file_digest(path: str | Path) -> str:
    """The SHA-256 of a file's contents, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 24):
            digest.update(chunk)
    return digest.hexdigest()


def read_json(path: Path) -> dict:
    """A file's JSON object. ValueError names the file and what is wrong with it."""
    if not path.exists():
        raise ValueError(f"{path} is missing: a checkpoint folder in Hugging Face layout has one")
    text = read_text(path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise broken(path, error) from error
    if type(found) is not dict:
        raise broken(path, "no JSON object")
    return found


def read_weights(path: Path, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """All tensors of a folder by name: copies, as a view of a file breaks when the file changes."""
    found, shards = {}, {"model.safetensors"}
    if not (path / "model.safetensors").exists():
        index = read_json(path / "model.safetensors.index.json")
        shards = set(index.get("weight_map", {}).values())
    for shard in shards:
        if not (path / shard).exists():
            raise ValueError(f"{path / shard} is missing, yet the index names it")
        try:
            with safe_open(path / shard, framework="pt", device=str(device)) as file:
                for name in file.keys():
                    found[name] = file.get_tensor(name).to(dtype, copy=True)
        except SafetensorError as error:
            raise broken(path / shard, error) from error
    return found


# ---- tokenizer ----
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                   "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt")


class Tokenizer:
    """Text to ids and back, and the ChatML frame. Control words such as <|im_end|> in a message's
    own text stay text."""

    def __init__(self, path: Path):
        raw, self.path = read_json(path / "tokenizer.json"), path
        control = {}
        for added in raw.get("added_tokens", []):  # runs of spaces among them: ordinary text
            added["special"] = added["special"] or bool(re.fullmatch(r"<.+>", added["content"]))
            if added["special"]:
                control[added["content"]] = added["id"]
        if not {"<|im_start|>", "<|im_end|>"} <= set(control):
            raise ValueError(f"{path}: the tokenizer lacks <|im_start|> or <|im_end|> of ChatML")
        try:
            self.fast = FastTokenizer.from_str(json.dumps(raw))
        except Exception as error:  # the library has no narrower type
            raise broken(path / "tokenizer.json", error) from error
        self.fast.encode_special_tokens = True  # as the characters they are
        self.control_ids = frozenset(control.values())
        self.start, self.end = control["<|im_start|>"], control["<|im_end|>"]
        self.default_system = default_system(path)
        ends = []
        for file in (path / "generation_config.json", path / "config.json"):
            ids = read_json(file).get("eos_token_id") if file.exists() else None
            ends += [ids] if isinstance(ids, int) else ids or []
        self.eos_ids = tuple(dict.fromkeys([*ends, self.end]))  # every id that ends a reply, once

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "Tokenizer":
        """Read a folder's tokenizer.json and chat template. ValueError if not ChatML."""
        return cls(Path(path))

    def save_pretrained(self, path: str | Path) -> None:
        """Copy the tokenizer's files unchanged."""
        target = Path(path)
        target.mkdir(parents=True, exist_ok=True)
        for name in TOKENIZER_FILES:
            if (self.path / name).exists() and target.resolve() != self.path.resolve():
                shutil.copyfile(self.path / name, target / name)

    def __len__(self) -> int:
        """The largest id plus one: rows of the model from here up are padding."""
        return max(self.fast.get_vocab().values()) + 1

    def encode(self, text: str) -> list[int]:
        """Text -> ids, without any control id."""
        return self.fast.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Ids -> text; control ids and padding rows are skipped."""
        plain = [i for i in ids if i not in self.control_ids]
        return self.fast.decode(plain, skip_special_tokens=False)

    def encode_chat(self, messages: list[dict]) -> list[int]:
        """[{"role", "content"}, ...] -> ids as the family's template has them, open for a reply."""
        if not messages or any(m["role"] not in ("system", "user", "assistant") for m in messages):
            raise ValueError("a chat is one message or more with roles system, user, assistant; "
                             f"got {messages!r:.200}")
        if messages[0]["role"] != "system" and self.default_system is not None:
            messages = [{"role": "system", "content": self.default_system}, *messages]
        ids, newline = [], self.encode("\n")
        for m in messages:
            ids += [self.start, *self.encode(f"{m['role']}\n{m['content']}"), self.end, *newline]
        return [*ids, self.start, *self.encode("assistant\n")]


def default_system(path: Path) -> str | None:
    """The system text that a folder's template puts first where there is none.

    ValueError if its turns are not exactly ChatML's.
    """
    if (file := path / "chat_template.jinja").exists():
        template = read_text(file)
    else:
        template = read_json(path / "tokenizer_config.json").get("chat_template") or ""
    if isinstance(template, list):  # older files: [{"name": "default", "template": "..."}, ...]
        template = {entry["name"]: entry["template"] for entry in template}.get("default", "")
    # A turn is '<|im_start|>' + m['role'] + '\n' ... or <|im_start|>{{ m.role }}\n ... Anything but
    # such a joint between literals and names, a filter say, makes other bytes than `encode_chat`.
    line, joint = r"(?:\\n|\n)", r"""(?:['"]?\s*\+\s*['"]?|\s*-?\}\}|\{\{-?\s*)?"""
    role, content = (rf"""\w+(?:\.{name}|\[['"]{name}['"]\])""" for name in ("role", "content"))
    turn = joint.join((r"<\|im_start\|>", role, line, content, r"<\|im_end\|>", line))
    reply = rf"<\|im_start\|>assistant{line}"
    if not (re.search(turn, template) and re.search(reply, template)) or "bos_token" in template:
        raise ValueError(f"{path}: no chat template, or not ChatML's, the only one supported")
    # The default is a literal: no quote with a plus, no brace and no control word is in it.
    text = r"""((?:(?!['"]\s*\+|\{\{|<\|im_).)*)"""
    system = re.search(rf"(?s)<\|im_start\|>system{line}{text}<\|im_end\|>", template)
    return system and re.sub(r"(?s)\\(.)", lambda m: m[1].replace("n", "\n"), system[1])


# ---- sampling ----
PREFILL_TOKENS = 4096  # of prompts that run through the model together, at most
CACHE_BYTES = 2 << 30  # for keys and values on a CPU; on a GPU half of what is free
CHECK_EVERY = 4  # decode steps between two looks at which rows have ended
SHRINK_AT = 0.75  # share in use under which slots (once none waits) and columns are dropped
PACK_FROM = 1 << 18  # entries of a matrix from which packing pays on a CPU


@dataclass(frozen=True)
class Sample:
    """One reply. logprobs: log-softmax at the temperature (T 0: at T 1) over the unmasked ids."""

    ids: tuple[int, ...]  # with the end id, if one was sampled
    logprobs: tuple[float, ...]
    finished: bool  # an end id was sampled; False: cut by max_new_tokens


def mix(x: Tensor) -> Tensor:
    """A bijection of int64 that scatters bits (Stafford's variant 13 of murmur3's last step)."""
    # The masks make the arithmetic shifts logical ones.
    x = (x ^ (x >> 30 & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    x = (x ^ (x >> 27 & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return x ^ (x >> 31 & 0x1FFFFFFFF)


def row_keys(seed: int, prompts: Tensor, samples: Tensor) -> Tensor:
    """int64 keys of random streams, of seed, prompt index and sample index alone."""
    return mix(mix(mix(torch.tensor(seed % 2**63)) + prompts + 1) + samples + 1)


def uniforms(keys: Tensor, positions: Tensor) -> Tensor:
    """float32 in [0, 1 - 2**-23], functions of row key and position in the reply alone."""
    return (mix(keys + mix(positions + 1)) >> 41 & 0x7FFFFF).float() * 2.0**-23


def choose(
    logits: Tensor, u: Tensor, temperature: float, top_p: float = 1.0, top_k: int = 0
) -> tuple[Tensor, Tensor]:
    """(B, V) logits and (B,) uniforms -> ids (B,) and their log-probs (B,), in float32.

    top_k keeps the k likeliest ids (0: all), top_p the fewest whose probability reaches it; the
    log-probs are those before either.
    """
    if temperature not in (0, 1):  # less the maximum first: a tiny temperature must not overflow
        logits = (logits.float() - logits.amax(-1, keepdim=True)) / temperature
    probs = logits.softmax(-1, dtype=torch.float32)
    if temperature == 0:
        ids = probs.argmax(-1, keepdim=True)
    elif top_k or top_p < 1:
        size = probs.shape[-1]
        values, order = probs.topk(min(top_k or size, size), dim=-1)
        values /= values.sum(-1, keepdim=True)
        before = values.cumsum(-1) - values  # probability of all that are likelier
        keep = before < top_p - 1e-6  # a boundary hit exactly: float32 sums fall on either side
        keep[:, 0] = True
        ids = order.gather(-1, draw(values * keep, u))
    else:
        ids = draw(probs, u)
    return ids[:, 0], probs.gather(-1, ids).log()[:, 0]


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """(B, V) weights, (B,) uniforms -> (B, 1) first index whose cumulated weight exceeds u * sum.

    >>> draw(torch.tensor([[1.0, 0, 3], [1, 0, 3]]), torch.tensor([0.24, 0.25]))
    tensor([[0],
            [2]])
    """
    cdf = weights.cumsum(-1)
    ids = torch.searchsorted(cdf, u[:, None] * cdf[:, -1:], right=True)
    return ids.clamp_(max=cdf.shape[-1] - 1)


def generate(
    model: Qwen2, prompts: Sequence[Sequence[int]], n: int = 1,
    max_new_tokens: int | Sequence[int] = 256, temperature: float = 1.0, top_p: float = 1.0,
    top_k: int = 0, eos_ids: Sequence[int] = (), vocab_size: int | None = None, seed: int = 0,
    **options,
) -> list[list[Sample]]:
    """n replies to each prompt, in the order of the prompts; `stream` says more."""
    whole = dict(stream(model, prompts, n, max_new_tokens, temperature, top_p, top_k, eos_ids,
                        vocab_size, seed, **options))
    return [whole[i] for i in range(len(prompts))]


def stream(
    model: Qwen2, prompts: Sequence[Sequence[int]], n: int = 1,
    max_new_tokens: int | Sequence[int] = 256, temperature: float = 1.0, top_p: float = 1.0,
    top_k: int = 0, eos_ids: Sequence[int] = (), vocab_size: int | None = None, seed: int = 0,
    slots: int | None = None, cuda_graphs: bool = False,
) -> Iterator[tuple[int, list[Sample]]]:
    """(prompt index, its n replies) of each prompt, as soon as all n have ended.

    A reply depends on seed, prompt index and sample index alone, not on its company. ValueError
    comes from the call itself; the weights have to stay as they are until the last prompt.

    max_new_tokens: one limit, or one for each prompt. Ids from vocab_size up are never sampled.
    slots: replies decoded at a time, default as many as fit.
    """
    prompts = [list(map(int, prompt)) for prompt in prompts]
    one = isinstance(max_new_tokens, int)
    limits = [max_new_tokens] * len(prompts) if one else list(max_new_tokens)
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must be a finite number >= 0, got {temperature}")
    if not 0 < top_p <= 1 or top_k < 0 or n < 1:
        raise ValueError(f"top_p in (0, 1], top_k >= 0 and n >= 1: got {top_p}, {top_k}, {n}")
    if len(limits) != len(prompts) or min(limits, default=1) < 1:
        raise ValueError("max_new_tokens must be >= 1: one for all prompts, or one for each")
    if not all(prompts):
        raise ValueError("a prompt is empty: there is nothing to continue")
    if not prompts:
        return iter(())
    slots = slots or slots_that_fit(model, max(map(len, prompts)) + max(limits))
    pick = partial(choose, temperature=temperature, top_p=top_p, top_k=top_k)
    model = for_sampling(model, vocab_size or model.config.vocab_size)
    return Sampler(model, prompts, n, limits, slots, seed, pick, set(eos_ids), cuda_graphs).run()


def slots_that_fit(model: Qwen2, tokens: int) -> int:
    """Rows of so many tokens whose keys and values have room, at least one."""
    c, device, room = model.config, model.head.device, CACHE_BYTES
    if device.type == "cuda":
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        room = (torch.cuda.mem_get_info(device)[0] + idle) // 2
    values = 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim  # of a token
    return max(room // (tokens * values * model.head.element_size()), 1)


class PackedLinear(nn.Module):
    """nn.Linear whose weight is laid out for a CPU's oneDNN once, not at every call.

    The private operators are those that torch.compile puts in its place.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


def for_sampling(model: Qwen2, vocab_size: int) -> Qwen2:
    """A copy that shares the weights: its lm_head has the first vocab_size ids alone, and on a CPU
    its large nn.Linear are PackedLinear."""
    shared = {id(weight): weight for weight in model.parameters()}  # deepcopy leaves these alone
    model = copy.deepcopy(model, shared)
    head = nn.Parameter(model.head[:vocab_size].detach(), requires_grad=False)
    model.lm_head = nn.Linear(model.config.hidden_size, vocab_size, bias=False, device="meta")
    model.lm_head.weight = head
    packs = head.device.type == "cpu" and torch.backends.mkldnn.is_available()
    if head.dtype != torch.float32:
        packs = packs and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    for name, module in list(model.named_modules()):
        if packs and isinstance(module, nn.Linear) and module.weight.numel() >= PACK_FROM:
            model.set_submodule(name, PackedLinear(module))
    return model


@dataclass(frozen=True)
class Slots:
    """The rows being decoded. Written in place: a CUDA graph replays a step on these very tensors.

    A free slot is decoded as well: it is done, and its length is 0.
    """

    key: Tensor  # (S,) of the row's random stream
    token: Tensor  # (S,) decoded next: the last one of the prompt, then the one sampled last
    length: Tensor  # (S,) columns of the cache in use, so the next token's column
    count: Tensor  # (S,) ids sampled
    limit: Tensor  # (S,) of count
    done: Tensor  # (S,) the reply has ended
    ids: Tensor  # (S, largest limit + 1): a row that is done writes one id more
    logprobs: Tensor  # like ids


@dataclass
class Sampler:
    """One `stream`: its rows, each a (prompt index, sample index), some at a time in slots."""

    model: Qwen2  # from `for_sampling`
    prompts: list[list[int]]
    n: int
    limits: list[int]
    size: int  # slots at most
    seed: int
    pick: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # logits, uniforms -> ids, log-probs
    eos_ids: set[int]
    cuda_graphs: bool

    @torch.inference_mode()
    def __post_init__(self) -> None:
        # No long reply starts last, and prompts that begin alike are prefilled together.
        order = sorted(range(len(self.prompts)), key=lambda i: (-self.limits[i], self.prompts[i]))
        self.waiting = deque((prompt, sample) for prompt in order for sample in range(self.n))
        self.at_once = max(PREFILL_TOKENS // max(map(len, self.prompts)), 1)  # prompts
        size, c = min(self.size, len(self.waiting)), self.model.config
        self.rows: list[tuple[int, int] | None] = [None] * size  # None: a free slot
        self.found: dict[int, list[Tensor]] = {}  # of the next row's prompt, if it is prefilled
        with self.model.head.device:
            self.ends = torch.tensor(sorted(self.eos_ids), dtype=torch.int64)
            done, ids = torch.ones(size).bool(), torch.zeros(size, max(self.limits) + 1)
            self.slots = Slots(*torch.zeros(5, size).long(), done, ids.long(), ids)
            cache = torch.zeros(2, size, c.num_key_value_heads, 0, c.head_dim)
        # Keys and values of each layer (2, S, K, C, D); no columns yet.
        self.cache = [cache.to(self.model.head.dtype)] * c.num_hidden_layers
        self.graph: torch.cuda.CUDAGraph | None = None  # of a step on these slots and cache

    @torch.inference_mode()  # left at each yield: the caller's code does not run in it
    def run(self) -> Iterator[tuple[int, list[Sample]]]:
        """(prompt index, its n samples), in the order in which prompts get whole."""
        parts: dict[int, dict[int, Sample]] = {}  # prompt -> sample index -> reply
        while self.waiting or any(self.rows):
            self.refill()
            self.decode()
            for prompt, sample, reply in self.collect():
                group = parts.setdefault(prompt, {})
                group[sample] = reply
                if len(group) == self.n:
                    yield prompt, [group[i] for i in range(self.n)]

    def refill(self) -> None:
        """Put waiting rows into free slots, with the keys and values of their prompts."""
        # Lowest first: `fit` may drop the slots that stay free, which then stand above.
        free = deque(slot for slot, row in enumerate(self.rows) if row is None)
        while free and self.waiting:
            taken: dict[int, list[int]] = {}  # prompt -> its new slots
            while free and self.waiting and len(taken) < self.at_once:
                slot = free.popleft()
                prompt, _ = self.rows[slot] = self.waiting.popleft()
                taken.setdefault(prompt, []).append(slot)
            self.start(sum(taken.values(), []))
            self.fit(int(self.slots.length.max()))
            self.found |= self.prefill([prompt for prompt in taken if prompt not in self.found])
            for prompt, slots in taken.items():
                for cache, kv in zip(self.cache, self.found[prompt], strict=True):
                    cache[:, slots, :, :kv.shape[2]] = kv[:, None]
            # A prompt's rows wait one behind the other: only the next row's can be needed again.
            again = self.waiting[0][0] if self.waiting else None
            self.found = {prompt: kv for prompt, kv in self.found.items() if prompt == again}

    def start(self, slots: list[int]) -> None:
        """Set slots to the last token of their rows' prompts."""
        s, rows = self.slots, [self.rows[slot] for slot in slots]
        ids = [self.prompts[prompt] for prompt, _ in rows]
        with s.key.device:
            s.key[slots] = row_keys(self.seed, *torch.tensor(rows).T)
            s.token[slots] = torch.tensor([x[-1] for x in ids])
            s.length[slots] = torch.tensor([len(x) - 1 for x in ids])
            s.limit[slots] = torch.tensor([self.limits[prompt] for prompt, _ in rows])
        s.count[slots], s.done[slots] = 0, False

    def prefill(self, prompts: list[int]) -> dict[int, list[Tensor]]:
        """Keys and values (2, K, T, D) of each layer, for each prompt less its last token."""
        ids, positions, places = merged([self.prompts[prompt][:-1] for prompt in prompts])
        with self.slots.key.device:
            ids, positions, *places = (torch.tensor(x).long() for x in (ids, positions, *places))
        found = {prompt: [] for prompt in prompts}

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = torch.empty_like(q)
            for prompt, at in zip(prompts, places, strict=True):  # each sees itself alone
                keys, values = k[:, at], v[:, at]
                found[prompt].append(torch.cat((keys, values)).transpose(1, 2))
                if len(at):  # tokens in common are written again, with the same values
                    out[:, at] = attention(layer, q[:, at], keys, values)
            return out

        if prompts:
            self.model.hidden(ids[None], positions[None], attend)
        return found

    def decode(self) -> None:
        """Tokens for every slot, without looking whether a row ends."""
        self.fit(int(self.slots.length.max()) + CHECK_EVERY)
        for _ in range(CHECK_EVERY):
            if self.graph:
                self.graph.replay()
                continue
            self.step()
            if self.cuda_graphs:
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph):  # recorded, not run
                    self.step()

    def step(self) -> None:
        """One token for every slot. Nothing here waits for the device."""
        s = self.slots
        slots = torch.arange(len(s.key), device=s.key.device)
        bias = column_bias(s.length, self.cache[0].shape[3], self.cache[0].dtype)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.cache[layer]  # (S, K, C, D)
            keys[slots, :, s.length], values[slots, :, s.length] = k[:, 0], v[:, 0]
            return cached_attention(q, keys, values, bias)

        states = self.model.hidden(s.token[:, None], s.length[:, None], attend)[:, 0]
        ids, logprobs = self.pick(self.model.lm_head(states), uniforms(s.key, s.count))
        s.token.copy_(ids)
        s.ids[slots, s.count], s.logprobs[slots, s.count] = ids, logprobs
        s.length.add_(~s.done)  # a row that is done stays where it is until collected
        s.count.add_(~s.done)
        s.done.logical_or_((ids[:, None] == self.ends).any(1) | (s.count >= s.limit))

    def collect(self) -> Iterator[tuple[int, int, Sample]]:
        """(prompt, sample, reply) of every row that has ended; its slot becomes free."""
        s, done = self.slots, self.slots.done.tolist()
        ended = [slot for slot, row in enumerate(self.rows) if row and done[slot]]
        parts = (s.count[ended].tolist(), s.ids[ended].tolist(), s.logprobs[ended].tolist())
        s.length[ended] = s.count[ended] = 0  # a free slot asks for no columns
        for slot, count, ids, logprobs in zip(ended, *parts, strict=True):
            (prompt, sample), self.rows[slot] = self.rows[slot], None
            ids, logprobs = tuple(ids[:count]), tuple(logprobs[:count])
            if not all(map(math.isfinite, logprobs)):
                raise ValueError(f"the model's logits for prompt {prompt} are not finite")
            yield prompt, sample, Sample(ids, logprobs, ids[-1] in self.eos_ids)

    def fit(self, columns: int) -> None:
        """Fit the cache to the rows, as a step pays for all of it: slots that stay free go."""
        live = [slot for slot, row in enumerate(self.rows) if row]
        if not self.waiting and len(live) <= len(self.rows) * SHRINK_AT:
            self.graph, self.rows = None, [self.rows[slot] for slot in live]
            self.slots = Slots(*(entries[live] for entries in vars(self.slots).values()))
            for i, cache in enumerate(self.cache):  # one by one: never the whole cache twice
                self.cache[i] = cache[:, live]
        block, old = 256 if self.cuda_graphs else 32, self.cache[0].shape[3]
        new = math.ceil(columns / block) * block
        if new > old or new < old * SHRINK_AT:
            self.graph = None
            for i, cache in enumerate(self.cache):  # zeros: what the bias hides is still times 0
                self.cache[i] = F.pad(cache, (0, 0, 0, new - old))


def merged(prompts: list[list[int]]) -> tuple[list[int], list[int], list[list[int]]]:
    """One row of prompts in which what they begin with in common stands once: ids, positions, and
    the places of each prompt.

    >>> merged([[5, 6, 7], [5, 6, 8], [6]])
    ([5, 6, 7, 8, 6], [0, 1, 2, 2, 0], [[0, 1, 2], [0, 1, 3], [4]])
    """
    place_of: dict[tuple[int, int], int] = {}  # (place of the id before, id) -> place
    positions, places = [], []
    for prompt in prompts:
        place, path = -1, []
        for position, token in enumerate(prompt):
            place = place_of.setdefault((place, token), len(place_of))
            if place == len(positions):  # a new one
                positions.append(position)
            path.append(place)
        places.append(path)
    return [token for _, token in place_of], positions, places


def column_bias(length: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    """(S,) lengths -> (S, 1, 1, C) for the scores: a row sees columns 0 to its length.

    >>> column_bias(torch.tensor([2, 0]), 4, torch.float32)[:, 0, 0]
    tensor([[0., 0., 0., -inf],
            [0., -inf, -inf, -inf]])
    """
    unseen = torch.arange(columns, device=length.device) > length[:, None]
    return torch.where(unseen, -torch.inf, 0.0).to(dtype)[:, None, None]


def cached_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """q (S, 1, H, D), k and v (S, K, C, D), bias (S, 1, 1, C) -> (S, 1, H, D).

    The H / K heads that share keys stand as queries of one head: no kernel copies the keys.
    """
    q = q[:, 0].unflatten(1, (k.shape[1], -1))  # (S, K, H / K, D)
    bias = bias.expand(-1, k.shape[1], q.shape[2], -1)
    return F.scaled_dot_product_attention(q, k, v, bias).flatten(1, 2)[:, None]
