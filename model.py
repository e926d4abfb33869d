"""Qwen2 transformer, ChatML tokenizer and sampler: everything Code-A1 needs of a language model.

It reads and writes Hugging Face checkpoint folders (Qwen2.5-Coder 0.5B to 7B) under their own parameter names and
implements exactly what those models use: RoPE in half rotation, RMSNorm, grouped key/value heads, SwiGLU, biases on
q, k and v. What a checkpoint asks for beyond that is refused by name.

    model = Qwen2.from_pretrained("Qwen2.5-Coder-1.5B-Instruct", dtype=torch.bfloat16, device="cuda")
    tokenizer = Tokenizer.from_pretrained("Qwen2.5-Coder-1.5B-Instruct")
    prompt = tokenizer.encode_chat([{"role": "user", "content": "Write is_even(n)."}])
    samples = generate(model, [prompt], n=8, eos_ids=tokenizer.eos_ids, vocab_size=len(tokenizer))

Letters: B batch, T tokens, H query heads, K key/value heads, D head size, V vocabulary, L layers.
"""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# ---------------------------------------------------------------- config


@dataclass
class Config:
    """The names of config.json. `extra` keeps every other key, so that a saved folder says what the loaded one said."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int | None = None  # default: hidden_size / num_attention_heads
    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    extra: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.head_dim is None:
            if self.hidden_size % self.num_attention_heads:
                raise ValueError(f"hidden_size {self.hidden_size} is no multiple of {self.num_attention_heads} heads")
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(f"{self.num_attention_heads} query heads cannot share {self.num_key_value_heads} kv heads")

    @classmethod
    def from_dict(cls, raw: dict) -> "Config":
        """config.json's object -> Config. ValueError names what this model does not implement, or a missing key."""
        refuse_unsupported(raw)
        names = {f.name for f in fields(cls)} - {"extra"}
        known = {k: v for k, v in raw.items() if k in names and v is not None}
        known["rope_theta"] = rope_base(raw)
        known.setdefault("num_key_value_heads", raw.get("num_attention_heads"))
        required = [f.name for f in fields(cls)][:6]
        missing = [name for name in required if known.get(name) is None]
        if missing:
            raise ValueError(f"config.json lacks {', '.join(missing)}")
        return cls(**known, extra={k: v for k, v in raw.items() if k not in names})

    def to_dict(self) -> dict:
        """The object for config.json, with the RoPE base in both places where readers look for it."""
        raw = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "extra"}
        return {
            "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
            **self.extra, **raw, "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
        }

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return as_ids(self.eos_token_id)


def as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    """eos_token_id as it stands in a config -> tuple: 7 -> (7,), [7, 8] -> (7, 8), None -> ()."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def refuse_unsupported(raw: dict) -> None:
    """ValueError, by name, for what the model below would compute wrongly."""
    if raw.get("model_type") != "qwen2":
        raise ValueError(f"model_type {raw.get('model_type')!r} is not supported: this is a qwen2 model only")
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act {raw['hidden_act']!r} is not supported, only silu")
    if raw.get("use_sliding_window") or "sliding_attention" in (raw.get("layer_types") or []):
        raise ValueError("sliding window attention (use_sliding_window) is not supported")
    if raw.get("attention_dropout"):
        raise ValueError(f"attention_dropout {raw['attention_dropout']} is not supported, only 0")
    for key in ("rope_scaling", "rope_parameters"):
        rope = raw.get(key) or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
            raise ValueError(f"RoPE scaling is not supported: {key} asks for {kind!r}")


def rope_base(raw: dict) -> float:
    """rope_theta from the top of config.json or from its rope_parameters (newer files); 10,000 where neither has it."""
    old, new = raw.get("rope_theta"), (raw.get("rope_parameters") or {}).get("rope_theta")
    if old is not None and new is not None and old != new:
        raise ValueError(f"config.json gives two RoPE bases: rope_theta {old} and rope_parameters.rope_theta {new}")
    return float(old or new or 10_000.0)


# ---------------------------------------------------------------- transformer


Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q (B, T, H, D), k (B, T, K, D), v (B, T, K, D)) -> (B, T, H, D): what a token may look at, and where the
keys and values of earlier tokens are kept, is the caller's business; the layers below are the same for all."""


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """Scaled dot-product attention on (B, T, H or K, D) tensors; mask: (B, 1, T, keys), True where a query may look."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, enable_gqa=True).transpose(1, 2)


def causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Plain causal attention inside each row. Right padding needs no mask: no token looks to its right."""
    return attention(q, k, v, is_causal=True)


