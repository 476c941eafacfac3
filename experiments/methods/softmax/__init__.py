"""Methods that classify embeddings: their uncertainty is that of the softmax over the training classes."""
