#!/bin/sh
# Starts the backend: run.sh --addr HOST:PORT. Becomes the Python process, so that signals and the parent watch work.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)

fits() {
    [ -x "$1" ] && "$1" -c 'import importlib.util as u, sys
sys.exit(sys.version_info < (3, 11) or not all(map(u.find_spec, sys.argv[1:])))' grpc google.protobuf 2>/dev/null
}

python=${CORRAL_BACKEND_PYTHON:-}
if [ -z "$python" ]; then
    for candidate in "$here/venv/bin/python" "$here/../../.venv/bin/python" "$(command -v python3 || true)"; do
        if fits "$candidate"; then
            python=$candidate
            break
        fi
    done
fi
if [ -z "$python" ]; then
    echo "echo needs a Python 3.11 or newer with grpcio and protobuf: put one at $here/venv, or name one in CORRAL_BACKEND_PYTHON." >&2
    exit 1
fi

export PYTHONPATH="$here/sdk:$here/../sdk${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" "$here/backend.py" "$@"
