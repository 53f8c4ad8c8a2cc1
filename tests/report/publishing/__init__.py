"""Tests of privsyn_flower.report.publishing."""
