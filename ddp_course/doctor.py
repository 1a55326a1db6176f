"""The command that the doctor had before it became a package of its own."""

import shlex
import sys

if __name__ == "__main__":
    command = shlex.join(["python", "-m", "ddp_doctor", *sys.argv[1:]])
    print(f"error: the doctor is a package of its own: {command}", file=sys.stderr)
    sys.exit(2)