def rope_table(positions: Tensor, config: Config, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(B, T) positions -> cos, sin (B, T, 1, D), computed in float32."""
    half = torch.arange(0, config.head_dim, 2, device=positions.device, dtype=torch.float32) / config.head_dim
    angles = positions[:, :, None, None].float() * config.rope_theta**-half  # (B, T, 1, D/2)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE in half rotation: the pairs are (i, i + D/2)."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.head_dim = c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * c.head_dim)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend, layer: int) -> Tensor:
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (p(x).unflatten(-1, (-1, self.head_dim)) for p in projections)  # (B, T, H or K, D)
        out = attend(layer, rotate(q, *rope), rotate(k, *rope), v)  # (B, T, H, D)
        return self.o_proj(out.flatten(2))


class MLP(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = MLP(c)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend, layer: int) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, attend, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class Backbone(nn.Module):
    """Embedding, layers and final norm: what stands under `model.` in a checkpoint."""

    def __init__(self, c: Config):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)


class Qwen2(nn.Module):
    """The causal language model. `Qwen2(config)` starts from random weights (torch's global generator)."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.generation_config: dict = {}  # generation_config.json of the loaded folder, saved again as it was
        self.model = Backbone(config)
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

    @property
    def device(self) -> torch.device:
        return self.head.device

    @property
    def dtype(self) -> torch.dtype:
        return self.head.dtype

    def hidden(self, ids: Tensor, positions: Tensor | None = None, attend: Attend = causal,
               checkpointing: bool = False) -> Tensor:
        """(B, T) ids -> (B, T, hidden) states after the final norm.

        positions: (B, T), default 0, 1, ... checkpointing: keep only each layer's input for the backward pass.
        """
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]
        x = self.model.embed_tokens(ids)
        rope = rope_table(positions, self.config, x.dtype)
        for i, layer in enumerate(self.model.layers):
            if checkpointing and torch.is_grad_enabled():
                x = checkpoint(layer, x, rope, attend, i, use_reentrant=False)
            else:
                x = layer(x, rope, attend, i)
        return self.model.norm(x)

    def forward(self, input_ids: Tensor) -> Tensor:
        """(B, T) ids -> (B, T, V) logits. Rows may be padded on the right with any id."""
        return F.linear(self.hidden(input_ids), self.head)

    @classmethod
    def from_pretrained(cls, path: str | Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> "Qwen2":
        """Read a Hugging Face folder (one safetensors file, or shards with an index), strictly.

        ValueError names the tensor that is missing, unexpected, of the wrong shape, or a stray head that differs from
        the embedding of a tied model.
        """
        path = Path(path)
        config = Config.from_dict(read_json(path / "config.json"))
        with torch.device("meta"):
            model = cls(config)
        found = read_weights(path, dtype, device)
        embedding, head = found.get("model.embed_tokens.weight"), found.get("lm_head.weight")
        if config.tie_word_embeddings and embedding is not None and head is not None:
            if not torch.equal(embedding, head):
                raise ValueError(f"{path}: lm_head.weight differs from model.embed_tokens.weight, yet they are tied")
            del found["lm_head.weight"]
        check_weights(path, {k: v.shape for k, v in model.state_dict().items()}, found)
        model.load_state_dict(found, strict=True, assign=True)
        if (path / "generation_config.json").exists():
            model.generation_config = read_json(path / "generation_config.json")
        return model.requires_grad_(True)

    def save_pretrained(self, path: str | Path, dtype: torch.dtype | None = None) -> None:
        """Write config.json, generation_config.json and model.safetensors; transformers opens the folder as it is.

        dtype: type of the written weights, default the model's own.
        """
        path, dtype = Path(path), dtype or self.dtype
        path.mkdir(parents=True, exist_ok=True)
        name = str(dtype).removeprefix("torch.")
        write_json(path / "config.json", self.config.to_dict() | {"dtype": name, "torch_dtype": name})
        ids = {k: getattr(self.config, k) for k in ("bos_token_id", "eos_token_id", "pad_token_id")}
        ids = {k: v for k, v in ids.items() if v is not None}
        write_json(path / "generation_config.json", self.generation_config or ids)
        weights = {k: v.detach().to("cpu", dtype).contiguous() for k, v in self.state_dict().items()}
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})


