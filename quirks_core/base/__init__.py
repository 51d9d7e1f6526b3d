"""What every room uses: errors, text, JSON values, files and child processes."""
