"""The server under load as a client sees it: its models, what is asked of them, what comes back. No sockets but the
first look at it.
"""
