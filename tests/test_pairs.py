"""Pairs: made from real code, broken in known ways; read and written line by line; weighted by how rare they are."""

import ast
import json
import os
import random
import re

import pytest
import torch

from ddp_course.base.errors import InputError
from ddp_course.data import density
from ddp_course.data.breakage import BREAKAGES, blocks, break_block
from ddp_course.data.corpora import load
from ddp_course.data.pairs import (
    TRAIN,
    VALIDATION,
    Pair,
    fingerprint,
    make_pairs,
    pairs_of_step,
    prepare_pairs,
    read_pairs,
    write_pairs,
)

pytestmark = [pytest.mark.smoke, pytest.mark.usefixtures("own_cache")]


SOURCE = '''"""A docstring, if any (one) + two == 3:
stays whole.
"""
import os


def share(items, rank, ranks):
    # a comment, with (brackets) + signs
    if rank < ranks and items:
        return [item for item in items[rank::ranks] if item != "nothing"]
    total = len(items) + 1
    names = {"rank": rank, "ranks": ranks}
    return total - 1, names
'''


def blocks_of_source(seed):
    return blocks(SOURCE, 50, random.Random(seed))


DROPPED = {"bracket_dropped": "()[]{}", "comma_dropped": ",", "colon_dropped": ":", "quote_dropped": "'\""}


def edit(old, new):
    """The part of `old` that `new` replaces, and the part of `new` that is there instead."""
    begin = len(os.path.commonprefix([old, new]))
    end = len(os.path.commonprefix([old[begin:][::-1], new[begin:][::-1]]))
    return old[begin : len(old) - end], new[begin : len(new) - end]


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_breakage_changes_one_place_of_code_and_nothing_else(name):
    count = 0
    for seed in range(30):
        choose = random.Random(seed)
        for block in blocks_of_source(seed):
            text = BREAKAGES[name](block, choose)
            if text is None:
                continue
            count += 1
            assert text != block.text and SOURCE.count(block.text) >= 1
            assert "docstring" not in block.text and 1 <= block.text.count("\n") <= 3
            old, new = edit(block.text, text)
            if name == "lines_swapped":
                pairs = enumerate(zip(block.text.splitlines(), text.splitlines(), strict=True))
                first, second = [n for n, (before, after) in pairs if before != after]
                assert second == first + 1 and sorted(text.splitlines()) == sorted(block.text.splitlines())
            elif name == "letters_swapped":
                assert len(old) == 2 and new == old[::-1]
            elif name in DROPPED:
                assert len(old) == 1 and old in DROPPED[name] and new == ""
            elif name == "indentation_lost":
                assert old in [" " * n for n in range(1, 5)] and new == ""
            else:  # operator_swapped, name_replaced
                words = zip(*(re.findall(r"\w+|\s+|[^\w\s]+", code) for code in (block.text, text)), strict=True)
                assert sum(old != new for old, new in words) == 1
            # A comment is no code: its line may move or lose its indentation, but is not edited.
            for line in block.text.splitlines():
                assert not line.strip().startswith("#") or line.strip() in text
    assert count > 20


def test_code_without_a_bracket_quote_or_colon_no_longer_parses():
    refused = 0
    for seed in range(20):
        for block in blocks_of_source(seed):
            for name in ("bracket_dropped", "quote_dropped", "colon_dropped"):
                text = BREAKAGES[name](block, random.Random(seed))
                if text is not None:
                    with pytest.raises(SyntaxError):
                        ast.parse(SOURCE.replace(block.preceding + block.text, block.preceding + text))
                    refused += 1
    assert refused > 50


def test_breakages_are_a_function_of_the_seed():
    first, second = ([break_block(block, random.Random(3)) for block in blocks_of_source(5)] for _ in range(2))
    assert first == second and {name for name, _ in first} <= set(BREAKAGES)


@pytest.mark.parametrize("source", ["", "x = (\n", "def f(:\n  '''", "\tif a:\n  b\n x", "x = 1\r\ny = 2\r\n"])
def test_source_that_cannot_be_parsed_or_has_other_line_ends_gives_no_blocks(source):
    assert blocks(source, 9, random.Random(0)) == []


