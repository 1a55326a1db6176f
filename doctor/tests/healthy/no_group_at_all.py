import os
import sys

print("rank", os.environ["RANK"], "has nothing to say to the others")
sys.exit(0)
