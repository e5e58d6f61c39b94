"""One engine a file; `autofuse.bench.engines` knows their names. Imported by the engines' processes only."""
