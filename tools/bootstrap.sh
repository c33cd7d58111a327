#!/usr/bin/env bash
# Make or refresh .venv from requirements.lock; with the argument `lock`, make requirements.lock anew.
set -euo pipefail
cd "$(dirname "$0")/.."

UV_VERSION=0.13.8
BOOT=.run/boot
VENV=.venv
export UV_PYTHON_DOWNLOADS=never
unset VIRTUAL_ENV

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local name
    for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if new_enough "$name"; then
            "$name" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    echo "No Python 3.11 or newer found. Install one, or name it: make setup PYTHON=/path/to/python3" >&2
    return 1
}

# Without the venv module's ensurepip (Debian without python3-venv) pip alone will do.
install_uv() {
    [ "$("$BOOT/bin/uv" --version 2>/dev/null | cut -d' ' -f2)" = "$UV_VERSION" ] && return
    rm -rf "$BOOT" && mkdir -p .run
    if "$PYTHON" -m venv "$BOOT" >/dev/null 2>&1; then
        "$BOOT/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION"
    else
        rm -rf "$BOOT"
        "$PYTHON" -m pip install --quiet --disable-pip-version-check --target "$BOOT" "uv==$UV_VERSION"
    fi
}

# --python always: with VIRTUAL_ENV alone uv may change another environment without a word.
install_project() {
    new_enough "$VENV/bin/python" || "$BOOT/bin/uv" venv --quiet --clear --python "$PYTHON" "$VENV"
    "$BOOT/bin/uv" pip sync --quiet --python "$VENV/bin/python" --require-hashes requirements.lock
    "$BOOT/bin/uv" pip install --quiet --python "$VENV/bin/python" --no-deps --no-build-isolation -e .
}

# No header, no index: neither a path nor the name of a package index of this machine gets into the lock.
lock() {
    "$BOOT/bin/uv" pip compile pyproject.toml --quiet --group dev --group docs --extra spark --python "$PYTHON" --universal \
        --python-version 3.11 --generate-hashes --no-header --no-emit-index-url "$@" -o requirements.lock
    # Never newer ones: an old Airflow does not work with the packages of today.
    local pins
    for pins in tools/airflow_versions/*.in; do
        "$BOOT/bin/uv" pip compile "$pins" --quiet --python "$PYTHON" --universal --python-version 3.11 --no-annotate \
            --no-header --no-emit-index-url -o "${pins%.in}.txt"
    done
}

PYTHON=$(find_python)
install_uv
case ${1:-install} in
install) install_project ;;
lock) shift && lock "$@" ;;
*) echo "usage: tools/bootstrap.sh [install|lock [--upgrade]]" >&2 && exit 2 ;;
esac
