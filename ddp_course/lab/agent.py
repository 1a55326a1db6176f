"""torchrun, for the launcher: python agent.py [what torchrun takes]

The same function as behind the command. What it loads is needed to the end, so the garbage collector, which would go
through it again and again, is off: the process computes a third less until its ranks start, and ends at once.
"""

import gc
import sys

if __name__ == "__main__":
    gc.disable()
    from torch.distributed.run import main

    sys.argv[0] = "torchrun"
    try:
        main()
    finally:
        gc.freeze()
