#!/bin/sh
# As root only to take possession of the volume; the broker runs as its own user.
set -eu
if [ "$1" = rabbitmq-server ] && [ "$(id -u)" = 0 ]; then
    find /var/lib/rabbitmq \! -user rabbitmq -exec chown rabbitmq:rabbitmq '{}' +
    exec setpriv --reuid rabbitmq --regid rabbitmq --init-groups "$0" "$@"
fi
exec "$@"
