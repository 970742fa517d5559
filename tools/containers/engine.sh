#!/usr/bin/env bash
# A Docker engine of its own, with base images, on a Debian machine where none runs and nothing can be pulled.
#
#   eval "$(tools/containers/engine.sh start)"   install what is missing, start it, make the base images, set DOCKER_HOST
#   tools/containers/engine.sh stop              end it, keep its images
#   tools/containers/engine.sh remove            end it, and delete all it has
#
# It needs root and apt. The base images are made of Debian packages from wherever this machine's apt takes them, and trust
# the certificate authorities that this machine trusts. They stand in for the official ones: same tags, same way in.
# The machine's firewall and forwarding stay as they are; containers reach each other and the host, nothing else.
set -euo pipefail

FOLDER=${HUBBUB_ENGINE_FOLDER:-/var/lib/hubbub-engine}
SUITE=bookworm
# The first release of Debian with the second generation of docker-compose.
COMPOSE_SUITE=trixie
CERTIFICATES=/etc/ssl/certs/ca-certificates.crt
BRIDGE=/sys/class/net/docker0
START_S=60
STOP_S=30

PYTHON_TAGS=(python:3.11-slim-bookworm python:3.11-slim)
BROKER_TAGS=(rabbitmq:3-management)

export DOCKER_HOST="unix://$FOLDER/docker.sock"
export DOCKER_CONFIG="$FOLDER/client"
export DOCKER_BUILDKIT=0
HERE=$(cd "$(dirname "$0")" && pwd)

say() { echo "engine: $*" >&2; }

fail() {
    say "$*"
    exit 1
}

is_up() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

install_packages() {
    command -v dockerd >/dev/null && command -v docker >/dev/null && command -v debootstrap >/dev/null && return
    command -v apt-get >/dev/null || fail "there is no apt-get here: this is for Debian and its relatives"
    say "installing docker.io and debootstrap"
    apt-get update --quiet --quiet >&2
    # Newer releases keep the client in a package of its own.
    local packages=(docker.io debootstrap iptables)
    apt-cache show docker-cli >/dev/null 2>&1 && packages+=(docker-cli)
    DEBIAN_FRONTEND=noninteractive apt-get install --quiet --quiet --yes --no-install-recommends "${packages[@]}" >&2
}

start_engine() {
    is_up && return
    mkdir -p "$FOLDER" "$DOCKER_CONFIG"
    chmod 0711 "$FOLDER"
    [ -e "$BRIDGE" ] || touch "$FOLDER/made-bridge"
    # Away from this terminal's group, or Ctrl-C would end it too.
    setsid dockerd --host "$DOCKER_HOST" --data-root "$FOLDER/data" --exec-root "$FOLDER/exec" \
        --pidfile "$FOLDER/dockerd.pid" --iptables=false --ip-forward=false --ip-masq=false \
        >"$FOLDER/dockerd.log" 2>&1 </dev/null &
    local deadline=$((SECONDS + START_S))
    until is_up; do
        [ "$SECONDS" -lt "$deadline" ] || fail "dockerd does not answer; its last words: $(tail -n 5 "$FOLDER/dockerd.log")"
        sleep 0.2
    done
    say "version $(docker version --format '{{.Server.Version}}'), $(docker info --format '{{.Driver}}')"
}

has_image() { docker image inspect "$1" >/dev/null 2>&1; }

tag_all() {
    local image=$1 tag
    shift
    for tag in "$@"; do docker tag "$image" "$tag"; done
}

# Where apt takes this machine's packages from, whichever way its sources are written.
debian_mirror() {
    local mirror
    # shellcheck disable=SC2016  # apt fills it in.
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' "Codename: $SUITE" | head -n 1)
    [ -n "$mirror" ] || fail "this machine's apt has no sources for $SUITE"
    echo "$mirror"
}

