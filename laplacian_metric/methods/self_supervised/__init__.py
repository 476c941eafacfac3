"""Learning without labels: two views of an image are a positive pair, views of different images are negatives."""
