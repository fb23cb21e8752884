#!/bin/sh
# Starts the backend: run.sh --addr HOST:PORT. The SDK finds a Python that fits and becomes it, so that signals and the
# parent watch work.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
modules='espeakng_loader'
sdk=$here/sdk
[ -d "$sdk" ] || sdk=$here/../sdk
. "$sdk/start.sh"
