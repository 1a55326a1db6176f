"""Which parallelism? Every mesh of dp, shard, tp, pp and cp on a cluster: memory, traffic, bubble, step, by formula.

    python -m ddp_course.plan --params 7e9 --gpus 64 --memory 80GB --link 400Gb
    python -m ddp_course.plan --params 405e9 --layers 126 --width 16384 --heads 128 --context 8192 --gpus 8192 \\
        --memory 80GB --link 400Gb --tokens-per-update 16777216
    python -m ddp_course.plan --params 7e9 ... --trainer torchtitan     # meshes that it can run, and its flags
    python -m ddp_course.plan --params 7e9 ... --measured "shard 8: 45 s"    # calibrated by your measured step
    python -m ddp_course.plan --published       # published meshes, compared with the plan's best

In brackets: the notebook whose formula a number comes from. Plain data parallelism, in detail: ddp_course.predict.
"""

import argparse

from ddp_course.base.command import run_command
from ddp_course.plan.derived import job_from
from ddp_course.plan.flags import plan_parser, print_report
from ddp_course.plan.job import Job
from ddp_course.plan.published_report import published_report
from ddp_course.plan.report import report
from ddp_course.plan.search import SearchResult, search


def main(arguments: list[str] | None = None) -> int:
    return print_report(plan_parser(__doc__), lambda flags: report_and_plans(flags)[0], arguments)


def report_and_plans(flags: argparse.Namespace) -> tuple[str, Job | None, SearchResult | None]:
    """The text to print, and for the site, which draws the plans, the job and its plans; None with --published."""
    if flags.published:
        return published_report(), None, None
    job, derived = job_from(flags)
    result = search(job)
    return report(job, derived, result), job, result


if __name__ == "__main__":
    run_command(main)
