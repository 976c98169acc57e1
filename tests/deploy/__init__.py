"""What is shipped beside the code: the image, compose and Kubernetes files, without an engine for containers at hand."""
