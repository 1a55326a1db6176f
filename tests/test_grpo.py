"""GRPO: its formulas, its reward, and the launchable at 1, 2 and 4 processes."""

import importlib
import json
import math
import shutil
import warnings
from dataclasses import replace

import grpo_rung
import pytest
import torch
import warm
from huggingface_folder import make_model
from trainer_runs import run_jobs
from training_runs import (
    ROOT,
    assert_same_run,
    checkpoint,
    in_this_process,
    largest_gap,
    merged,
    metrics,
    one_process_group,
    same,
    train_here,
)

from ddp_course import grpo_ddp
from ddp_course.base.errors import InputError
from ddp_course.data import corpora, tokenizer
from ddp_course.data.pairs import Pair, write_pairs
from ddp_course.distributed import process_group
from ddp_course.distributed.process_group import World
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig
from ddp_course.post_training.batch import compute_metrics
from ddp_course.post_training.grpo import (
    HIGHEST_BETA,
    LOWEST_BETA,
    AdaptiveBeta,
    group_advantages,
    grpo_loss,
    token_log_probs,
)
from ddp_course.post_training.pairwise_objective import pairwise_advantages, pairwise_loss
from ddp_course.post_training.pretrained import load_pretrained
from ddp_course.post_training.prompts import collect, prompts_of
from ddp_course.post_training.rewards import Parses, parses
from ddp_course.post_training.rollout import RolloutModels, score_pairs
from ddp_course.training import command_line

GRPO = ROOT / "ddp_course" / "grpo_ddp.py"


# ---- formulas ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1e-8, -3e6])
def test_equal_rewards_have_zero_advantages(reward):
    """Exactly zero, although the float32 mean of eight times 0.1 is not 0.1."""
    assert torch.equal(group_advantages(torch.full((3, 8), reward)), torch.zeros(3, 8))


def tensors():
    """Hidden states, an output matrix, tokens, and the other arguments of the loss: completions of several lengths."""
    sequences, length, vocabulary, width = 6, 9, 11, 5
    generator = torch.Generator().manual_seed(2)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    hidden, output = normal(sequences, length, width).requires_grad_(), normal(vocabulary, width).requires_grad_()
    tokens = torch.randint(vocabulary, (sequences, length), generator=generator)
    starts, positions = torch.arange(sequences)[:, None] % 3, torch.arange(length - 1)
    counted = (starts <= positions) & (positions < length - 1 - torch.arange(sequences)[:, None] % 4)
    log_probs, _ = token_log_probs((hidden @ output.T).detach(), tokens, 0.7)
    inputs = {name: log_probs + 0.3 * normal(*log_probs.shape) for name in ("old", "reference")}
    return hidden, output, tokens, inputs | {"advantages": normal(sequences), "counted": counted}


def ours(hidden, output, tokens, inputs):
    log_probs, _ = token_log_probs(hidden @ output.T, tokens, temperature=0.7)
    return grpo_loss(log_probs, **inputs, clip=0.2, beta=0.3)


def test_the_loss_token_by_token():
    hidden, output, tokens, inputs = tensors()
    loss, clipped = ours(hidden, output, tokens, inputs)
    expected, cut, logits = 0.0, 0, (hidden @ output.T).detach()
    for row, position in inputs["counted"].nonzero().tolist():
        scores = [float(x) / 0.7 for x in logits[row, position]]
        log_prob = scores[tokens[row, position + 1]] - math.log(sum(map(math.exp, scores)))
        ratio = math.exp(log_prob - inputs["old"][row, position])
        gap = inputs["reference"][row, position].item() - log_prob
        free = ratio * inputs["advantages"][row].item()
        bounded = min(max(ratio, 0.8), 1.2) * inputs["advantages"][row].item()
        expected += 0.3 * (math.exp(gap) - gap - 1) - min(free, bounded)
        cut += bounded < free
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    assert clipped.item() == cut and 0 < cut < inputs["counted"].sum()


