"""Three trainers: the meshes that each can run, and its command line for a mesh.

parallel_ddp is this repository's, and its command runs as it is printed. The flags and limits of the others were read
in their sources and not run. They can do more than this file knows: Megatron-LM has ZeRO-3, torchtitan other schedules.

torchtitan, commit b5bcd76 of 2026-08-21, in torchtitan/:
    config/configs.py (flags), models/common/decoder.py (heads), distributed/parallel_dims.py (tokens),
    distributed/pipeline_parallel.py (layers), distributed/activation_checkpoint.py
Megatron-LM, commit d98e8a6 of 2026-08-22, in megatron/:
    training/arguments.py and training/config/training_config.py (flags), core/model_parallel_config.py,
    core/transformer/transformer_config.py (heads), core/parallel_state.py (instances of the optimizer)
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ddp_course.base.errors import InputError
from ddp_course.plan.job import Job, Model
from ddp_course.plan.memory import AXES, STATE, Layout, layers_per_stage
from ddp_course.plan.traffic import micro_batches

WIDTH = 110  # of a printed line, in characters
BYTES = 256  # size of the byte tokenizer's vocabulary


class Trainer:
    """A trainer, of dense models unless it overrides `model`.

    state: bytes per parameter of weights, gradients and optimizer state; None: memory.STATE of the precision.
    gathered_inputs: inputs (of attention and of MLP) that stay all-gathered over tp until backward.
    """

    title = ""
    state: tuple[int, int, int] | None = None
    gathered_inputs = 2

    def model(self, model: Model) -> Model:
        """The model as this trainer builds it. Raises InputError for one that it cannot build."""
        if model.active is not None:
            raise InputError(f"the flags of {self.title} are for dense models; leave --active and --expert-params out")
        return model

    def refusal_reason(self, job: Job, layout: Layout) -> str:
        """Why this trainer cannot run the layout, or ""."""
        model = job.model
        if not self.divides_key_values(model.key_value_heads, layout.tp):
            return f"{self.title}: {model.key_value_heads} heads of keys and values do not divide by tp"
        if model.layers % (layout.pp * round(layout.chunks)) and self.needs_equal_stages(layout):
            return f"{self.title}: all stages have the same number of layers"
        if layout.chunks > 1 and micro_batches(job, layout) % layout.pp:
            return f"{self.title}: with chunks, micro-batches are a multiple of the stages"
        if layout.shard > 1 and layout.zero not in self.zero_stages(layout):
            return f"{self.title}: no ZeRO-{layout.zero} on this mesh"
        return ""

    def divides_key_values(self, heads: int, tp: int) -> bool:
        """Whether it can distribute so many heads of keys and values over tp ranks."""
        return heads % tp == 0

    def needs_equal_stages(self, layout: Layout) -> bool:
        """Whether all pipeline stages need the same number of layers."""
        return True

    def zero_stages(self, layout: Layout) -> tuple[int, ...]:
        """The stages of ZeRO that it has. torch's pipeline keeps weights and gradients whole for all micro-batches."""
        return (1,) if layout.pp > 1 else (3,)

    def command(self, job: Job, layout: Layout) -> list[str]:
        """Its command or flags for the layout, as lines for a shell."""
        raise NotImplementedError


class ParallelDDP(Trainer):
    title, state = "parallel_ddp.py", STATE["fp32"]

    def model(self, model: Model) -> Model:
        if model.keeps != "plain" or model.mlp_ratio != 4:
            raise InputError("parallel_ddp.py has a plain MLP, 4 times as wide; leave --gated and --mlp out")
        untied = (model.tables - 1) * model.table_parameters
        active = model.active and model.active - untied
        if model.expert_parameters and self.experts(model) < model.experts_per_token:
            expert = model.layers * 8 * model.width**2
            raise InputError(
                f"parallel_ddp.py has as many experts in every layer, {expert:,} parameters each; --expert-params "
                f"{model.expert_parameters:,.0f} are {model.expert_parameters / expert:.2f} of them, and a token takes "
                f"{model.experts_per_token}"
            )
        return replace(model, tables=1, parameters=model.parameters - untied, active=active)

    def experts(self, model: Model) -> int:
        """The number of experts per layer, of two matrices each; 0 if the parameters are no whole number of experts."""
        count = model.expert_parameters / (model.layers * 8 * model.width**2)
        return round(count) if abs(count - round(count)) < 0.01 else 0

    def refusal_reason(self, job: Job, layout: Layout) -> str:
        if layout.shard * layout.cp % layout.ep or self.experts(job.model) % layout.ep:
            return f"{self.title}: ep divides shard x cp and the experts"
        if job.model.vocabulary % layout.tp or job.model.context % (layout.cp * layout.tp):
            return f"{self.title}: tp divides the vocabulary, and the tokens of a cp rank"
        return f"{self.title} has no chunks" if layout.chunks > 1 else super().refusal_reason(job, layout)

    def command(self, job: Job, layout: Layout) -> list[str]:
        model, cluster = job.model, job.cluster
        launch = ["--standalone", f"--nproc-per-node={cluster.gpus}"]
        if cluster.gpus > cluster.per_node:
            nodes = cluster.gpus // cluster.per_node
            launch = [f"--nnodes={nodes}", f"--nproc-per-node={cluster.per_node}"]
            launch += ["--rdzv-backend=c10d", "--rdzv-endpoint=$FIRST_NODE:29500"]
        flags = {
            "--layers": model.layers,
            "--heads": model.heads,
            "--width": model.width,
            "--kv-heads": model.key_value_heads if model.key_value_heads < model.heads else None,
            "--tokenizer": "bytes" if model.vocabulary == BYTES else None,
            "--vocab-size": "None" if model.vocabulary == BYTES else model.vocabulary,
            "--context": model.context,
            "--tokens-per-update": job.tokens,
            "--micro-batch-size": layout.micro_batch,
            "--precision": "float32 --param-dtype bfloat16" if job.precision == "bf16" else "float32",
            "--activation-checkpointing": layout.recompute,
            "--experts": self.experts(model) if model.expert_parameters else None,
            "--experts-per-token": model.experts_per_token if model.expert_parameters else None,
        }
        flags |= {f"--{axis}": size for axis, size in zip(AXES, layout.axes, strict=True) if size > 1}
        return list(wrapped(["torchrun", *launch, "ddp_course/parallel_ddp.py", *words(flags)]))


