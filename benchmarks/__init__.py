"""Speed and memory of what the packages compute, each beside what it cannot do without."""
