"""Message transport: one interface, implemented in memory and over RabbitMQ."""
