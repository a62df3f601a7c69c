"""Trackers: TensorBoard, MLflow, Weights & Biases, or an object of the user's own, follow runs by their journals."""
