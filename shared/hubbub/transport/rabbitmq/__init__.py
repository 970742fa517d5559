"""The RabbitMQ transport, through aio-pika: the only package that imports it.

- `transport`: `RabbitMqTransport`, one party's two connections to the broker
- `connection`: connecting, and connecting again after a loss
- `publisher`: publishing until the broker confirms
- `consumer`: subscriptions
- `dead_letters`: rejected messages, put aside and read
- `admin`: the topology at the broker, checked, declared or deleted; the rights of a user

aio-pika has traps. The module that meets one names it in its docstring. Its robust connection is not used: it
restores one channel after the other and waits for every answer without limit, so one queue that cannot answer (it
has no leader, say) would hold up all else. Here every request has a time limit, and what is not answered is asked
again on a new channel.
"""

from hubbub.transport.rabbitmq.admin import declare_topology, remove_topology, try_rights
from hubbub.transport.rabbitmq.transport import RabbitMqTransport

__all__ = ["RabbitMqTransport", "declare_topology", "remove_topology", "try_rights"]
