"""What `lam demo` does: train a small network on the embedded sample, compute its curvature, write a page.

`laplacian_metric.demo.run.run_demo` is the whole of it; `laplacian_metric.demo.settings` can be read without
loading torch.
"""
