"""Methods that sample networks: ensembles, MC dropout, SWAG."""