def read_json(path: Path) -> dict:
    if not path.exists():
        raise ValueError(f"{path} is missing: a checkpoint folder in Hugging Face layout has one")
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_weights(path: Path, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """All tensors of a checkpoint folder, by name, as own copies (never views of the file)."""
    index = path / "model.safetensors.index.json"
    if (path / "model.safetensors").exists():
        shards = {"model.safetensors": []}
    elif index.exists():
        shards = {}
        for tensor, shard in read_json(index)["weight_map"].items():
            shards.setdefault(shard, []).append(tensor)
    else:
        raise ValueError(f"{path} has neither model.safetensors nor model.safetensors.index.json")
    found = {}
    for shard, promised in sorted(shards.items()):
        if not (path / shard).exists():
            raise ValueError(f"{path}: shard {shard} is missing; it holds {', '.join(promised)}")
        with safe_open(path / shard, framework="pt", device=str(device)) as file:
            for name in file.keys():
                found[name] = file.get_tensor(name).to(dtype, copy=True)
    return found


def check_weights(path: Path, wanted: dict[str, torch.Size], found: dict[str, Tensor]) -> None:
    """ValueError that names the first tensor (and counts the rest) that does not fit the config."""
    wrong = [name for name in wanted if name in found and found[name].shape != wanted[name]]
    for what, names in (("missing", [n for n in wanted if n not in found]), ("wrong shape", wrong),
                        ("unexpected", [n for n in found if n not in wanted])):
        if names:
            shapes = [tuple(t) for t in (wanted.get(names[0], ()), getattr(found.get(names[0]), "shape", ()))]
            raise ValueError(f"{path}: {what} weight {names[0]} ({len(names)} in all); "
                             f"shape wanted {shapes[0]}, found {shapes[1]}")


# ---------------------------------------------------------------- tokenizer

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json",
                   "added_tokens.json", "vocab.json", "merges.txt")
ROLES = ("system", "user", "assistant")


