"""The ops as launches of device code: what runs on CUDA. One module an op, with the signature of its reference."""
