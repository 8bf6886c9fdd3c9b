"""What benchmarks of the whole system share: a server in a process of its own, and traffic to it."""
