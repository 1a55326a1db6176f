"""How fast will my job be on that cluster? Plain DDP, predicted from the model, the GPUs and the cables.

    python -m ddp_course.predict --model gpt2 --gpus 64 --link 400Gb
    python -m ddp_course.predict --model 1.3B --gpus 8 --gpu a100 --link 100Gb --mfu 0.42   # a number you measured
    python -m ddp_course.predict --model gpt2 --gpus 32 --link 25Gb --global-batch 512      # strong scaling

A missing flag is assumed to lie in a range; the answer is an interval, and says which number to measure next.
"""

from ddp_course.base.command import run_command
from ddp_course.plan.flags import predict_parser, print_report
from ddp_course.plan.prediction_report import prediction_report


def main(arguments: list[str] | None = None) -> int:
    return print_report(predict_parser(__doc__), prediction_report, arguments)


if __name__ == "__main__":
    run_command(main)
