"""Training runs of which enough was published to put them through the model. Every number is the linked report's own;
`tests/test_predict_speedup.py` holds them against each other."""

from ddp_course.predict.hardware import Range
from ddp_course.predict.model_parallel import Plan

LLAMA_3 = "https://arxiv.org/abs/2407.21783"  # section 3.3, tables 3 and 4
DEEPSEEK_V3 = "https://arxiv.org/abs/2412.19437"  # section 3 and table 1
DEEPSEEK_HARDWARE = "https://arxiv.org/abs/2505.09343"  # table 4: the same model, multi-plane network
PALM = "https://arxiv.org/abs/2204.02311"  # section 4, table 3 and appendix B

_LLAMA = dict(source=LLAMA_3, peak=989e12, parameters=405e9, layers=126, width=16384, attention=16384, sequence=8192,
              tokens=2**24, tensor=8, pipeline=16, chunks=Range(2, 8))  # fmt: skip
RUNS = {
    "Llama 3 405B, 8,192 H100": Plan("Llama 3 405B, 8,192 H100", gpus=8192, data=64, **_LLAMA,
                                     reported={"mfu": 0.43, "flops": 430e12}),
    "Llama 3 405B, 16,384 H100": Plan("Llama 3 405B, 16,384 H100", gpus=16384, data=128, **_LLAMA,
                                      reported={"mfu": 0.41, "flops": 400e12}),
    # A token goes to experts on at most 4 nodes, in one byte per number, and comes back in two; again in backward.
    "DeepSeek-V3, 2,048 H800": Plan("DeepSeek-V3, 2,048 H800", DEEPSEEK_HARDWARE, gpus=2048, peak=989e12,
                                    parameters=37e9, held=671e9, layers=61, width=7168, attention=128 * 160,
                                    sequence=4096, tokens=15360 * 4096, pipeline=16, data=128, shards=64,
                                    chunks=Range(1, 2), inside=200e9, causal=True, exchanged=58 * 4 * 7168 * 3 * 2,
                                    reported={"mfu": 0.3894, "step": 19.926, "tokens_per_day": 272.8e9}),
    "PaLM 540B, 6,144 TPU v4": Plan("PaLM 540B, 6,144 TPU v4", PALM, gpus=6144, peak=275e12, parameters=540e9,
                                    layers=118, width=18432, attention=48 * 256, sequence=2048, tokens=2048 * 2048,
                                    tensor=12, data=512, shards=256, inside=270e9, between=6.6e9 / 4, gradient_bytes=2,
                                    recomputed=0.25, reported={"mfu": 0.462, "tokens_per_s": 238.3e3}),
}  # fmt: skip
REPORTED = {  # further numbers, for the checks
    "Llama 3 405B tokens": 15.6e12, "Llama 3 405B FLOP": 3.8e25,
    "DeepSeek-V3 GPU hours per 10^12 tokens": 180e3, "DeepSeek-V3 tokens": 14.8e12,
    "DeepSeek-V3 pre-training GPU hours": 2.664e6, "DeepSeek-V3 price of a GPU hour": 2.0,
    "PaLM speed-up of two pods over one": 1.95, "PaLM hosts": 1536, "PaLM burst between pods, bits/s": 81e12,
}  # fmt: skip
