"""Tests of privsyn_flower.app.report.publishing."""
