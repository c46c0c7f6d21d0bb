"""What an engine release does with a drafter: facts as data, its loader simulated, its own code as judge."""
