"""`penstock check`: what works on this machine's devices, and how fast. A page, and a file for bug reports."""
