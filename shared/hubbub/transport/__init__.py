"""How messages travel: one interface, an in-memory twin and RabbitMQ."""
