#!/bin/sh
# Starts a SuperLink and four SuperNodes on this machine, runs the app on them, and ends them.
set -e
cd "$(dirname "$0")"
federation=${1:-$HOME/privsyn-devices} # a folder for keys, certificates and the nodes' state
python texts.py
trap 'privsyn federation stop "$federation"' EXIT
privsyn federation start "$federation" --data users.jsonl --nodes 4 --embedder ngram-256
FLWR_HOME="$federation/flower" flwr run . local --stream