@pytest.mark.parametrize("kind", ["dapo", "grpo"])
def test_the_loss_is_that_of_liger_kernel(kind):
    """The same loss, the same gradients, the same share of clipped tokens.

    dapo: the mean over all tokens, as ours. grpo: the mean of the completions' means, put together from our sums.
    """
    module = pytest.importorskip("liger_kernel.chunked_loss.grpo_loss", reason="needs the extra `peers`: liger-kernel")
    hidden, output, tokens, inputs = tensors()
    theirs = module.LigerFusedLinearGRPOLoss(
        beta=0.3, epsilon_low=0.2, epsilon_high=0.2, temperature=0.7, loss_type=kind, compiled=False
    )
    others = {"ref_per_token_logps": inputs["reference"], "old_per_token_logps": inputs["old"]}
    their_loss, (_, their_share) = theirs(
        hidden[:, :-1], output, tokens[:, 1:], inputs["counted"].double(), inputs["advantages"], **others
    )
    their_gradients = torch.autograd.grad(their_loss, (hidden, output))
    loss, clipped = ours(hidden, output, tokens, inputs)
    if kind == "dapo":
        loss = loss / inputs["counted"].sum()
    else:
        rows = [{name: value[row : row + 1] for name, value in inputs.items()} for row in range(len(tokens))]
        loss = sum(
            ours(hidden[row : row + 1], output, tokens[row : row + 1], row_inputs)[0] / row_inputs["counted"].sum()
            for row, row_inputs in enumerate(rows)
        ) / len(rows)
    assert loss.item() == pytest.approx(their_loss.item(), abs=1e-6)  # theirs is computed in float32
    for gradient, expected in zip(torch.autograd.grad(loss, (hidden, output)), their_gradients, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)
    assert (clipped / inputs["counted"].sum()).item() == pytest.approx(their_share.item())


def test_a_token_that_is_not_counted_has_no_gradient():
    """exp(200) is infinite in float32, and a gradient of 0 times infinity is NaN: the mask has to come first."""
    far = torch.full((2, 4), -200.0)
    log_probs = torch.full((2, 4), -1.0, requires_grad=True)
    counted = torch.tensor([[False, False, True, True], [False, True, True, False]])
    near = torch.full((2, 4), -1.1)
    settings = {"advantages": torch.tensor([1.0, -1.0]), "counted": counted, "clip": 0.2, "beta": 0.1}
    expected, _ = grpo_loss(log_probs, near, near, **settings)
    wanted = torch.autograd.grad(expected, log_probs)[0]
    for sign in (1, -1):
        elsewhere = torch.where(counted, near, sign * far)
        for old, reference in ((elsewhere, near), (near, elsewhere), (elsewhere, elsewhere)):
            loss, clipped = grpo_loss(log_probs, old, reference, **settings)
            assert torch.equal(loss, expected) and clipped <= counted.sum()
            assert torch.equal(torch.autograd.grad(loss, log_probs)[0], wanted)


def test_the_pairwise_objective():
    log_probs = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    counted = torch.arange(7) < torch.tensor([[7], [4], [2], [6]])
    means = torch.stack([row[mask].mean() for row, mask in zip(log_probs, counted, strict=True)]).view(2, 2)
    rewards, reference = torch.randn(2, 2, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)
    margins = (rewards[:, 0] - rewards[:, 1]) - 0.3 * ((means - reference)[:, 0] - (means - reference)[:, 1])
    expected = -(margins.detach() * (means[:, 0] - means[:, 1])).sum()
    loss = pairwise_loss(log_probs, pairwise_advantages(rewards, means, reference, 0.3).flatten(), counted)
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, log_probs)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, log_probs)[0])


def test_beta_follows_the_kl_and_is_saved():
    beta = AdaptiveBeta(1.0, target=0.1, gain=0.5)
    beta.update(10.0)
    assert beta.value == pytest.approx(1.1), "the error is bounded at a fifth"
    beta.update(0.09)
    assert beta.value == pytest.approx(1.1 * 0.95)
    other = AdaptiveBeta(5.0, target=0.1, gain=0.5)
    other.load_state_dict(json.loads(json.dumps(beta.state_dict())))
    assert other.value == beta.value
    fixed = AdaptiveBeta(1.0, target=0.0, gain=0.5)
    fixed.update(10.0)
    assert fixed.value == 1.0


@pytest.mark.parametrize("gain", [0.5, 4.999, 5.0, 20.0, 1e300])
@pytest.mark.parametrize("start", [0.0, LOWEST_BETA, 0.05, HIGHEST_BETA])
def test_beta_stays_in_its_range_with_any_gain(gain, start):
    """Below zero it would pay the policy for leaving the reference, and it would never come back from zero."""
    for kls in ([0.0] * 400, [10.0] * 400, [0.0, 10.0] * 200):
        beta = AdaptiveBeta(start, target=0.1, gain=gain)
        for kl in kls:
            beta.update(kl)
            assert (start == beta.value == 0) or LOWEST_BETA <= beta.value <= HIGHEST_BETA
        old_value = beta.value
        beta.update(0.0 if kls[-1] else 10.0)
        assert start == 0 or beta.value != old_value, "it can still move"


