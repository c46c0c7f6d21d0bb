"""A folder to stand first on a server's PYTHONPATH; it holds `sitecustomize` and nothing else."""
