"""The FactorCell itself: linear maps that a context vector changes, and the encoder of contexts."""
