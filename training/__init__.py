"""The elastic training queue and the loans of idle devices to it."""
