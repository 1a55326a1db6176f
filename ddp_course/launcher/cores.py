"""How many processes, and how many threads for each, this machine's cores and GPUs allow."""

from ddp_doctor.launch.cores import default_processes, system_file, usable_cores

from ddp_course.base.errors import InputError

__all__ = ["default_processes", "system_file", "threads_per_process", "usable_cores"]


def threads_per_process(processes: int) -> int:
    """Threads per process, at least one, so that `processes` have no more threads than this machine has physical cores.

    Raises InputError if `processes` is less than 1.
    """
    if processes < 1:
        raise InputError(f"There is at least one process to share the cores, got {processes}.")
    return max(1, usable_cores()[0] // processes)
