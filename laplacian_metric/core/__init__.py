"""What every room needs: embeddings, the bases of methods, batches, exact search, files, progress."""
