#!/bin/sh
# Starts the backend: run.sh --addr HOST:PORT. Becomes the Python process, so that signals and the parent watch work.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)

fits() {
    [ -x "$1" ] && "$1" -c 'import importlib.util as u, sys
sys.exit(sys.version_info < (3, 11) or not all(map(u.find_spec, sys.argv[1:])))' grpc google.protobuf xllamacpp 2>/dev/null
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
    echo "llama-cpp needs a Python 3.11 or newer with grpcio, protobuf and xllamacpp: put one at $here/venv, or name one in CORRAL_BACKEND_PYTHON." >&2
    exit 1
fi

export PYTHONPATH="$here/sdk:$here/../sdk${PYTHONPATH:+:$PYTHONPATH}"
# Libraries that came along with the backend or with the environment, such as libgomp on a bare machine.
for libraries in "$here/lib" "$(dirname -- "$python")/../lib/native"; do
    if [ -d "$libraries" ]; then
        export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    fi
done
exec "$python" "$here/backend.py" "$@"
