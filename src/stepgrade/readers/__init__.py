"""One file or folder per format; each knows the model and no other reader."""
