"""Three RabbitMQ nodes of our own that are one broker: each may be killed and started again."""

from __future__ import annotations

from support.lived import Lived
from support.private_node import PrivateNode

NODES = 3


class Cluster(Lived):
    """Nodes that find each other when they start, because each is told the names of all."""

    def __init__(self) -> None:
        seed = PrivateNode()
        self.nodes = [seed, *(PrivateNode(seed=seed) for _ in range(NODES - 1))]
        for node in self.nodes:
            node.configure(
                "cluster_formation.peer_discovery_backend = classic_config",
                "cluster_formation.randomized_startup_delay_range.min = 0",
                "cluster_formation.randomized_startup_delay_range.max = 0",
                *(
                    f"cluster_formation.classic_config.nodes.{number} = {each.name}"
                    for number, each in enumerate(self.nodes, start=1)
                ),
            )

    def set_up(self) -> None:
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait_until_it_serves()
        self.nodes[0].ctl("await_online_nodes", str(NODES))

    def close(self) -> None:
        # The seed last: the others need its port mapper.
        for node in reversed(self.nodes):
            node.close()

    def mend(self) -> None:
        """Start again what was killed."""
        for node in self.nodes:
            if not node.is_running:
                node.restart()

    def urls(self, *order: int) -> str:
        """The addresses of some nodes, as a setting names them."""
        return ",".join(self.nodes[index].url for index in order)

    def leader_of(self, queue: str) -> PrivateNode:
        """The node that leads a replicated queue."""
        for line in self.nodes[0].ctl("-q", "--no-table-headers", "list_queues", "name", "leader").splitlines():
            name, leader = line.split()
            if name == queue:
                return next(node for node in self.nodes if node.name == leader)
        raise LookupError(f"there is no queue {queue!r}")
