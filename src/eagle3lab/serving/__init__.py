"""A live SGLang server: planned, launched, watched, asked and stopped; on GPUs, or on a CPU."""
