import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--lr")
parser.parse_args()
