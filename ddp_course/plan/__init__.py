"""Which axes of parallelism for a model on a cluster: memory, traffic, bubble and step time of every mesh."""
