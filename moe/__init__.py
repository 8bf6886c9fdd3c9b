"""Expert layers, their kernels, and where their replicas live."""
