"""Rules of membership: addresses, assignment, eligibility, liveness."""
