"""The experiments on FashionMNIST, with MNIST as what the network has never seen."""
