"""Plans, words of the cluster, the simulator that plans are judged by, and the search for good ones."""
