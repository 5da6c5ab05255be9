"""A random llama of 260 byte-level tokens: nonsense, but all of it real, and fast."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

NUM_LAYERS, HIDDEN, HEADS, KV_HEADS, INTERMEDIATE, MAX_LEN = 2, 32, 4, 2, 64, 256
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tokenizer(folder: Path) -> int:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True) for text in ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>")]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "chat_template": CHAT_TEMPLATE}))
    return tokenizer.get_vocab_size()


def write_weights(folder: Path, vocab_size: int) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HIDDEN // HEADS,
        "max_position_embeddings": MAX_LEN,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "vocab_size": vocab_size,
    }
    (folder / "config.json").write_text(json.dumps(config))
    random = torch.Generator().manual_seed(0)

    def weights(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random) * 0.3

    kv_size = KV_HEADS * HIDDEN // HEADS
    tensors = {"model.embed_tokens.weight": weights(vocab_size, HIDDEN), "model.norm.weight": torch.ones(HIDDEN)}
    for layer in range(NUM_LAYERS):
        tensors |= {
            f"model.layers.{layer}.{name}.weight": weights(*shape) if len(shape) == 2 else torch.ones(*shape)
            for name, shape in {
                "input_layernorm": (HIDDEN,),
                "post_attention_layernorm": (HIDDEN,),
                "self_attn.q_proj": (HIDDEN, HIDDEN),
                "self_attn.k_proj": (kv_size, HIDDEN),
                "self_attn.v_proj": (kv_size, HIDDEN),
                "self_attn.o_proj": (HIDDEN, HIDDEN),
                "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
                "mlp.up_proj": (INTERMEDIATE, HIDDEN),
                "mlp.down_proj": (HIDDEN, INTERMEDIATE),
            }.items()
        }
    save_file(tensors, folder / "model.safetensors")


def write_tiny_llama(folder: Path) -> None:
    """Write the model into an empty folder."""
    write_weights(folder, write_tokenizer(folder))
