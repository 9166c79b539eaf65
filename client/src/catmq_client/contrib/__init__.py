"""What joins the client to frameworks; each package here needs its own optional extra."""