make_debian() {
    has_image hubbub-engine/debian && return
    say "making a minimal Debian"
    local root="$FOLDER/root"
    rm -rf "$root"
    debootstrap --variant=minbase --include=ca-certificates "$SUITE" "$root" "$(debian_mirror)" >"$FOLDER/debootstrap.log" 2>&1 ||
        fail "debootstrap failed: $(tail -n 5 "$FOLDER/debootstrap.log")"
    install -m 0644 "$CERTIFICATES" "$root$CERTIFICATES"
    printf '[global]\ncert = %s\n' "$CERTIFICATES" >"$root/etc/pip.conf"
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/doc/* "$root"/usr/share/man/* \
        "$root"/usr/share/locale/*
    # Nothing is to be started while packages are installed.
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod 0755 "$root/usr/sbin/policy-rc.d"
    tar --create --directory "$root" --one-file-system . | docker import - hubbub-engine/debian >/dev/null
    rm -rf "$root"
}

build() {
    docker build --network host --quiet "$@" >"$FOLDER/build.log" 2>&1 || fail "docker build failed: $(tail -n 20 "$FOLDER/build.log")"
}

make_image() {
    local name=$1
    shift
    has_image "hubbub-engine/$name" || {
        say "making $*"
        build --tag "hubbub-engine/$name" "$HERE/bases/$name"
    }
    tag_all "hubbub-engine/$name" "$@"
}

# Where packages are built: as this machine's pip is configured, with the folders of wheels that it looks into.
make_builder() {
    has_image hubbub-engine/builder && return
    say "making an image to build in"
    local context="$FOLDER/builder" links link index
    rm -rf "$context"
    mkdir -p "$context/wheels"
    links=${PIP_FIND_LINKS:-$(ask_pip find-links)}
    for link in $links; do
        [ ! -d "$link" ] || find "$link" -maxdepth 1 -name '*.whl' -exec ln -f '{}' "$context/wheels/" \; 2>/dev/null ||
            find "$link" -maxdepth 1 -name '*.whl' -exec cp '{}' "$context/wheels/" \;
    done
    index=${PIP_INDEX_URL:-$(ask_pip index-url)}
    {
        printf '[global]\ncert = %s\nfind-links = /opt/wheels\n' "$CERTIFICATES"
        [ -z "$index" ] || printf 'index-url = %s\n' "$index"
    } >"$context/pip.conf"
    printf 'FROM hubbub-engine/python\nCOPY pip.conf /etc/pip.conf\nCOPY wheels /opt/wheels\n' >"$context/Dockerfile"
    build --tag hubbub-engine/builder "$context"
    rm -rf "$context"
}

ask_pip() { python3 -m pip config get "global.$1" 2>/dev/null || true; }

install_compose() {
    docker compose version >/dev/null 2>&1 && return
    say "fetching docker-compose from Debian's $COMPOSE_SUITE"
    local private="$FOLDER/compose" plugin
    rm -rf "$private"
    mkdir -p "$private/lists/partial" "$DOCKER_CONFIG/cli-plugins"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(debian_mirror) $COMPOSE_SUITE main" >"$private/sources.list"
    local private_apt=(apt-get --quiet --quiet -o "Dir::Etc::SourceList=$private/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$private/lists" -o "Dir::Cache=$private/cache" -o APT::Sandbox::User=root)
    mkdir -p "$private/cache/archives/partial"
    "${private_apt[@]}" update >&2
    (cd "$private" && "${private_apt[@]}" download docker-compose && dpkg -x docker-compose_*.deb tree) >&2
    plugin=$(find "$private/tree" -type f -path '*/cli-plugins/docker-compose')
    install -m 0755 "$plugin" "$DOCKER_CONFIG/cli-plugins/docker-compose"
    rm -rf "$private"
}

print_environment() {
    printf 'export DOCKER_HOST=%q DOCKER_CONFIG=%q DOCKER_BUILDKIT=0\n' "$DOCKER_HOST" "$DOCKER_CONFIG"
    printf 'export HUBBUB_BUILD_ARGS=%q\n' "--network host --build-arg BUILDER_IMAGE=hubbub-engine/builder"
}

start() {
    [ "$(id -u)" = 0 ] || fail "an engine runs as root: start this as root"
    install_packages
    start_engine
    make_debian
    make_image python "${PYTHON_TAGS[@]}"
    make_image rabbitmq "${BROKER_TAGS[@]}"
    make_builder
    install_compose
    print_environment
}

stop() {
    [ -f "$FOLDER/dockerd.pid" ] || return 0
    local pid deadline=$((SECONDS + STOP_S))
    pid=$(cat "$FOLDER/dockerd.pid")
    kill "$pid" 2>/dev/null || return 0
    while kill -0 "$pid" 2>/dev/null; do
        [ "$SECONDS" -lt "$deadline" ] || fail "dockerd, process $pid, does not end"
        sleep 0.2
    done
    [ ! -e "$FOLDER/made-bridge" ] || ip link delete docker0 2>/dev/null || true
    rm -f "$FOLDER/made-bridge"
    say "stopped"
}

remove() {
    stop
    # An engine leaves network namespaces mounted behind.
    local place
    while read -r _ place _; do
        case "$place" in "$FOLDER"/*) umount "$place" ;; esac
    done < <(tac /proc/mounts)
    rm -rf "$FOLDER"
    say "removed $FOLDER"
}

case "${1:-}" in
start | stop | remove) "$1" ;;
env) print_environment ;;
*) fail "say what to do: start, stop, remove or env" ;;
esac
