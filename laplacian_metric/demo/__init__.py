"""What `lam demo` does: train a small network on the installed images, say which answers can be trusted, write a page.

`run_demo` in `laplacian_metric.demo.page` is the whole of it.
"""
