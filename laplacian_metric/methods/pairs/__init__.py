"""Methods that learn points from pairs or triplets, with their losses."""
