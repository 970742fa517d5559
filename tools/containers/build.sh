#!/usr/bin/env bash
# Builds the three images, tagged with the version, and tells their sizes. Further arguments go to `docker build`, after
# those in HUBBUB_BUILD_ARGS, which tools/containers/engine.sh sets for a machine that can pull nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."

docker version >/dev/null 2>&1 || {
    # shellcheck disable=SC2016  # To be read, not run.
    echo 'no Docker API answers here. On a Debian machine, as root: eval "$(tools/containers/engine.sh start)"' >&2
    exit 1
}
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' shared/hubbub/__init__.py)
read -ra given <<<"${HUBBUB_BUILD_ARGS:-}"
for service in coordinator aggregator trainer; do
    docker build --target "$service" --tag "hubbub-$service:$version" --build-arg "HUBBUB_VERSION=$version" "${given[@]}" "$@" .
done
docker image ls --filter "label=org.opencontainers.image.version=$version" --filter "reference=hubbub-*:$version" \
    --format 'table {{.Repository}}\t{{.Tag}}\t{{.Size}}'
