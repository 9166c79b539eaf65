"""The endpoints, a file per noun. `brokerapi/urls.py` maps URLs to them."""