def test_pairs_are_written_and_read_back(tmp_path):
    pairs = [Pair("a\n", "b'\"\n", "c é\t", "kind"), Pair("", "x", "y")]
    write_pairs(tmp_path / "p.jsonl", pairs)
    assert read_pairs(tmp_path / "p.jsonl") == pairs
    assert [path.name for path in tmp_path.iterdir()] == ["p.jsonl"]


GOOD = json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"})
BAD_LINES = {
    "torn": (GOOD[:-9], "line 2: expected a JSON object, found"),
    "empty line": ("", "line 2: expected a JSON object, found ''"),
    "nested": ("[" * 100_000, "line 2: its JSON is nested too deeply to be read"),
    "a list": ("[1, 2]", "line 2: expected a JSON object with prompt, chosen and rejected, found list"),
    "no chosen": ('{"prompt": "a", "rejected": "c"}', "line 2: 'chosen' is missing; there is prompt, rejected"),
    "a number": ('{"prompt": "a", "chosen": 1, "rejected": "c"}', "line 2: 'chosen' should be a text, found int"),
    "null": ('{"prompt": null, "chosen": "b", "rejected": "c"}', "line 2: 'prompt' should be a text, found NoneType"),
    "nothing chosen": ('{"prompt": "a", "chosen": "", "rejected": "c"}', "line 2: 'chosen' is empty"),
    "no difference": ('{"prompt": "a", "chosen": "b", "rejected": "b"}', "line 2: chosen and rejected are the same"),
    "NUL": ('{"prompt": "a\\u0000", "chosen": "b", "rejected": "c"}', "line 2: 'prompt' holds a NUL"),
    "surrogate": ('{"prompt": "a", "chosen": "\\ud800", "rejected": "c"}', "line 2: 'chosen' holds a NUL or half"),
}


@pytest.mark.parametrize("what", BAD_LINES)
def test_a_bad_line_is_named_by_its_number(tmp_path, what):
    line, message = BAD_LINES[what]
    (tmp_path / "p.jsonl").write_text(f"{GOOD}\n{line}\n{GOOD}\n")
    with pytest.raises(InputError, match="p.jsonl, line 2") as error:
        read_pairs(tmp_path / "p.jsonl")
    assert message in str(error.value)


def test_a_line_that_is_not_utf8_an_empty_and_a_missing_file_are_named(tmp_path):
    (tmp_path / "p.jsonl").write_bytes(GOOD.encode() + b"\n\xff\xfe\n")
    with pytest.raises(InputError, match="line 2: it is not UTF-8"):
        read_pairs(tmp_path / "p.jsonl")
    (tmp_path / "p.jsonl").write_bytes(b"")
    with pytest.raises(InputError, match="p.jsonl is empty"):
        read_pairs(tmp_path / "p.jsonl")
    with pytest.raises(InputError, match="cannot read"):
        read_pairs(tmp_path / "none.jsonl")


def test_pairs_of_the_standard_library_come_from_files_of_their_own():
    folder = prepare_pairs("stdlib", 60, 40, 1, say=lambda line: None)
    train, held_out = read_pairs(folder / TRAIN), read_pairs(folder / VALIDATION)
    assert (len(train), len(held_out)) == (60, 40)
    assert not {pair.prompt + pair.chosen for pair in train} & {pair.prompt + pair.chosen for pair in held_out}
    written = fingerprint(folder), (folder / TRAIN).stat().st_mtime_ns
    assert prepare_pairs("stdlib", 60, 40, 1) == folder, "the second time it comes from the cache"
    assert written == (fingerprint(folder), (folder / TRAIN).stat().st_mtime_ns)
    other_settings = (60, 40, 2), (50, 40, 1), (60, 30, 1)
    others = {prepare_pairs("stdlib", *settings, say=lambda line: None) for settings in other_settings}
    assert len({fingerprint(path) for path in {folder, *others}}) == 4
    # Made from the held-out files of pre-training: no model has trained on them either.
    validation_text = "".join(load("stdlib").documents("val"))
    assert all(pair.prompt + pair.chosen in validation_text for pair in held_out)


