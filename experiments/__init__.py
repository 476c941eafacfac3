"""What produces the tables and figures of this repository."""
