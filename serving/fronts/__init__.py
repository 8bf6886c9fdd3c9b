"""HTTP processes beside the one that routes: they take requests, turn text into tokens and back; it decides."""
