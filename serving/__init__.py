"""The running system: models, workers, controller, HTTP endpoint and the `penstock` command."""
