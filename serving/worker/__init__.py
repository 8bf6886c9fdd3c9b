"""Worker processes and the links between them and the controller. Knows no HTTP and no training."""