def test_a_prompt_of_a_single_file_is_on_one_side_only(tmp_path):
    pairs = [Pair(f"prompt {n % 50}", f"chosen {n}", f"rejected {n}") for n in range(200)]
    write_pairs(tmp_path / "all.jsonl", pairs)
    folder = prepare_pairs(str(tmp_path / "all.jsonl"), 1, 1, 1)
    train, held_out = read_pairs(folder / TRAIN), read_pairs(folder / VALIDATION)
    assert len(train) + len(held_out) == 200 and held_out
    assert not {pair.prompt for pair in train} & {pair.prompt for pair in held_out}
    assert prepare_pairs(str(folder), 1, 1, 1) == folder, "a folder with both files is taken as it is"


def test_pairs_of_a_step_depend_on_seed_and_step_alone():
    assert pairs_of_step(1, 7, 64, 1000) == pairs_of_step(1, 7, 64, 1000)
    assert pairs_of_step(1, 7, 64, 1000)[:8] == pairs_of_step(1, 7, 8, 1000)
    assert pairs_of_step(1, 7, 64, 1000) != pairs_of_step(1, 8, 64, 1000)
    drawn = [n for step in range(50) for n in pairs_of_step(1, step, 64, 10)]
    assert set(drawn) == set(range(10))


def test_documents_give_at_most_the_pairs_per_file_and_in_all():
    assert len(list(make_pairs([SOURCE] * 20, 30, 1, per_file=4))) == 30
    assert len(list(make_pairs([SOURCE] * 2, 30, 1, per_file=4))) == 8


# ---- weights -----------------------------------------------------------------------------------------------------

PROMPTS = ["x = 1\n", "y = 2\n", "name = 77\n", "def f(a):\n", "if a and b:\n"]


def test_a_computed_weight_is_one_over_the_number_of_prompts_of_its_shape():
    weights = density.computed(PROMPTS)
    assert [weights[density.key_of(prompt)] for prompt in PROMPTS] == [1 / 3, 1 / 3, 1 / 3, 1, 1]
    assert density.shape_of("first\n    return x.y + 'text'  \n\n") == "return a.a + '"
    assert density.look_up(PROMPTS, weights, 0).values.mean() == pytest.approx(1, abs=1e-15)


def test_misses_take_the_mean_and_are_counted():
    weights = {density.key_of(prompt): 0.001 * (n + 1) for n, prompt in enumerate(PROMPTS[:4])}
    result = density.look_up(PROMPTS, weights, most_misses=0.2)
    assert result.misses == 1
    assert result.values.tolist() == pytest.approx([0.4, 0.8, 1.2, 1.6, 1.0])
    with pytest.raises(InputError, match="1 of 5 prompts have no weight, more than --most-misses 0.1 allows"):
        density.look_up(PROMPTS, weights, most_misses=0.1)


def test_with_one_more_newline_every_prompt_misses():
    weights = density.computed(prompt + "\n" for prompt in PROMPTS)
    with pytest.raises(InputError, match=r"5 of 5 prompts have no weight.*the first ends in 'x = 1\\n'"):
        density.look_up(PROMPTS, weights, most_misses=0.99)


