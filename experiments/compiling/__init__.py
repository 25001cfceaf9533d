"""What a compiler says of a run's programs before there is a device to run them."""