def test_a_kl_that_is_no_number_leaves_beta_as_it_is():
    beta = AdaptiveBeta(0.05, target=0.1, gain=0.5)
    beta.update(math.nan)
    assert beta.value == 0.05


def test_pairs_without_a_prompt_and_with_one_token():
    """An empty prompt is replaced by the token that ends a text, because the first token is not predicted."""
    torch.manual_seed(1)
    words = tokenizer.build("bytes", [])
    model = MiniGPT(MiniGPTConfig(256, 16, 1, 1, 8))
    models = RolloutModels(model, model, Parses(1), words, 4, 1.0, micro_batch_size=2, precision="float32")
    batch, _ = score_pairs(models, [Pair("", "a", "b", "")], beta=0.1)
    assert batch.tokens.tolist() == [[words.end_of_text, ord("a")], [words.end_of_text, ord("b")]]
    assert batch.counted.tolist() == [[True], [True]]
    with one_process_group() as world:
        assert compute_metrics(batch, 2, world)["tokens"] == 2


# ---- the reward --------------------------------------------------------------------------------------------------

HEADER = "def f(a, b):\n"
JUDGED = {
    "two statements": ("    c = a\n    return b\n", True),
    "one is too few": ("    return a\n", False),
    "the last line is cut off": ("    c = a\n    d = b\n    return (a", True),
    "what is whole is wrong": ("    c = a)\n    d = b\n    return a", False),
    "nothing": ("", False),
    "blank lines": ("\n\n\n\n", False),
    "comments": ("    # c\n    # d\n    # e\n", False),
    "a docstring, and one statement": ('    """c"""\n    return a\n', False),
    "bare constants": ("    1\n    None\n    ...\n", False),
    "nested": ("    if a:\n        return b\n", True),
    "a block without a body": ("    c = a\n    if a:\n", False),
    "an open bracket": ("    c = a\n    d = (\n", False),
    "one statement on two lines": ("    c = [\n        a]\n", False),
    "two on one line": ("    c = a; d = b\n", True),
    "indentation": ("    c = a\n   d = b\n", False),
    "NUL": ("    c = a\n    d = '\0'\n", False),
    "broken UTF-8, in a string": ("    c = '\ufffd'\n    d = a\n", True),
    "a form feed and a carriage return": ("    c = a\r    d = b\x0c\n", True),
    "too deep for the parser": (f"    c = {'(' * 5000}{')' * 5000}\n    d = a\n", False),
    "too deep for the tree": (f"    c = {'-' * 100_000}1\n    d = a\n", False),
    "a huge number": (f"    c = {'9' * 10_000}\n    d = a\n", False),
    "an escape that Python warns of": ("    c = '\\d'\n    d = 1if a else 2\n", True),
}


@pytest.mark.parametrize("title", JUDGED)
def test_what_parses(title):
    completion, expected = JUDGED[title]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parses(HEADER, completion, min_statements=2) is expected


def test_statements_of_the_prompt_do_not_count():
    assert not parses("def f():\n    a = 1\n    b = 2\n    return", " a\n", min_statements=1)
    assert parses("def f():\n    a = 1\n    b = 2\n    return", " a\nc = 1\n", min_statements=1)


@pytest.mark.parametrize(
    "evil", ["open({0!r}, 'w').write('x')", "__import__('os').mkdir({0!r})", "@open({0!r}, 'w').write\ndef g(): pass"]
)
def test_nothing_is_ever_executed(tmp_path, evil):
    """Not even the statements that an import of the module would execute."""
    lines = evil.format(str(tmp_path / "written"))
    assert parses("def f(): pass", f"\n{lines}\nx = 1\n", 2)
    assert not list(tmp_path.iterdir())


# ---- prompts -----------------------------------------------------------------------------------------------------


def functions(names):
    return "\n\n".join(f"def {name}(a, b):\n    c = a\n    return b" for name in names) + "\n"


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """A folder with two files of 90 functions each; the last functions of each are held out."""
    folder = tmp_path_factory.mktemp("code")
    for letter in "pq":
        (folder / f"{letter}.py").write_text(functions(f"{letter}{n}" for n in range(90)))
    return folder