class Tokenizer:
    """Text to ids and back, and the ChatML frame around messages.

    Control words (`<|im_start|>`, `<|fim_prefix|>`, ...) exist as ids only where the frame puts them: in the text of a
    message they are encoded as the plain characters they are.
    """

    def __init__(self, path: Path):
        raw = read_json(path / "tokenizer.json")
        self.path = path
        self.full = FastTokenizer.from_str(json.dumps(raw))
        control = {t["content"]: t["id"] for t in raw.get("added_tokens", []) if is_control(t)}
        raw["added_tokens"] = [t for t in raw.get("added_tokens", []) if t["content"] not in control]
        raw["post_processor"] = None  # it may hang ids of its own around a text
        self.plain = FastTokenizer.from_str(json.dumps(raw))
        self.control_ids = frozenset(control.values())
        template = read_template(path)
        self.default_system = chatml_default_system(template, path)
        missing = [word for word in ("<|im_start|>", "<|im_end|>") if word not in control]
        if missing:
            raise ValueError(f"{path}: the tokenizer has no control token {' and '.join(missing)}, which ChatML needs")
        self.start, self.end = control["<|im_start|>"], control["<|im_end|>"]
        self.eos_ids = end_ids(path, self.end)

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
        return max(self.full.get_vocab().values()) + 1

    def encode(self, text: str) -> list[int]:
        """Plain text -> ids, without any control id."""
        return self.plain.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Ids -> text; control ids and padding rows are skipped."""
        return self.full.decode([i for i in ids if i not in self.control_ids], skip_special_tokens=False)

    def encode_chat(self, messages: list[dict]) -> list[int]:
        """[{"role", "content"}, ...] -> ids of the conversation, open for the assistant's reply.

        Byte for byte the family's template with add_generation_prompt. ValueError: no message, unknown role.
        """
        if not messages:
            raise ValueError("encode_chat needs at least one message")
        if messages[0]["role"] != "system" and self.default_system is not None:
            messages = [{"role": "system", "content": self.default_system}, *messages]
        ids = []
        newline = self.encode("\n")
        for message in messages:
            if message["role"] not in ROLES:
                raise ValueError(f"role {message['role']!r} is not one of {', '.join(ROLES)}")
            ids += [self.start, *self.encode(f"{message['role']}\n{message['content']}"), self.end, *newline]
        return [*ids, self.start, *self.encode("assistant\n")]


def is_control(added: dict) -> bool:
    """Is this entry of added_tokens a control word? Runs of spaces, which some tokenizers add, are ordinary text."""
    return added.get("special", False) or re.fullmatch(r"<.+>", added["content"]) is not None


def end_ids(path: Path, turn_end: int) -> tuple[int, ...]:
    """Every id that ends a reply: those of generation_config.json and config.json, and the end of a ChatML turn."""
    ids = []
    for name in ("generation_config.json", "config.json"):
        if (path / name).exists():
            ids += as_ids(read_json(path / name).get("eos_token_id"))
    return tuple(dict.fromkeys([*ids, turn_end]))


def read_template(path: Path) -> str:
    """The chat template of a folder: chat_template.jinja, else the entry of tokenizer_config.json."""
    if (path / "chat_template.jinja").exists():
        return (path / "chat_template.jinja").read_text(encoding="utf-8")
    template = read_json(path / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):  # older files: [{"name": "default", "template": "..."}, ...]
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if not template:
        raise ValueError(f"{path}: no chat template in chat_template.jinja or tokenizer_config.json")
    return template


TURN = re.compile(r'"<\|im_start\|>"\+(\w+)\.role\+"\\n"\+\1\.content\+"<\|im_end\|>\\n"')
DEFAULT_SYSTEM = re.compile(r'"<\|im_start\|>system\\n((?:[^"\\]|\\.)*)<\|im_end\|>\\n"')
REPLY = '"<|im_start|>assistant\\n"'


def chatml_default_system(template: str, path: Path) -> str | None:
    """The system text that a ChatML template puts first when there is none; None if it puts nothing.

    ValueError if the template's turns are not `<|im_start|>role\\ncontent<|im_end|>\\n`.
    """
    stream = template_stream(template)
    if not TURN.search(stream) or REPLY not in stream or "bos_token" in stream:
        raise ValueError(f"{path}: the chat template is not ChatML "
                         "(<|im_start|>role, newline, content, <|im_end|>, newline), the only frame supported")
    found = DEFAULT_SYSTEM.search(stream)
    return json.loads(f'"{found[1]}"') if found else None


def template_stream(template: str) -> str:
    """What a Jinja template prints, as one normal form: expressions joined by +, statements as ;.

    >>> template_stream("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\\\n' }}{{ m.content }}{% endfor %}")
    ';"<|im_start|>"+m.role+"\\\\n"+m.content;'
    """
    pieces = re.split(r"(\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\})", template, flags=re.DOTALL)
    stream = ""
    for i, piece in enumerate(pieces):
        if i % 2 == 0:
            text = outside_text(piece, pieces[i - 1] if i else "", pieces[i + 1] if i + 1 < len(pieces) else "")
            stream += "+" + json.dumps(text) if text else ""
        elif piece.startswith("{{"):
            stream += "+" + normal_expression(piece.strip("{}").strip("-"))
        else:
            stream += ";"
    stream = re.sub(r";\+|;+", ";", stream.strip("+"))
    return re.sub(r'(?<!\\)"\+"', "", stream)


def normal_expression(source: str) -> str:
    """A Jinja expression with double quotes, no blanks, and attributes as .name: `m['role']` -> `m.role`."""
    parts = re.split(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""", source, flags=re.DOTALL)
    for i, part in enumerate(parts):
        if i % 2:
            body = re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), part[1:-1], flags=re.DOTALL)
            parts[i] = json.dumps(body)
        else:
            parts[i] = re.sub(r"\s+", "", part)
    return re.sub(r'(?<=[\w\]])\["(\w+)"\]', r".\1", "".join(parts))


