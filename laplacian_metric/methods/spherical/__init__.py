"""Methods that learn a distribution on the sphere, with their losses."""
