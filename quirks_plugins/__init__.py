"""The built-in quirks: one quirk, one file, in a folder named after its ModelFlag; rules of sizes share a file, as rows."""
