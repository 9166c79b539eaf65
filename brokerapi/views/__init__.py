"""The endpoints, one file per noun; `brokerapi/urls.py` says where each is."""
