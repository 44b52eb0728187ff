"""One kernel or one callable: the request, the session (the one loop), reuse of records, the last race, the result."""
