"""Two web applications that send and consume: FastAPI, and Django with async views."""