def outside_text(text: str, before: str, after: str) -> str:
    """Text between two Jinja tags, cut as transformers' renderer cuts it (trim_blocks, lstrip_blocks, `-` marks)."""
    if before.endswith(("-}}", "-%}", "-#}")):
        text = text.lstrip()
    elif before.startswith(("{%", "{#")):
        text = text.removeprefix("\n")
    if after.startswith(("{{-", "{%-", "{#-")):
        return text.rstrip()
    return re.sub(r"(^|(?<=\n))[ \t]+$", "", text) if after.startswith(("{%", "{#")) else text


# ---------------------------------------------------------------- sampling


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


def uniforms(keys: Tensor, positions: Tensor) -> Tensor:
    """Counter-based float32 uniforms in [0, 1 - 2**-23]: one per (row key, position of the token in its reply)."""
    bits = mix(keys + mix(positions.long() + 1)) >> 41 & 0x7FFFFF
    return bits.float() * 2.0**-23


def row_key(seed: int, prompt: int, sample: int) -> int:
    """int64 key of a row's random stream: a function of seed, prompt index and sample index alone."""
    key = torch.tensor(seed, dtype=torch.int64)
    for part in (prompt, sample):
        key = mix(key) + part + 1
    return int(mix(key))


def choose(logits: Tensor, u: Tensor, temperature: float, top_p: float = 1.0, top_k: int = 0) -> tuple[Tensor, Tensor]:
    """(B, V) logits and (B,) uniforms -> ids (B,) and their log-probs (B,), by inverse CDF in float32.

    top_k keeps the k likeliest ids; top_p the fewest likeliest ids whose probability reaches top_p (a sum that hits
    top_p exactly is enough). Log-probs are over the whole row.
    """
    logits = logits.float()
    scaled = logits - logits.amax(-1, keepdim=True)
    if temperature > 0:
        scaled = scaled / temperature
    total = scaled.exp().sum(-1, keepdim=True)
    if temperature == 0:
        ids = logits.argmax(-1, keepdim=True)
    elif top_k or top_p < 1:
        ids = pick_top(scaled, u, top_p, top_k)
    else:
        ids = inverse_cdf(scaled.exp(), u)
    return ids[:, 0], (scaled.gather(-1, ids) - total.log())[:, 0]


def inverse_cdf(weights: Tensor, u: Tensor) -> Tensor:
    """(B, V) weights >= 0, (B,) uniforms -> (B, 1) index of the first id whose cumulated weight exceeds u * sum."""
    cdf = weights.cumsum(-1)
    return torch.searchsorted(cdf, u[:, None] * cdf[:, -1:], right=True).clamp_(max=cdf.shape[-1] - 1)


def pick_top(scaled: Tensor, u: Tensor, top_p: float, top_k: int) -> Tensor:
    """inverse_cdf among the ids that top_k, then top_p (on what top_k left) keep."""
    values, order = scaled.topk(min(top_k or scaled.shape[-1], scaled.shape[-1]), dim=-1)
    probs = values.softmax(-1)
    before = probs.cumsum(-1) - probs
    keep = before < top_p - 1e-6  # float32 sums of a boundary that is hit exactly land on either side of it
    keep[:, 0] = True
    return order.gather(-1, inverse_cdf(probs * keep, u))


