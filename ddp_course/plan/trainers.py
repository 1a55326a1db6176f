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

from collections.abc import Iterator
from dataclasses import replace

from ddp_course.base.errors import InputError
from ddp_course.plan.job import Job, Model
from ddp_course.plan.memory import AXES, STATE, Layout, layers_per_stage

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
        if layout.chunks > 1 and job.windows // (layout.dp * layout.shard * layout.micro_batch) % layout.pp:
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
        words = ["torchrun", *launch, "ddp_course/parallel_ddp.py"]
        words += [f"--layers {model.layers}", f"--heads {model.heads}", f"--width {model.width}"]
        words += [f"--kv-heads {model.key_value_heads}"] * (model.key_value_heads < model.heads)
        words += ["--tokenizer bytes --vocab-size None"] if model.vocabulary == BYTES else []
        words += [f"--vocab-size {model.vocabulary}"] * (model.vocabulary != BYTES)
        words += [f"--context {model.context}", f"--tokens-per-update {job.tokens}"]
        words += [f"--micro-batch-size {layout.micro_batch}"]
        words += [f"--precision float32{' --param-dtype bfloat16' * (job.precision == 'bf16')}"]
        words += ["--activation-checkpointing"] * layout.recompute
        if model.expert_parameters:
            words += [f"--experts {self.experts(model)}", f"--best {model.experts_per_token}"]
        words += [f"--{axis} {size}" for axis, size in zip(AXES, layout.axes, strict=True) if size > 1]
        return list(wrapped(words))


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
        model, axis = job.model, "--parallelism."
        tokens = layout.micro_batch * model.context
        words = ["-m torchtitan.train --module llama3 --config $CONFIG"]  # a registered model of these sizes
        words += [
            f"{axis}data_parallel_replicate_degree {layout.dp}",
            f"{axis}data_parallel_shard_degree {layout.shard}",
        ]
        words += [f"{axis}tensor_parallel_degree {layout.tp}", f"{axis}context_parallel_degree {layout.cp}"]
        words += [f"{axis}pipeline_parallel_degree {layout.pp}"]
        if layout.shard > 1:
            words += [f"{axis}fsdp_reshard_after_forward {'always' if layout.zero == 3 else 'never'}"]
        if layout.pp > 1:
            count = job.windows // (layout.dp * layout.shard * layout.micro_batch)
            words += [f"{axis}num_pp_microbatches {count}"]
            words += [f"{axis}pipeline_parallel_schedule {'Interleaved1F1B' if layout.chunks > 1 else '1F1B'}"]
            if layout.chunks > 2:
                each = layers_per_stage(model, layout) // round(layout.chunks)
                words += [f"{axis}pipeline_parallel_layers_per_stage {each}"]
            words += [f"{axis}pipeline_parallel_{end}_stage_less_layers 0" for end in ("first", "last")]
        words += [f"--training.max_context_length {model.context}"]
        words += [f"--training.num_tokens_per_microbatch_per_dp_rank {tokens}"]
        words += [f"--training.num_tokens_per_train_step {job.tokens}"]
        words += [f"--training.mixed_precision_param {'bfloat16' if job.precision == 'bf16' else 'float32'}"]
        words += [f"activation-checkpoint:{'full' if layout.recompute else 'none'}"]
        return list(wrapped(words))


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
        words = ["pretrain_gpt.py"]
        words += [f"--num-layers {model.layers}", f"--hidden-size {model.width}"]
        words += [f"--num-attention-heads {model.heads}", f"--ffn-hidden-size {round(model.mlp_ratio * model.width)}"]
        words += ["--swiglu"] * (model.keeps == "gated")
        if model.key_value_heads < model.heads:
            words += [f"--group-query-attention --num-query-groups {model.key_value_heads}"]
        words += ["--untie-embeddings-and-output-weights"] * (model.tables == 2)
        words += [f"--seq-length {model.context}", f"--max-position-embeddings {model.context}"]
        words += [f"--micro-batch-size {layout.micro_batch}", f"--global-batch-size {job.windows}"]
        words += ["--bf16"] * (job.precision == "bf16")
        words += [f"--tensor-model-parallel-size {layout.tp}"] + ["--sequence-parallel"] * (layout.tp > 1)
        words += [f"--pipeline-model-parallel-size {layout.pp}", f"--context-parallel-size {layout.cp}"]
        words += [f"--num-virtual-stages-per-pipeline-rank {round(layout.chunks)}"] * (layout.chunks > 1)
        if layout.shard > 1:
            words += ["--use-distributed-optimizer"]
            words += [f"--num-distributed-optimizer-instances {layout.dp}"] * (layout.dp > 1)
        if layout.recompute:
            words += ["--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"]
        return list(wrapped(words))


TRAINERS = {"parallel_ddp": ParallelDDP(), "torchtitan": Torchtitan(), "megatron": Megatron()}


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
