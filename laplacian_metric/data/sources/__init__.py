"""One module for each data set: what is known about it (INFO) and how one split of it is read (read)."""
