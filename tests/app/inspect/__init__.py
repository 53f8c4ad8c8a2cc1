"""Tests of privsyn_flower.app.inspect."""
