"""All services in one process: the demo, the experiments and the benchmarks."""
