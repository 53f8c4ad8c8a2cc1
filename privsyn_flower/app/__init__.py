"""The application around the core: command line, reports, trackers, preflight, local Flower."""
