"""A language model of a few thousand weights with a tokenizer, and examples that a test fine-tunes it on."""

import json
import random
from pathlib import Path

import torch
from huggingface_folder import make_tokenizer


def make_opt(folder: Path) -> Path:
    """config.json, model.safetensors, tokenizer.json; tied embeddings.

    An OPT, because a Llama computes its norms in float32 whatever its weights are, so that float64 would show nothing.
    """
    import transformers

    folder.mkdir(parents=True)
    make_tokenizer(folder)
    torch.manual_seed(1)
    sizes = {"vocab_size": 300, "hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 32, "num_hidden_layers": 2}
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1, "max_position_embeddings": 64}
    config = transformers.OPTConfig(**sizes, **tokens, num_attention_heads=4, init_std=0.2)
    transformers.OPTForCausalLM(config).save_pretrained(folder)
    return folder


def make_examples(folder: Path) -> dict[str, Path]:
    """A JSONL file for each objective: a word, and the word backwards; rejected is the word as it was."""
    choose = random.Random(7)
    words = ["".join(choose.choices("abcdefgh", k=choose.randint(2, 12))) + "i" for _ in range(60)]
    pairs = {
        "sft": [{"prompt": f"{word}>", "answer": word[::-1]} for word in words],
        "dpo": [{"prompt": f"{word}>", "chosen": word[::-1], "rejected": word} for word in words],
    }
    files = {objective: folder / f"{objective}.jsonl" for objective in pairs}
    for objective, file in files.items():
        file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs[objective]))
    return files
