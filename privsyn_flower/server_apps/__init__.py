"""The server side: configuration -> public text and models -> strategy -> run -> result."""
