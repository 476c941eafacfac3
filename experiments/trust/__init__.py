"""Can a match be trusted? `Trust` beside every score that costs nothing, on encoders and data of several kinds."""
