"""A tokenizer as Hugging Face saves one, and a causal language model of a few thousand weights with it."""

import json

import torch

TEXTS = ["def share(items):\n    return items[0]\n", "for item in items:\n    print(item)\n", "x = (1, 2)\n"] * 3


def make_tokenizer(path):
    """tokenizer.json and tokenizer_config.json in `path`, trained on three lines; "<|end|>" ends a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    library.train_from_iterator(TEXTS, trainer)
    library.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"})
    )
    return path


def make_model(path, context=32):
    """A GPT-2 in `path`, with the tokenizer above."""
    import transformers

    make_tokenizer(path)
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=300, n_positions=context, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(path)
    return path
