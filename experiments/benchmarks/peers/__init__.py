"""The peers' side of each work, one file a peer; what a peer needs is imported where it runs."""
