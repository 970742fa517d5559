"""What the protocol costs: its steps beside AES and numpy, its rounds over memory and over RabbitMQ."""
