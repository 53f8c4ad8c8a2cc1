"""The report page: one HTML document, put together from escaped parts."""
