"""Load tests with Locust: one sender a worker process, each with its share of one demand. Needs locust and gevent."""
