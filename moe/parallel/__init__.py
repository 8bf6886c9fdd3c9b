"""Experts of a layer spread over the devices of a group, with replicas: two ways to bring tokens and experts together.

places      which slot of which device computes each choice; the same on every device
replicated  all devices have all tokens: each computes its own choices, and a sum makes the answers whole
exchange    each device has tokens of its own: they travel to their experts and back, all to all
"""
