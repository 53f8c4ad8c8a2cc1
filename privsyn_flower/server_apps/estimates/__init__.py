"""How long work takes on this machine and what memory it needs, told before it begins.

`shapes` knows how large models are, `work` what a stage does with them, `memory` and `speeds` what
that costs here. Everything rests on the configuration, on sizes of models and on made-up text: no
user's text is in an estimate.
"""
