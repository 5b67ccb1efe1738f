#!/bin/sh
# Install hermes-gateway from the clone in the current folder into /opt/hermes-gateway, without network caches or dates.
# The Dockerfile and `make test-image` run this script. EXTRAS="cluster mcp" adds optional features.
set -eu

python3 -m venv /opt/hermes-gateway
pip() {
  /opt/hermes-gateway/bin/pip install --quiet --no-cache-dir --no-compile --disable-pip-version-check \
    --root-user-action=ignore "$@"
}

for name in base ${EXTRAS:-}; do
  pip --require-hashes -r "requirements/$name.txt"
done
pip --no-deps --no-build-isolation .
/opt/hermes-gateway/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/hermes-gateway/lib
/opt/hermes-gateway/bin/hermes-gateway --version