class Torchtitan(Trainer):
    title = "torchtitan"

    def refusal_reason(self, job: Job, layout: Layout) -> str:
        if job.model.context % (2 * layout.cp * layout.tp):
            return "torchtitan: the window is not a multiple of 2 x cp x tp"
        return super().refusal_reason(job, layout)

    def needs_equal_stages(self, layout: Layout) -> bool:
        return layout.chunks > 2  # one or two chunks are its defaults; for more its flag needs the layers per chunk

    def zero_stages(self, layout: Layout) -> tuple[int, ...]:
        return (1,) if layout.pp > 1 else (2, 3)

    def command(self, job: Job, layout: Layout) -> list[str]:
        model = job.model
        parallelism = {
            "data_parallel_replicate_degree": layout.dp,
            "data_parallel_shard_degree": layout.shard,
            "tensor_parallel_degree": layout.tp,
            "context_parallel_degree": layout.cp,
            "pipeline_parallel_degree": layout.pp,
        }
        if layout.shard > 1:
            parallelism["fsdp_reshard_after_forward"] = "always" if layout.zero == 3 else "never"
        if layout.pp > 1:
            layers_per_chunk = layers_per_stage(model, layout) // round(layout.chunks)
            parallelism |= {
                "num_pp_microbatches": micro_batches(job, layout),
                "pipeline_parallel_schedule": "Interleaved1F1B" if layout.chunks > 1 else "1F1B",
                "pipeline_parallel_layers_per_stage": layers_per_chunk if layout.chunks > 2 else None,
                "pipeline_parallel_first_stage_less_layers": 0,
                "pipeline_parallel_last_stage_less_layers": 0,
            }
        flags = {f"--parallelism.{name}": value for name, value in parallelism.items()} | {
            "--training.max_context_length": model.context,
            "--training.num_tokens_per_microbatch_per_dp_rank": layout.micro_batch * model.context,
            "--training.num_tokens_per_train_step": job.tokens,
            "--training.mixed_precision_param": "bfloat16" if job.precision == "bf16" else "float32",
            f"activation-checkpoint:{'full' if layout.recompute else 'none'}": True,
        }
        program = "-m torchtitan.train --module llama3 --config $CONFIG"  # a registered model of these sizes
        return list(wrapped([program, *words(flags)]))


class Megatron(Trainer):
    title, gathered_inputs = "Megatron-LM", 0  # it repeats the all-gather in backward, overlapped with a matrix product

    def refusal_reason(self, job: Job, layout: Layout) -> str:
        if job.model.context % layout.tp:
            return "Megatron-LM: the window is not a multiple of tp, as its sequence parallel needs"
        return super().refusal_reason(job, layout)

    def divides_key_values(self, heads: int, tp: int) -> bool:
        return heads % tp == 0 or tp % heads == 0

    def zero_stages(self, layout: Layout) -> tuple[int, ...]:
        return (1,)

    def command(self, job: Job, layout: Layout) -> list[str]:
        model = job.model
        grouped, sharded = model.key_value_heads < model.heads, layout.shard > 1
        flags = {
            "--num-layers": model.layers,
            "--hidden-size": model.width,
            "--num-attention-heads": model.heads,
            "--ffn-hidden-size": round(model.mlp_ratio * model.width),
            "--swiglu": model.keeps == "gated",
            "--group-query-attention --num-query-groups": model.key_value_heads if grouped else None,
            "--untie-embeddings-and-output-weights": model.tables == 2,
            "--seq-length": model.context,
            "--max-position-embeddings": model.context,
            "--micro-batch-size": layout.micro_batch,
            "--global-batch-size": job.windows,
            "--bf16": job.precision == "bf16",
            "--tensor-model-parallel-size": layout.tp,
            "--sequence-parallel": layout.tp > 1,
            "--pipeline-model-parallel-size": layout.pp,
            "--context-parallel-size": layout.cp,
            "--num-virtual-stages-per-pipeline-rank": round(layout.chunks) if layout.chunks > 1 else None,
            "--use-distributed-optimizer": sharded,
            "--num-distributed-optimizer-instances": layout.dp if sharded and layout.dp > 1 else None,
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1": layout.recompute,
        }
        return list(wrapped(["pretrain_gpt.py", *words(flags)]))


TRAINERS = {"parallel_ddp": ParallelDDP(), "torchtitan": Torchtitan(), "megatron": Megatron()}


def words(flags: Mapping[str, object]) -> list[str]:
    """Each flag with its value as one word; None and False leave a flag out, True gives it without a value."""
    return [
        flag if value is True else f"{flag} {value}"
        for flag, value in flags.items()
        if value is not None and value is not False  # 0 is a value
    ]


def wrapped(words: list[str]) -> Iterator[str]:
    """The words as lines of about WIDTH characters, each but the last with a backslash, so that a shell joins them."""
    line = words[0]
    for word in words[1:]:
        if len(line) + 1 + len(word) > WIDTH:
            yield f"{line} \\"
            line = f"    {word}"
        else:
            line += f" {word}"
    yield line
