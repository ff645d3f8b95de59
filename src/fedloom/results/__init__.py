"""What a run leaves behind: row types, and the writer and reader of its directory."""