@torch.inference_mode()
def generate(
    model: Qwen2, prompts: Sequence[Sequence[int]], n: int = 1, max_new_tokens: int | Sequence[int] = 256,
    temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, eos_ids: Sequence[int] = (),
    vocab_size: int | None = None, seed: int = 0, on_group: Callable[[int, list[Sample]], None] | None = None,
) -> list[list[Sample]]:
    """n replies to each prompt. A row's ids depend on seed, prompt index and sample index alone.

    max_new_tokens: one limit, or one per prompt. Ids from vocab_size up are never sampled. on_group(prompt index,
    samples) is called as soon as all n samples of a prompt are finished. ValueError for arguments out of range.
    """
    limits = check_arguments(prompts, n, max_new_tokens, temperature, top_p, top_k)
    ends = torch.tensor(sorted(set(eos_ids)), dtype=torch.int64, device=model.device)
    results = []
    for index, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        keys = torch.tensor([row_key(seed, index, s) for s in range(n)], device=model.device)
        cache: list[tuple[Tensor, Tensor]] = []

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, cache=cache) -> Tensor:
            if layer == len(cache):
                cache.append((k, v))
                return causal(layer, q, k, v)
            old_k, old_v = cache[layer]
            k = torch.cat((old_k.expand(n, -1, -1, -1), k), 1)
            v = torch.cat((old_v.expand(n, -1, -1, -1), v), 1)
            cache[layer] = k, v
            return attention(q, k, v)

        state = model.hidden(torch.tensor([prompt], device=model.device), attend=attend)[:, -1].expand(n, -1)
        ids, logprobs = [], []
        done = torch.zeros(n, dtype=torch.bool, device=model.device)
        for position in range(limit):
            logits = F.linear(state, model.head)[:, :vocab_size]
            token, logprob = choose(logits, uniforms(keys, torch.tensor(position)), temperature, top_p, top_k)
            ids.append(token)
            logprobs.append(logprob)
            done |= torch.isin(token, ends)
            if position + 1 == limit or done.all():
                break
            where = torch.full((n, 1), len(prompt) + position, device=model.device)
            state = model.hidden(token[:, None], where, attend)[:, 0]
        rows = zip(torch.stack(ids, 1).tolist(), torch.stack(logprobs, 1).tolist(), strict=True)
        results.append([cut(row, logs, set(eos_ids)) for row, logs in rows])
        if on_group:
            on_group(index, results[-1])
    return results


def cut(ids: list[int], logprobs: list[float], ends: set[int]) -> Sample:
    """A Sample up to and including the first end id."""
    stop = next((i + 1 for i, token in enumerate(ids) if token in ends), None)
    return Sample(tuple(ids[:stop]), tuple(logprobs[:stop]), stop is not None)


def check_arguments(prompts: Sequence[Sequence[int]], n: int, max_new_tokens: int | Sequence[int], temperature: float,
                    top_p: float, top_k: int) -> list[int]:
    """One limit per prompt; ValueError says which argument of `generate` is out of range."""
    if not temperature >= 0 or temperature == float("inf"):
        raise ValueError(f"temperature must be a finite number >= 0, got {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be in (0, 1], got {top_p}")
    if top_k < 0 or n < 1:
        raise ValueError(f"top_k must be >= 0 and n >= 1, got {top_k} and {n}")
    limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    if len(limits) != len(prompts) or any(limit < 1 for limit in limits):
        raise ValueError(f"max_new_tokens must be >= 1: one number, or one for each of {len(prompts)} prompts")
    empty = [i for i, prompt in enumerate(prompts) if not len(prompt)]
    if empty:
        raise ValueError(f"prompt {empty[0]} is empty: there is nothing to continue")
    return limits