KEY = "0123456789abcdef"
BAD_WEIGHTS = {
    "not JSON": ("{", "expected a JSON object, found '{'"),
    "a list": ("[1]", "expected a JSON object, found list"),
    "nested": ("[" * 100_000, "nested too deeply"),
    "nothing": ("{}", "expected a JSON object with md5 and weight, found an empty one"),
    "a prompt for a key": ('{"def f():": 1}', "is not an md5 in 16 to 32 hex digits"),
    "zero": (f'{{"{KEY}": 0}}', "is 0, expected a number from 1e-30 to 1e30"),
    "negative": (f'{{"{KEY}": -1}}', "is -1, expected a number from 1e-30 to 1e30"),
    "infinite": (f'{{"{KEY}": Infinity}}', "is inf, expected a number from 1e-30 to 1e30"),
    "not a number": (f'{{"{KEY}": NaN}}', "is nan, expected a number from 1e-30 to 1e30"),
    "true": (f'{{"{KEY}": true}}', "is True, expected a number from 1e-30 to 1e30"),
    "401 digits": (f'{{"{KEY}": 1{"0" * 400}}}', f"is 1{'0' * 39}, expected a number from 1e-30 to 1e30"),
    "too small to be divided by": (f'{{"{KEY}": 5e-324}}', "is 5e-324, expected a number from 1e-30 to 1e30"),
    "a text": (f'{{"{KEY}": "1"}}', "is '1', expected a number from 1e-30 to 1e30"),
    "twice": (f'{{"{KEY}": 1, "{KEY}00": 2}}', "occurs twice, with weights 1.0 and 2"),
}


@pytest.mark.parametrize("what", BAD_WEIGHTS)
def test_a_bad_file_of_weights_is_named(tmp_path, what):
    text, message = BAD_WEIGHTS[what]
    (tmp_path / "w.json").write_text(text)
    with pytest.raises(InputError, match="w.json") as error:
        density.read_weights(tmp_path / "w.json")
    assert message in str(error.value)


def test_weights_are_read_by_the_first_16_digits(tmp_path):
    (tmp_path / "w.json").write_text(json.dumps({KEY + "0" * 16: 2, "f" * 16: 0.5}))
    assert density.read_weights(tmp_path / "w.json") == {KEY: 2.0, "f" * 16: 0.5}


def loss(mode, weights, losses):
    factor = density.factors(weights, mode, None, total_weight=weights.sum().item(), pairs=len(weights))
    return (factor * losses).sum().item() / len(weights)


