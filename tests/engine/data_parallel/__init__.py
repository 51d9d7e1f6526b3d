"""Groups of engines on Ray: data-parallel ranks as actors, as one engine, and as engines that share nothing."""
