"""Where traffic comes from: arrival processes, traces, token counts; and load tests, which stand in their own files."""
