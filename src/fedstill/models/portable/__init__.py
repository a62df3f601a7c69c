"""Export of models as programs that run without this package: portable kernels, capture and file formats."""
