"""The endpoints, one file per noun. `brokerapi/urls.py` maps URLs to them."""