def test_prompts_are_headers_that_the_corpus_has_once(tmp_path):
    for n in range(1, 19):
        (tmp_path / f"a{n:02}.py").write_text(f"x = {n}\n")
    (tmp_path / "a00.py").write_text(
        functions(["one", "two", "one"]) + "class A:\n    async def three(self, x: int = 3) -> dict[str, int]:\n"
        "        pass\n    def four(self,\n             x):\n        pass\n\n"
        'def five(): return 5\n\ndef six(a, a b):\n    pass\n\nTEXT = """\ndef seven(%s, b):\n"""\n'
    )
    (tmp_path / "a19.py").write_text(  # of 20 files the last validates
        functions(["longer" * 9, "eight", "one"])
        + "class B:\n    def nine(self):\n        if self:\n            pass\n\n    x = 2\ny = 3\n"
    )
    prompts = collect(corpora.load(str(tmp_path)), tokenizer.build("bytes", []), longest=55, held_out=8)
    assert prompts.train == ["def one(a, b):", "def two(a, b):", "async def three(self, x: int = 3) -> dict[str, int]:"]
    assert prompts.held_out == ["def eight(a, b):", "def nine(self):"]
    assert prompts.real[0].startswith(functions(["eight"]).removeprefix("def eight(a, b):"))
    assert prompts.real[1] == "\n    if self:\n        pass\n\nx = 2\n", "as far left as its prompt"


def test_prompts_of_a_step_are_a_pure_function_of_seed_and_step():
    def draw(seed, step, count=20):
        return tuple(prompts_of([str(n) for n in range(50)], seed=seed, step=step, count=count))

    draws = [draw(seed, step) for seed in (1, 2) for step in range(3)]
    assert len(set(draws)) == 6 and all(len(set(drawn)) == 20 for drawn in draws)
    assert draw(1, 2) == draws[2] and draw(1, 2, 5) == draws[2][:5]


# ---- the ladder --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def climb(tmp_path_factory):
    """{number of ranks: (weights by title, metrics by rank and title)}, see grpo_rung.py."""
    folder, climbed = tmp_path_factory.mktemp("rung"), {}
    foreign = [f"hf:{make_model(folder)}"] if importlib.util.find_spec("transformers") else []
    for nproc, policies in {1: ["minigpt", *foreign], 2: ["minigpt", *foreign], 4: ["minigpt"]}.items():
        words = folder / f"{nproc}.pt", *policies
        if nproc == 1:
            results = {0: grpo_rung.climb(*words)}
        else:
            results = warm.ranks(grpo_rung.__file__, *words, nproc=nproc).results
        climbed[nproc] = torch.load(words[0], weights_only=True), results
    return climbed


@pytest.mark.parametrize(("nproc", "policy"), [(2, "minigpt"), (4, "minigpt"), (2, "hf")])
def test_the_same_completions_give_the_same_step(climb, nproc, policy):
    """Ragged completions, uneven shares of the prompts, two passes, a clip that bites, a beta that moves: float64."""
    (weights, results), (single_weights, single), title = climb[nproc], climb[1], f"{policy}, none"
    if title not in weights:
        pytest.skip("the policy hf: needs transformers: pip install transformers")
    assert largest_gap(weights[title], single_weights[title]) < 1e-10
    for rank in range(nproc):
        ours, theirs = results[rank][title], single[0][title]
        assert ours["beta"] == results[0][title]["beta"] != 0.5, "the same on all ranks, to the last bit"
        assert ours["beta"] == pytest.approx(theirs["beta"], abs=1e-10)
        for metrics_of_round, expected in zip(ours["rounds"], theirs["rounds"], strict=True):
            assert metrics_of_round == pytest.approx(expected, abs=1e-10)


def test_the_rung_notices_a_divisor_or_a_beta_of_one_rank(climb):
    """With a rank's own divisor or beta the replicas stay equal, which the ranks assert, but the step is another."""
    (weights, results), (single, _) = climb[2], climb[1]
    for title in ("minigpt, own divisor", "minigpt, own beta"):
        assert largest_gap(weights[title], single[title]) > 1e-6, title
    assert results[0]["minigpt, own beta"]["beta"] != results[1]["minigpt, own beta"]["beta"]


