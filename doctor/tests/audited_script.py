"""A rank of `doctor check`, forked by forked_ranks.py: begins the audit, then runs the script.

audited_script.py FOLDER SCRIPT ARGUMENTS
"""

import os
import runpy
import sys

import torch
from ddp_doctor import audit


def main():
    folder, script, *arguments = sys.argv[1:]
    sys.argv[:] = [script, *arguments]
    sys.path[0] = os.path.dirname(script)
    torch.seed()  # forked ranks would share the state of the generator, unlike ranks of torchrun
    log = audit.start(folder)
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        log.end()


main()
