"""Methods that learn a Gaussian for every image, with their losses."""