def test_the_modes_are_three_different_losses():
    """Written out: the mean, the weighted mean, the weighted sum over the number of pairs."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(100):
        w = 0.1 + 3 * torch.rand(8, generator=generator, dtype=torch.float64)
        losses = torch.rand(8, generator=generator, dtype=torch.float64)
        plain, mean, weighted = losses.mean().item(), ((w * losses).sum() / w.sum()).item(), (w * losses).mean().item()
        assert loss("none", w, losses) == pytest.approx(plain, abs=1e-12)
        assert loss("mean", w, losses) == pytest.approx(mean, abs=1e-12)
        assert loss("sum", w, losses) == pytest.approx(weighted, abs=1e-12)
        assert len({round(loss, 6) for loss in (plain, mean, weighted)}) == 3
        # mean forgets the size of the weights, sum does not.
        assert loss("mean", 5 * w, losses) == pytest.approx(mean)
        assert loss("sum", 5 * w, losses) == pytest.approx(5 * weighted)
    equal = torch.ones(8, dtype=torch.float64)
    assert loss("none", equal, losses) == loss("mean", equal, losses) == loss("sum", equal, losses)


def test_over_all_batches_a_pair_counts_by_its_weight_with_sum_alone():
    """With `mean` a batch forgets how heavy it is: the heavy pair counts less in a batch that it fills."""
    weights = torch.tensor([2.8, 0.4, 0.4, 0.4], dtype=torch.float64)
    counted = {mode: torch.zeros(4, dtype=torch.float64) for mode in ("none", "mean", "sum")}
    for batch in torch.cartesian_prod(torch.arange(4), torch.arange(4)):  # all batches of two, equally likely
        own = weights[batch]
        for mode, total in counted.items():
            total.index_add_(0, batch, density.factors(own, mode, None, total_weight=own.sum().item(), pairs=2))
    shares = {mode: total[0].item() / total.sum().item() for mode, total in counted.items()}
    assert shares == pytest.approx({"none": 0.25, "mean": 0.390625, "sum": 0.7})


@pytest.mark.parametrize("mode", ["mean", "sum"])
def test_the_cap_bounds_the_factor_of_a_pair(mode):
    """A cap on weights before they are normalised bounds nothing: among light pairs a capped one is heavy again."""
    w = torch.tensor([100.0, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01], dtype=torch.float64)
    totals = {"total_weight": w.sum().item(), "pairs": len(w)}
    assert density.factors(w, mode, None, **totals).max() > 7
    assert density.factors(w, mode, 2.0, **totals).max() == 2.0
    capped = w.clamp(max=2.0)
    assert density.factors(capped, "mean", None, total_weight=capped.sum().item(), pairs=8).max() > 7


CODE = "import os\n\n\ndef path_of(name):\n    return os.path.join(os.sep, name, str(len(name)))\n\n\n" * 300


@pytest.mark.parametrize("name", ["pairs.json", "pairs.txt", "pairs"])
def test_a_file_of_pairs_is_known_by_its_content(tmp_path, name):
    write_pairs(tmp_path / name, [Pair(f"prompt {n}", f"chosen {n}", f"rejected {n}") for n in range(200)])
    folder = prepare_pairs(str(tmp_path / name), 1, 1, 1)
    assert {pair.kind for pair in read_pairs(folder / TRAIN)} == {""}, "made from the lines as if they were code"


NOT_PAIRS = {  # files, the path that is given, the message
    "a list": ({"p.json": f"[{GOOD},\n{GOOD}]"}, "p.json", "p.json, line 1: expected a JSON object"),
    "spread over lines": ({"p.json": json.dumps(json.loads(GOOD), indent=2)}, "p.json", "p.json, line 1"),
    "prose": ({"p.txt": "Once upon a time.\n" * 99}, "p.txt", "it holds no Python code"),
    "only one of two": ({"f/train.jsonl": GOOD * 99}, "f", "holds train.jsonl but no validation.jsonl"),
    "other names": ({"f/all.jsonl": f"{GOOD}\n" * 99, "f/b.json": "[1]"}, "f", "it holds no Python code"),
    "only data": ({"f/a.py": "[1, 2, 3]\n", "f/b.txt": "word\n" * 99}, "f", "it holds no Python code"),
}


@pytest.mark.parametrize("what", NOT_PAIRS)
def test_data_that_is_neither_pairs_nor_code_is_refused(tmp_path, what):
    files, path, message = NOT_PAIRS[what]
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=re.escape(message)):
        prepare_pairs(str(tmp_path / path), 10, 5, 1, say=lambda line: None)


def test_of_a_mixed_folder_only_the_code_is_broken(tmp_path):
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "a.py").write_text(CODE)
    (tmp_path / "f" / "notes.txt").write_text("Once (upon) a time, there was [a] line == that is no code.\n" * 999)
    folder = prepare_pairs(str(tmp_path / "f"), 20, 5, 1, say=lambda line: None)
    assert all("time" not in pair.prompt + pair.chosen for pair in read_pairs(folder / TRAIN))


def test_code_that_is_trained_on_is_not_held_out(tmp_path):
    (tmp_path / "a.py").write_text(CODE * 2)
    with pytest.raises(InputError, match="too little Python code that is not trained on for validation.jsonl"):
        prepare_pairs(str(tmp_path / "a.py"), 20, 5, 1, say=lambda line: None)


def test_a_resumed_run_reads_its_pairs_though_the_code_has_changed(tmp_path):
    (tmp_path / "a.py").write_text(CODE)
    settings = {"pairs": str(tmp_path / "a.py"), "train_pairs": 20, "validation_pairs": 5, "seed": 1}
    folder = prepare_pairs(*settings.values(), say=lambda line: None)
    (tmp_path / "a.py").write_text(CODE + "# more\n")
    lines, recorded = [], settings | {"pairs_folder": str(folder)}
    assert prepare_pairs(*settings.values(), lines.append, recorded) == folder and not lines
    assert prepare_pairs(*settings.values(), lines.append, recorded | {"seed": 2}) != folder, "it has another seed"
    for file in folder.iterdir():
        file.unlink()
    assert prepare_pairs(*settings.values(), lines.append, recorded) != folder
    assert "the pairs that this run began with are gone" in lines[-1]
