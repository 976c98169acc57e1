"""What is shipped beside the code: image, compose and Kubernetes files, with no container engine at hand."""
