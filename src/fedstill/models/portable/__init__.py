"""Models as programs that run without this package: kernels written out, captured, and put into a file's bytes."""
