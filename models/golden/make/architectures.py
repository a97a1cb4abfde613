"""Random models of every architecture that deltamux runs, with what transformers computes from them.

    pip install torch transformers safetensors
    python3 models/golden/make/architectures.py models/golden/architectures

For each model: config.json and model.safetensors as `save_pretrained` writes them (bf16), and golden.json with the
logits after a prompt and a greedy continuation, computed in float32 from the bf16 weights with eager attention. The
weights are larger than a fresh initialisation, so that positions, norms and biases show in the logits.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

SHAPE = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=96,
    max_position_embeddings=512,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
MODELS = {
    # An untied head, biases everywhere and the scaling of Llama 3.1.
    "llama-3-scaling": LlamaConfig(
        **SHAPE, tie_word_embeddings=False, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3
    ),
    # A head width that is not hidden / heads.
    "mistral-head-dim": MistralConfig(**SHAPE, head_dim=16, sliding_window=None, tie_word_embeddings=False),
    # Biases on q, k and v and an untied head, as the larger Qwen2.5.
    "qwen2-untied": Qwen2Config(**SHAPE, tie_word_embeddings=False),
    # Norms on the heads of q and k, a tied head.
    "qwen3-qk-norm": Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=True),
}
PROMPT_LENGTHS = [1, 20, 150]
GREEDY_TOKENS = 32


def fill(model, generator):
    """Weights at which every part of the arithmetic matters."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            values = 1.0 + 0.3 * noise
        elif name.endswith("bias"):
            values = 0.3 * noise
        elif "embed_tokens" in name or "lm_head" in name:
            values = noise
        else:
            values = 1.5 * noise / parameter.shape[1] ** 0.5
        parameter.data = values.to(torch.bfloat16).float()


@torch.no_grad()
def case(model, ids):
    logits = model(torch.tensor([ids])).logits[0, -1]
    greedy, margins = [], []
    for _ in range(GREEDY_TOKENS):
        step = model(torch.tensor([ids + greedy])).logits[0, -1]
        top = step.topk(2).values
        margins.append((top[0] - top[1]).item())
        greedy.append(step.argmax().item())
    return {
        "input_ids": ids,
        "logits": [round(x, 5) for x in logits.tolist()],
        "greedy_ids": greedy,
        "greedy_min_margin": round(min(margins), 5),
    }


def main(out):
    for index, (name, config) in enumerate(MODELS.items()):
        generator = torch.Generator().manual_seed(1000 + index)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
        fill(model, generator)
        prompts = [torch.randint(0, SHAPE["vocab_size"], (n,), generator=generator).tolist() for n in PROMPT_LENGTHS]
        golden = {
            "model": name,
            "compute": "float32, weights bf16, eager attention",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "cases": [case(model, ids) for ids in prompts],
        }
        directory = out / name
        model.to(torch.bfloat16).save_pretrained(directory)
        (directory / "generation_config.json").unlink(missing_ok=True)
        (directory / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


main(Path(sys.argv[1]))
