"""The parts of data/prepare: tokenizers turn conversations into tokens, lines turn lines into documents, shard writes
them, talk says what happens, options reads the command line. data/prepare joins them."""