# ---- the launchable ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pretrained(code, tmp_path_factory):
    """The run of a tiny model after 120 steps on the functions: few of its completions parse."""
    run_dir = tmp_path_factory.mktemp("pretrained")
    flags = "--steps 120 --learning-rate 3e-3 --validate-every 0 --checkpoint-every 0 --warmup-steps 10"
    train_here(run_dir, "--data", code, *flags.split())
    return run_dir


def arguments(pretrained, code, run_dir, *flags):
    return merged("--preset", "tiny", "--pretrained", pretrained, "--data", code, "--run-dir", run_dir, *flags)


def train_one(*flags):
    return in_this_process(grpo_ddp.train, command_line.parse(grpo_ddp.PRESETS, arguments(*flags)))


LEARN = (
    *"--steps 12 --prompts-per-update 8 --group-size 8 --new-tokens 24 --learning-rate 1e-3".split(),
    *"--warmup-steps 4 --validation-prompts 9 --validate-every 6 --checkpoint-every 6".split(),
    *"--keep-checkpoints 0 --kl-target 0.2".split(),
)


@pytest.fixture(scope="module")
def runs(pretrained, code, tmp_path_factory):
    """The folder of two runs on two ranks, with all checkpoints, and of the output of a stopped job.

    whole: undisturbed, and long enough to learn. resumed: from step 6 of whole; SIGTERM stops it while it samples, and
    it resumes again.
    """
    top = tmp_path_factory.mktemp("runs")
    resume = {"script": "grpo", "flags": arguments(pretrained, code, top / "resumed", *LEARN, "--resume", "auto")}
    stop = {"copy": [top / "whole", 6, top / "resumed"], "fault": "stopped while sampling", "printed": top}
    jobs = {
        "whole": {"script": "grpo", "flags": arguments(pretrained, code, top / "whole", *LEARN)},
        "stopped": resume | stop,
        "resumed": resume,
    }
    assert run_jobs(top, jobs, 2).outcomes == {"whole": "0", "stopped": "75", "resumed": "0"}
    return top


@pytest.fixture(scope="module")
def whole(runs):
    return runs / "whole"


def test_it_learns(whole):
    rewards = list(metrics(whole, "reward").values())
    first, last = sum(rewards[:4]) / 4, sum(rewards[-4:]) / 4
    assert 0.01 < first < 0.5, "the task is neither hopeless nor done"
    assert last > first + 0.2
    assert metrics(whole, "val_reward")[0] == metrics(whole, "val_reference")[12]
    assert metrics(whole, "val_parses") == metrics(whole, "val_reward"), "here the reward is whether it parses"
    assert metrics(whole, "val_real")[12] == metrics(whole, "val_real_parses")[0] > 0.5


def test_metrics_and_samples_are_logged(whole):
    records = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "loss" in record]
    names = {*"reward kl entropy clip_fraction beta length distinct r_margin lp_margin kl_margin tokens".split()}
    names |= {"learning_rate", "grad_norm", "completions_per_s", "seconds"}
    assert all(names <= record.keys() and all(map(math.isfinite, record.values())) for record in steps)
    assert [record["step"] for record in steps] == list(range(1, 13))
    assert steps[0]["kl"] == pytest.approx(0, abs=1e-6) and steps[-1]["kl"] > 1e-3
    assert any(record["clip_fraction"] > 0 for record in steps)
    assert len({record["beta"] for record in steps}) > 5
    samples = (whole / "samples.txt").read_text()
    assert "# the reference:" in samples and "# the policy:" in samples and "def " in samples


def test_a_checkpoint_is_a_pretrained_model(whole):
    model = load_pretrained(whole).model
    assert largest_gap(model.state_dict(), checkpoint(whole, 12)["model"]) == 0.0


def test_two_ranks_resume_bit_equal(runs, whole):
    """From a checkpoint between steps, and after a SIGTERM that came while they were sampling."""
    assert "stopped after step 7: received SIGTERM" in (runs / "printed_0").read_text()
    keys = "loss", "reward", "kl", "beta", "entropy", "clip_fraction", "val_reward"
    assert_same_run(runs / "resumed", whole, 12, keys)
    ours, theirs = checkpoint(runs / "resumed", 12), checkpoint(whole, 12)
    assert ours["beta"] == theirs["beta"] and len(ours["random_states"]) == 2
    assert same(ours["random_states"], theirs["random_states"])
    assert not torch.equal(*(state["torch"] for state in ours["random_states"])), "ranks draw different numbers"


