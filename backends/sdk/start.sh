# Becomes the Python process of a backend. A backend's run.sh sources this after setting
#   here     the backend's directory
#   sdk      the directory of this file
#   modules  what the backend imports beside the SDK, by the names it is imported under
#
# In an image, packages/3.11, packages/3.12 … hold the Python packages for these versions, python/ may hold an
# interpreter, and lib/ native libraries. In a checkout there is nothing of that: the checkout's .venv has it all.

# Prints the folder with the packages for this Python; fails when it is too old, or something is missing.
probe='
import importlib.util, os, sys
everything, modules = sys.argv[1], sys.argv[2:]
own = os.path.join(everything, "%d.%d" % sys.version_info[:2])
if os.path.isdir(everything):
    if not os.path.isdir(own):
        sys.exit(1)
    sys.path.insert(0, own)
    print(own)
sys.exit(sys.version_info < (3, 11) or not all(map(importlib.util.find_spec, modules)))
'

fits() {
    # shellcheck disable=SC2086 # one word per module
    [ -x "$1" ] && packages=$("$1" -c "$probe" "$here/packages" grpc google.protobuf $modules 2>/dev/null)
}

candidates() {
    if [ -n "${CORRAL_BACKEND_PYTHON:-}" ]; then
        echo "$CORRAL_BACKEND_PYTHON"
        return
    fi
    echo "$here/python/bin/python3"
    echo "$here/venv/bin/python"
    if [ -d "$here/packages" ]; then
        for version in "$here"/packages/*; do
            command -v "python${version##*/}" || true
        done
    else
        echo "$here/../../.venv/bin/python"
    fi
    command -v python3 || true
}

wanted() {
    if [ -d "$here/packages" ]; then
        versions=''
        for version in "$here"/packages/*; do
            versions="${versions:+$versions or }${version##*/}"
        done
        echo "Python $versions, for which its packages were made"
    else
        echo "a Python 3.11 or newer with grpcio, protobuf${modules:+ and }$modules"
    fi
}

unset PYTHONHOME
python='' packages=''
found=$(candidates)
while read -r candidate; do
    if fits "$candidate"; then
        python=$candidate
        break
    fi
done <<END
$found
END
if [ -z "$python" ]; then
    echo "${here##*/} needs $(wanted). Put one on the PATH or at $here/python, or name one in CORRAL_BACKEND_PYTHON." >&2
    echo "Looked at:" $found >&2
    exit 1
fi

if [ -n "$packages" ]; then
    export PYTHONNOUSERSITE=1
fi
export PYTHONPATH="$sdk${packages:+:$packages}${PYTHONPATH:+:$PYTHONPATH}"
# Libraries that came along with the backend or with the environment, such as libgomp on a bare machine.
for libraries in "$here/lib" "$(dirname -- "$python")/../lib/native"; do
    if [ -d "$libraries" ]; then
        export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    fi
done
exec "$python" "$here/backend.py" "$@"
