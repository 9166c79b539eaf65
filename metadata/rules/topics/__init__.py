"""Rules of topics: names, routing, slots, partitions, placement, retention."""