def test_a_resumed_run_keeps_its_prompts(pretrained, code, tmp_path, own_cache):
    shutil.copytree(code, tmp_path / "code")
    words = pretrained, tmp_path / "code", tmp_path / "run", "--resume", "auto", "--validate-every", 0
    train_one(*words, "--steps", 1)
    (tmp_path / "code" / "a_new_file.py").write_text("def another(one):\n    return one\n")
    train_one(*words, "--steps", 2)
    shutil.rmtree(own_cache / "prompts")
    done = warm.single_process(GRPO, *arguments(*words, "--steps", 3))
    assert "the prompts that this run began with are gone" in done.stdout
    assert done.returncode == 1 and "it has prompts and pairs" in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_pairwise_objective_learns_its_pairs(pretrained, code, tmp_path):
    """Chosen and rejected differ in whether they parse: the log-probability margin grows."""
    pairs = [Pair(f"def p{n}(a, b):\n", "    c = a\n    return b\n", "    c = a)\n    return b\n") for n in range(16)]
    write_pairs(tmp_path / "pairs.jsonl", pairs)
    flags = "--objective pairwise --steps 6 --new-tokens 32 --passes 1 --min-statements 2".split()
    flags += ["--pairs", tmp_path / "pairs.jsonl"]
    train_one(pretrained, code, tmp_path / "run", *flags)
    margins = list(metrics(tmp_path / "run", "lp_margin").values())
    assert margins[-1] > margins[0] and set(metrics(tmp_path / "run", "r_margin").values()) == {1.0}


PAIRWISE = ["--objective", "pairwise", "--pairs"]
BAD = {
    "no policy": (["--pretrained", ""], "--pretrained is missing"),
    "no such policy": (["--pretrained", "{tmp}/none"], "none: there is no such checkpoint folder"),
    "a group of one": (["--group-size", "1"], "--group-size must be at least 2, not 1"),
    "too long": (["--new-tokens", "64"], "--new-tokens 64 leaves no room for a prompt in the model's context of 64"),
    "groups that no machine holds": (["--group-size", "1000000000"], "a step needs at least"),
    "too many prompts": (["--prompts-per-update", "5000"], "a step wants 5000 different prompts, the corpus has"),
    "no Python": (["--data", "{tmp}/text"], "has no function"),
    "a reward model without a path": (["--reward", "model"], "--reward model and --reward-model PATH belong together"),
    "pairs without their objective": (["--pairs", "x.jsonl"], "--objective pairwise and --pairs FILE belong together"),
    "pairs that are not there": ([*PAIRWISE, "{tmp}/x.jsonl"], "cannot read {tmp}/x.jsonl: "),
    "a bad line": ([*PAIRWISE, "{tmp}/bad.jsonl"], "bad.jsonl, line 1: 'rejected' is missing"),
    "pairs between which the reward sees no difference": (
        [*PAIRWISE, "{tmp}/equal.jsonl"],
        "the same reward to both answers of each of the 2 pairs in {tmp}/equal.jsonl, so nothing would be learned",
    ),
    "another run's checkpoint": (["--resume", "{whole}/checkpoints/step_000012"], "this run has"),
}


@pytest.mark.parametrize("title", BAD)
def test_bad_input_is_one_sentence(pretrained, code, whole, tmp_path, title):
    """In this process: test_bad_input.py shows that a launchable prints an InputError as one line."""
    flags, message = BAD[title]
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("no code here\n" * 99)
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a", "chosen": "b"}\n')
    write_pairs(tmp_path / "equal.jsonl", [Pair("", "    return a\n", "    return a)\n")] * 2)  # neither parses
    with pytest.raises(InputError) as refused:
        train_one(pretrained, code, tmp_path / "run", *(flag.format(tmp=tmp_path, whole=whole) for flag in flags))
    assert message.format(tmp=tmp_path) in str(refused.value) and len(str(refused.value).splitlines()) == 1
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_more_ranks_than_prompts(monkeypatch):
    monkeypatch.setattr(process_group, "start", lambda *_: World(0, 0, 2, torch.device("cpu")))
    with pytest.raises(InputError, match="prompts-per-update 1 leaves ranks without work: there are 2"):
        grpo_ddp.train(replace(grpo_ddp.PRESETS["tiny"], prompts_per_update=1))
