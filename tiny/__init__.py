"""The embedded default: questions, a tokenizer and two warm-started checkpoints, all written by tiny/build.py."""
