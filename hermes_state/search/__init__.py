"""Full-text search: query parser, segmenter and ranked look-up."""
