"""What PyTorch has to know of an op: schemas, fake functions, torch.compile, sharding, pickling."""
